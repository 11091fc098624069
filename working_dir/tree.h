#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Whole folder trees. No symbolic link is ever followed.
namespace rayctl::working_dir {

// Copies the tree `from` to the new folder `to`, all of it writable for its owner; shares the blocks on disk where the
// file system can (FICLONE). RESOURCE_EXHAUSTED: the disk is full. What was made stays after a failure.
absl::Status CopyTree(const std::string& from, const std::string& to);

// The bytes of its files.
absl::StatusOr<std::uint64_t> TreeBytes(const std::string& path);

}  // namespace rayctl::working_dir
