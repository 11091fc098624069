#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "shim.pb.h"

namespace rayctl::shim {

namespace local = ::rayctl::local::v1;

// What a shim wrote down: all that is left of one that was killed.
struct ShimState {
  local::ShimStateHeader header;
  std::vector<local::RankStatus> ranks;  // In (group, attempt, rank) order. One without an end ended with its shim.
  std::vector<local::ShimStateRecord> records;
  std::uint64_t last_sequence = 0;
};

// NOT_FOUND: no such file. INVALID_ARGUMENT: not a state file, or of a version that we do not know. A torn last record
// is left out: its writer died while it wrote.
absl::StatusOr<ShimState> ReadShimState(const std::string& path);

// Whether the shim of this header still runs on this machine (same boot, same process).
bool ShimLives(const local::ShimStateHeader& header);

// The state file of a living shim. The lock on it says that it lives; it goes with the process, however that ends.
class StateFile {
 public:
  enum class IfHeld { kRefuse, kWait };
  // Makes folders and file, and writes the header. What a dead shim left there is kept as `<path>.old`. ALREADY_EXISTS:
  // a living shim holds it; or blocks until it is gone.
  static absl::StatusOr<StateFile> Create(const std::string& path, const local::ShimStateHeader& header,
                                          IfHeld if_held = IfHeld::kRefuse);

  // After a failure (disk full) the record is kept and written before the next one.
  absl::Status Append(const local::ShimStateRecord& record);
  absl::Status Flush();
  void Remove();

 private:
  std::string path_;
  UniqueFd fd_;
  std::string unwritten_;
};

}  // namespace rayctl::shim
