#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "daemon/rpc/authority.h"
#include "daemon/rpc/follow.h"
#include "daemon/rpc/head_loop.h"

namespace rayctl::rpc {

struct ServerOptions {
  std::string host;                  // Empty: every address.
  std::uint16_t port = 0;            // 0 picks one.
  std::uint16_t preferred_port = 0;  // The one to pick while it is free; 0: any.
  std::string version = "0.1.0";
  std::string address;  // As clients are told; filled in by the daemon once the port is known.
  WallTime started_at{};
  std::string working_dirs_dir;  // Where packed folders are kept; empty: none are.
  bool insecure = false;         // Plain text, loopback only, everybody is an admin.
  Duration transfer_patience = kTransferPatience;
};

inline constexpr char kPortFlag[] = "--port";

// The head's gRPC server: every call is turned into an event of the loop or a reading of its state. Made, used and
// destroyed on the loop's thread; gRPC's own threads only post to it.
class Server {
 public:
  // `authority` and its server certificate are not used with --insecure. ALREADY_EXISTS: the port is taken, by whom.
  static absl::StatusOr<std::unique_ptr<Server>> Start(ServerOptions options, HeadLoop& loop,
                                                       std::shared_ptr<const Clock> clock, const Authority* authority,
                                                       const Identity& server_identity);
  ~Server();

  std::uint16_t port() const;
  void set_address(std::string address);

  // For the web: the JSON of a path below /api/v1/ (web_api.h), and whether a token lets its holder read it.
  absl::StatusOr<std::string> WebJson(std::string_view path) const;
  absl::Status MayLook(std::string_view bearer) const;

  // Agents that are connected now; `handler` runs once there is none.
  std::size_t agents() const;
  void WhenNoAgents(std::function<void()> handler);

  // Ends every call; `done` runs on the loop, which must go on until then. Call before the destructor.
  void Shutdown(std::function<void()> done);

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rayctl::rpc
