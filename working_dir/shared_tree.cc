#include "working_dir/shared_tree.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "working_dir/tree.h"

namespace rayctl::working_dir {
namespace {

// Close-on-exec, so that no child holds it.
UniqueFd OpenFolder(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

}  // namespace

absl::StatusOr<SharedTree> SharedTree::Enter(const std::string& path) {
  UniqueFd lock = OpenFolder(path);
  if (!lock.valid() || ::flock(lock.get(), LOCK_SH | LOCK_NB) != 0) {
    return absl::NotFoundError(fmt::format("entering {}: {}", path, std::strerror(errno)));
  }
  return SharedTree(path, std::move(lock));
}

absl::Status SharedTree::Leave() {
  if (!lock_.valid()) {
    return absl::OkStatus();
  }
  // First out, then a look: of two that leave at once, at least the later one finds nobody.
  lock_.Reset();
  const UniqueFd alone = OpenFolder(path_);
  if (!alone.valid() || ::flock(alone.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::OkStatus();  // Another is in it, or has removed it.
  }
  return RemoveTree(path_);
}

}  // namespace rayctl::working_dir
