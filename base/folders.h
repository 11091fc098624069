#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rayctl {

// The folder `name` of an open one (AT_FDCWD: a path); no link is followed. Invalid: errno says why.
UniqueFd OpenFolderAt(int parent, const std::string& name);

// The names in an open folder, in no order; `path` is for messages.
absl::StatusOr<std::vector<std::string>> NamesIn(int folder, const std::string& path);

// Removes what a path names with all that is in it, folders that are read-only too; links are not followed. OK where
// there is nothing.
absl::Status RemoveTree(const std::string& path);

}  // namespace rayctl
