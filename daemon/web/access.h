#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

// Who may read what by HTTP (docs/contracts.md). Pure.
namespace rayctl::web {

struct AccessFacts {
  bool reads = true;         // GET or HEAD.
  bool on_loopback = false;  // Both ends of the connection are loopback addresses.
  bool insecure = false;     // The head runs with --insecure: every user of this machine is an admin.
  std::optional<uid_t> peer;
  uid_t own = 0;
  std::string host;                          // The Host field.
  std::optional<std::string> origin;         // The Origin field.
  std::optional<std::string> authorization;  // The Authorization field.
};

struct CheckToken {
  std::string bearer;
};
struct Refused {
  bool token_helps = true;  // 401; else 403, whatever token comes along.
  std::string why;
};
// Allowed where neither is set.
struct Access {
  std::optional<CheckToken> token;  // It decides.
  std::optional<Refused> refused;
};

// A browser sends its user's requests wherever a page tells it to, also to loopback and also under a foreign name that
// was made to resolve there; so without a token only a request under a loopback name, from no page or from our own, by
// this user, is taken.
Access Decide(const AccessFacts& facts);

}  // namespace rayctl::web
