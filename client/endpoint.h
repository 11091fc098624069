#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace grpc {
class Channel;
}

// Which head a person means and what proves who they are (CONTRACTS: addresses, state, credentials).
namespace rayctl::client {

// What head.json or agent.json in a runtime folder says of a running daemon.
struct RunningDaemon {
  bool is_head = false;
  std::int64_t pid = 0;
  std::uint64_t start_ticks = 0;
  std::string address;        // Of the head, as other machines reach it.
  std::string local_address;  // Of the head, from this machine; empty: address.
  std::string dashboard_url;
  std::string state_dir;
  std::string run_dir;
  std::uint64_t node_id = 0;
  std::string node_name;
  std::string version;
  bool insecure = false;
  bool is_private = false;  // Serves one process; nobody else means it without naming it.
};

// What a person gave, by flag or environment. Read once, in main().
struct EndpointSettings {
  std::string address;     // --address
  std::string token;       // --token
  std::string token_file;  // --token-file
  std::string env_address;
  std::string env_token;
  std::string home;          // $HOME, else from the password file.
  std::string runtime_root;  // /tmp/rayctl-UID
};

// What this machine knows.
struct Surroundings {
  std::vector<RunningDaemon> daemons;  // Living ones of this user, heads first, then by run_dir.
  std::string current;                 // ~/.rayctl/current: an address, or empty.
  // Reads a whole file. NOT_FOUND and PERMISSION_DENIED are told apart.
  std::function<absl::StatusOr<std::string>(const std::string&)> read_file;
};

struct Endpoint {
  std::string address;    // To connect to.
  std::string ca_pem;     // Empty: fetched by the token's hash when connecting, or insecure.
  std::string token;      // Empty only when insecure.
  std::string state_dir;  // Of a head or agent on this machine that was chosen; else empty.
  bool insecure = false;
};

// Field 22 of /proc/PID/stat, which no other process of that pid has; nullopt: no such process.
std::optional<std::uint64_t> ProcessStartTicks(std::int64_t pid);

// `/tmp/rayctl-UID`.
std::string RuntimeRoot(uid_t uid);
// HOME and RAYCTL_* of this process.
EndpointSettings SettingsFromEnvironment();
// Looks at the runtime folders of this user and at ~/.rayctl. Daemons whose process is gone are left out.
Surroundings LookAround(const EndpointSettings& settings);

// Decides; reads nothing but through `around`. UNAVAILABLE: no head is named or running here. UNAUTHENTICATED: the head
// is known but there is no token for it. INVALID_ARGUMENT: a bad address or token. FAILED_PRECONDITION: several heads
// run here and none was named.
absl::StatusOr<Endpoint> FindHead(const EndpointSettings& settings, const Surroundings& around);

// A channel to it; fetches the CA by the token's hash where needed, and then fills in `ca_pem`.
absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(Endpoint& endpoint);

// Remembers a head for this user: ~/.rayctl/<host>_<port>/{ca.pem,token} (0700, 0600) and ~/.rayctl/current.
absl::Status SaveCredentials(const std::string& home, const std::string& address, std::string_view ca_pem,
                             std::string_view token);

// "host:port" with the default port 6379 where none is given. INVALID_ARGUMENT: neither.
absl::StatusOr<std::string> NormaliseAddress(std::string_view text);
// The host and port of "host:port" or "[v6]:port".
struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};
absl::StatusOr<HostPort> SplitAddress(std::string_view address);

}  // namespace rayctl::client
