#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rayctl::agent {

// One agent a state folder; the lock goes with the process. ALREADY_EXISTS: an agent runs on it.
absl::StatusOr<UniqueFd> LockStateFolder(const std::string& state_dir);

// The one line on --ready-fd. Does nothing when there is none, or when it was said before.
class ReadyPipe {
 public:
  explicit ReadyPipe(int fd);
  void Say(const nlohmann::ordered_json& line);
  bool said() const { return !fd_.valid(); }

 private:
  UniqueFd fd_;
};

// As many descriptors as the system allows.
void RaiseDescriptorLimit();

// Whether `port` may be bound on every address here now.
bool PortIsFree(std::uint32_t port);

}  // namespace rayctl::agent
