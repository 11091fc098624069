#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rayctl::working_dir {

// A folder that several processes work in and that the last of them removes, in whatever order they end: each holds a
// shared lock on it, which the kernel drops with the process. Nothing is left unless all of them are killed.
class SharedTree {
 public:
  // Not of any folder.
  SharedTree() = default;
  // NOT_FOUND: it is gone, or its last process is removing it.
  static absl::StatusOr<SharedTree> Enter(const std::string& path);

  // Removes the folder if nobody else is in it. Once.
  absl::Status Leave();

 private:
  SharedTree(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  std::string path_;
  UniqueFd lock_;
};

}  // namespace rayctl::working_dir
