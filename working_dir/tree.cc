#include "working_dir/tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace rayctl::working_dir {
namespace {

constexpr mode_t kFolderMode = 0755;
constexpr mode_t kFileMode = 0644;
constexpr mode_t kExecutableMode = 0755;
constexpr std::size_t kCopyBytes = std::size_t{256} << 10;

absl::Status Errno(int error, std::string_view what, std::string_view path) {
  const std::string text = fmt::format("{} {}: {}", what, path, std::strerror(error));
  return error == ENOSPC || error == EDQUOT ? absl::ResourceExhaustedError(text) : absl::InternalError(text);
}

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

absl::StatusOr<std::vector<std::string>> Names(int folder_fd, const std::string& path) {
  const int copy = ::openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, CloseFolder> folder(copy < 0 ? nullptr : ::fdopendir(copy));
  if (folder == nullptr) {
    return Errno(errno, "reading", path);
  }
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* const entry = ::readdir(folder.get());
    if (entry == nullptr) {
      return errno == 0 ? absl::StatusOr<std::vector<std::string>>(std::move(names)) : Errno(errno, "reading", path);
    }
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") {
      names.emplace_back(name);
    }
  }
}

UniqueFd OpenFolderAt(int parent, const std::string& name) {
  return UniqueFd(::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

absl::Status CopyFile(int from_parent, int to_parent, const std::string& name, bool executable,
                      const std::string& path) {
  const UniqueFd from(::openat(from_parent, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!from.valid()) {
    return Errno(errno, "reading", path);
  }
  const UniqueFd to(::openat(to_parent, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                             executable ? kExecutableMode : kFileMode));
  if (!to.valid()) {
    return Errno(errno, "making", path);
  }
  if (::ioctl(to.get(), FICLONE, from.get()) == 0) {
    return absl::OkStatus();
  }
  // Most file systems cannot share blocks; then the bytes are copied.
  std::vector<char> buffer(kCopyBytes);
  while (true) {
    const ssize_t got = ::read(from.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return Errno(errno, "reading", path);
    }
    if (got == 0) {
      return absl::OkStatus();
    }
    for (ssize_t written = 0; written < got;) {
      const ssize_t wrote = ::write(to.get(), buffer.data() + written, static_cast<std::size_t>(got - written));
      if (wrote < 0 && errno == EINTR) {
        continue;
      }
      if (wrote <= 0) {
        return Errno(wrote < 0 ? errno : ENOSPC, "writing", path);
      }
      written += wrote;
    }
  }
}

absl::Status CopyInto(int from, int to, const std::string& path) {
  const absl::StatusOr<std::vector<std::string>> names = Names(from, path);
  if (!names.ok()) {
    return names.status();
  }
  for (const std::string& name : *names) {
    const std::string below = fmt::format("{}/{}", path, name);
    struct stat info {};
    if (::fstatat(from, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
      return Errno(errno, "looking at", below);
    }
    absl::Status status;
    if (S_ISDIR(info.st_mode)) {
      const UniqueFd sub_from = OpenFolderAt(from, name);
      if (!sub_from.valid() || ::mkdirat(to, name.c_str(), kFolderMode) != 0) {
        return Errno(errno, "copying", below);
      }
      const UniqueFd sub_to = OpenFolderAt(to, name);
      status = sub_to.valid() ? CopyInto(sub_from.get(), sub_to.get(), below) : Errno(errno, "opening", below);
    } else if (S_ISLNK(info.st_mode)) {
      std::array<char, PATH_MAX> target{};
      const ssize_t size = ::readlinkat(from, name.c_str(), target.data(), target.size() - 1);
      if (size < 0 || ::symlinkat(target.data(), to, name.c_str()) != 0) {
        return Errno(errno, "copying", below);
      }
    } else {
      status = CopyFile(from, to, name, (info.st_mode & S_IXUSR) != 0, below);
    }
    if (!status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status Empty(int folder, const std::string& path) {
  // A read-only folder keeps what is in it from anybody but root.
  if (::fchmod(folder, S_IRWXU) != 0) {
    return Errno(errno, "changing", path);
  }
  const absl::StatusOr<std::vector<std::string>> names = Names(folder, path);
  if (!names.ok()) {
    return names.status();
  }
  for (const std::string& name : *names) {
    if (::unlinkat(folder, name.c_str(), 0) == 0 || errno == ENOENT) {
      continue;
    }
    const int error = errno;
    const std::string below = fmt::format("{}/{}", path, name);
    if (error != EISDIR && error != EPERM) {
      return Errno(error, "removing", below);
    }
    struct stat info {};
    if (::fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(info.st_mode) &&
        (info.st_mode & S_IRWXU) != S_IRWXU) {
      ::fchmodat(folder, name.c_str(), S_IRWXU, 0);  // What goes wrong shows at the opening.
    }
    const UniqueFd sub = OpenFolderAt(folder, name);
    if (!sub.valid()) {
      return Errno(errno, "removing", below);
    }
    if (absl::Status emptied = Empty(sub.get(), below); !emptied.ok()) {
      return emptied;
    }
    if (::unlinkat(folder, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT) {
      return Errno(errno, "removing", below);
    }
  }
  return absl::OkStatus();
}

absl::Status AddBytes(int folder, const std::string& path, std::uint64_t& bytes) {
  const absl::StatusOr<std::vector<std::string>> names = Names(folder, path);
  if (!names.ok()) {
    return names.status();
  }
  for (const std::string& name : *names) {
    struct stat info {};
    if (::fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
      return Errno(errno, "looking at", fmt::format("{}/{}", path, name));
    }
    if (S_ISREG(info.st_mode)) {
      bytes += static_cast<std::uint64_t>(info.st_size);
    } else if (S_ISDIR(info.st_mode)) {
      const UniqueFd sub = OpenFolderAt(folder, name);
      const std::string below = fmt::format("{}/{}", path, name);
      if (absl::Status status = sub.valid() ? AddBytes(sub.get(), below, bytes) : Errno(errno, "opening", below);
          !status.ok()) {
        return status;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CopyTree(const std::string& from, const std::string& to) {
  const UniqueFd source = OpenFolderAt(AT_FDCWD, from);
  if (!source.valid()) {
    return Errno(errno, "opening", from);
  }
  if (::mkdir(to.c_str(), kFolderMode) != 0) {
    return Errno(errno, "making", to);
  }
  const UniqueFd target = OpenFolderAt(AT_FDCWD, to);
  return target.valid() ? CopyInto(source.get(), target.get(), to) : Errno(errno, "opening", to);
}

absl::Status RemoveTree(const std::string& path) {
  const UniqueFd folder = OpenFolderAt(AT_FDCWD, path);
  if (!folder.valid()) {
    if (errno == ENOENT || ::unlink(path.c_str()) == 0 || errno == ENOENT) {
      return absl::OkStatus();
    }
    return Errno(errno, "removing", path);
  }
  if (absl::Status emptied = Empty(folder.get(), path); !emptied.ok()) {
    return emptied;
  }
  if (::rmdir(path.c_str()) != 0 && errno != ENOENT) {
    return Errno(errno, "removing", path);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::uint64_t> TreeBytes(const std::string& path) {
  const UniqueFd folder = OpenFolderAt(AT_FDCWD, path);
  std::uint64_t bytes = 0;
  if (!folder.valid()) {
    return Errno(errno, "opening", path);
  }
  if (absl::Status status = AddBytes(folder.get(), path, bytes); !status.ok()) {
    return status;
  }
  return bytes;
}

}  // namespace rayctl::working_dir
