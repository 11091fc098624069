#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/ids.h"

namespace rayctl::shim {

struct ShimLoopOptions {
  JobId job;
  std::string state_dir;
  std::string run_dir;
  Duration agent_grace = std::chrono::seconds(60);
  int agent_fd = -1;  // A connected socket: the first agent connection.
};

// The shim program without its main(): one thread that delivers events to shim::Shim and carries out its effects.
class ShimLoop {
 public:
  // Opens the state file and both sockets. ALREADY_EXISTS: a living shim has this job. INVALID_ARGUMENT: a folder is
  // not ours alone, or a socket's path is too long.
  static absl::StatusOr<std::unique_ptr<ShimLoop>> Open(const ShimLoopOptions& options);
  virtual ~ShimLoop() = default;

  // Until the shim is released, its agent stays away, or SIGTERM. No process that it started is left then.
  virtual absl::Status Run() = 0;
};

}  // namespace rayctl::shim
