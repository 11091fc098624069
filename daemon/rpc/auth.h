#pragma once

#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/support/status.h>

#include <initializer_list>
#include <memory>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/states.h"
#include "daemon/head/records.h"

// Who may call what. One table decides, before any call reaches its handler.
namespace rayctl::rpc {

// The kinds of callers. The first four are roles of tokens.
enum class CallerKind : std::uint8_t { kAdmin = 1, kUser = 2, kViewer = 3, kJoin = 4, kAgent = 5 };

class CallerSet {
 public:
  constexpr CallerSet(std::initializer_list<CallerKind> kinds) {
    for (const CallerKind kind : kinds) {
      bits_ |= 1U << static_cast<unsigned>(kind);
    }
  }
  constexpr bool Contains(CallerKind kind) const { return (bits_ >> static_cast<unsigned>(kind) & 1U) != 0; }

 private:
  unsigned bits_ = 0;
};

struct Rule {
  std::string_view path;  // "/rayctl.v1.JobService/SubmitJob"
  CallerSet allowed;
};
// Every call there is.
std::span<const Rule> Rules();

struct Caller {
  CallerKind kind = CallerKind::kViewer;
  std::string user;  // The token's name; "local" with --insecure; empty for agents.
  NodeId node;       // Of an agent.
};

// The tokens that the head knows, as the calls see them. Thread-safe: the loop puts them in, calls read them.
class TokenTable {
 public:
  // A new token, or what has become of a known one: no dearer with a thousand others than with none.
  void Put(const head::TokenRecord& token);
  // Who has that secret now; UNAUTHENTICATED with what to do, where nobody does.
  grpc::Status Find(std::string_view bearer, WallTime now, Caller& caller) const;

 private:
  struct Entry {
    std::string name;
    Role role = Role::kViewer;
    WallTime expires_at{};
    bool revoked = false;
  };

  mutable std::shared_mutex mutex_;
  std::unordered_map<std::string, Entry> by_hash_;
};

// Finds the caller by token, else by verified certificate, and refuses what the table does not allow. Thread-safe.
class Gatekeeper final : public grpc::AuthMetadataProcessor {
 public:
  Gatekeeper(std::shared_ptr<const TokenTable> tokens, std::shared_ptr<const Clock> clock)
      : tokens_(std::move(tokens)), clock_(std::move(clock)) {}

  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata* consumed,
                       OutputMetadata* response) override;

  // Who calls; UNAUTHENTICATED where nobody known does. Handlers ask again: the AuthContext belongs to the connection,
  // which carries calls of several callers, so nothing about one call may be kept in it.
  grpc::Status Identify(const InputMetadata& metadata, const grpc::AuthContext& context, Caller& caller) const;
  // Whether the token of a request by HTTP lets its holder look: a viewer's, a user's or an admin's does.
  // UNAUTHENTICATED, PERMISSION_DENIED: with what to do.
  absl::Status MayLook(std::string_view bearer) const;

 private:
  std::shared_ptr<const TokenTable> tokens_;
  std::shared_ptr<const Clock> clock_;
};

// The caller on a head that runs with --insecure: everybody is an admin, and an agent names its own node.
Caller InsecureCaller(const grpc::AuthMetadataProcessor::InputMetadata& metadata);

}  // namespace rayctl::rpc
