#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "shim.pb.h"

namespace rayctl::shim {

// Copies the folder `from` to `to`, replacing what is there: files by FICLONE where the file system can, else by their
// bytes; never by a hard link, since user code may still have the original open. Appears under its name only when it is
// whole. Lists what it copied in path order, without hashes (the agent reads the files when it sends them on). Blocks:
// call it in a process of its own. RESOURCE_EXHAUSTED: the disk is full. INVALID_ARGUMENT: something in it is neither
// file, folder nor symbolic link.
absl::StatusOr<std::vector<::rayctl::local::v1::CheckpointFile>> CopyFolder(const std::string& from,
                                                                            const std::string& to);

}  // namespace rayctl::shim
