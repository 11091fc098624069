#include "base/folders.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string_view>
#include <utility>

#include "base/errno_status.h"

namespace rayctl {
namespace {

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

absl::Status Empty(int folder, const std::string& path) {
  // A read-only folder keeps what is in it from anybody but root.
  if (::fchmod(folder, S_IRWXU) != 0) {
    return ErrnoStatus("changing " + path, errno);
  }
  const absl::StatusOr<std::vector<std::string>> names = NamesIn(folder, path);
  if (!names.ok()) {
    return names.status();
  }
  for (const std::string& name : *names) {
    if (::unlinkat(folder, name.c_str(), 0) == 0 || errno == ENOENT) {
      continue;
    }
    const int error = errno;
    std::string below = path;
    below.append("/").append(name);
    if (error != EISDIR && error != EPERM) {
      return ErrnoStatus("removing " + below, error);
    }
    struct stat info {};
    if (::fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(info.st_mode) &&
        (info.st_mode & S_IRWXU) != S_IRWXU) {
      ::fchmodat(folder, name.c_str(), S_IRWXU, 0);  // What goes wrong shows at the opening.
    }
    const UniqueFd sub = OpenFolderAt(folder, name);
    if (!sub.valid()) {
      return ErrnoStatus("removing " + below, errno);
    }
    if (absl::Status emptied = Empty(sub.get(), below); !emptied.ok()) {
      return emptied;
    }
    if (::unlinkat(folder, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT) {
      return ErrnoStatus("removing " + below, errno);
    }
  }
  return absl::OkStatus();
}

}  // namespace

UniqueFd OpenFolderAt(int parent, const std::string& name) {
  return UniqueFd(::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

absl::StatusOr<std::vector<std::string>> NamesIn(int folder, const std::string& path) {
  const int copy = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, CloseFolder> stream(copy < 0 ? nullptr : ::fdopendir(copy));
  if (stream == nullptr) {
    return ErrnoStatus("reading " + path, errno);
  }
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* const entry = ::readdir(stream.get());
    if (entry == nullptr) {
      return errno == 0 ? absl::StatusOr<std::vector<std::string>>(std::move(names))
                        : ErrnoStatus("reading " + path, errno);
    }
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") {
      names.emplace_back(name);
    }
  }
}

absl::Status RemoveTree(const std::string& path) {
  const UniqueFd folder = OpenFolderAt(AT_FDCWD, path);
  if (!folder.valid()) {
    if (errno == ENOENT || ::unlink(path.c_str()) == 0 || errno == ENOENT) {
      return absl::OkStatus();
    }
    return ErrnoStatus("removing " + path, errno);
  }
  if (absl::Status emptied = Empty(folder.get(), path); !emptied.ok()) {
    return emptied;
  }
  if (::rmdir(path.c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus("removing " + path, errno);
  }
  return absl::OkStatus();
}

}  // namespace rayctl
