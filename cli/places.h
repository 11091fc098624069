#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

// The folders of a node (docs/contracts.md).
namespace rayctl::cli {

std::string HostName();
// `$XDG_STATE_HOME/rayctl/<leaf>`, by default below ~/.local/state.
std::string DefaultStateDir(const std::string& home, const std::string& leaf);

// Makes the state folder (0700) if it is absent and gives its real path. FAILED_PRECONDITION: it is on NFS or another
// network file system, where SQLite and unix sockets break. PERMISSION_DENIED: it is another user's.
absl::StatusOr<std::string> MakeStateDir(const std::string& path);
// Whether the file system of an existing path is NFS or another that other machines write to.
bool IsOnNetworkFileSystem(const std::string& path);
// Moves a state folder aside to `<path>.old-<time>` and gives the new name; empty when there was none.
absl::StatusOr<std::string> MoveAside(const std::string& path);

// The runtime folder of a state folder's real path.
std::string RunDirOf(const std::string& runtime_root, const std::string& state_dir);

// A runtime folder that exists, is this user's alone, and is locked against another start or clean-up until the lock
// is dropped. Waits for who holds it.
struct RunDirLock {
  std::string path;
  UniqueFd lock;
};
absl::StatusOr<RunDirLock> MakeRunDir(const std::string& runtime_root, const std::string& state_dir);

absl::StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace rayctl::cli
