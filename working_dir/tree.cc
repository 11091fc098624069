#include "working_dir/tree.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <string_view>
#include <vector>

#include "base/errno_status.h"
#include "base/folders.h"
#include "base/unique_fd.h"

namespace rayctl::working_dir {
namespace {

constexpr mode_t kFolderMode = 0755;
constexpr mode_t kFileMode = 0644;
constexpr mode_t kExecutableMode = 0755;
constexpr std::size_t kCopyBytes = std::size_t{256} << 10;

absl::Status CopyFile(int from_parent, int to_parent, const std::string& name, bool executable,
                      const std::string& path) {
  const UniqueFd from(::openat(from_parent, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!from.valid()) {
    return ErrnoStatus(fmt::format("reading {}", path), errno);
  }
  const UniqueFd to(::openat(to_parent, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                             executable ? kExecutableMode : kFileMode));
  if (!to.valid()) {
    return ErrnoStatus(fmt::format("making {}", path), errno);
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
      return ErrnoStatus(fmt::format("reading {}", path), errno);
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
        return ErrnoStatus(fmt::format("writing {}", path), wrote < 0 ? errno : ENOSPC);
      }
      written += wrote;
    }
  }
}

absl::Status CopyInto(int from, int to, const std::string& path) {
  const absl::StatusOr<std::vector<std::string>> names = NamesIn(from, path);
  if (!names.ok()) {
    return names.status();
  }
  for (const std::string& name : *names) {
    const std::string below = fmt::format("{}/{}", path, name);
    struct stat info {};
    if (::fstatat(from, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
      return ErrnoStatus(fmt::format("looking at {}", below), errno);
    }
    absl::Status status;
    if (S_ISDIR(info.st_mode)) {
      const UniqueFd sub_from = OpenFolderAt(from, name);
      if (!sub_from.valid() || ::mkdirat(to, name.c_str(), kFolderMode) != 0) {
        return ErrnoStatus(fmt::format("copying {}", below), errno);
      }
      const UniqueFd sub_to = OpenFolderAt(to, name);
      status = sub_to.valid() ? CopyInto(sub_from.get(), sub_to.get(), below)
                              : ErrnoStatus(fmt::format("opening {}", below), errno);
    } else if (S_ISLNK(info.st_mode)) {
      std::array<char, PATH_MAX> target{};
      const ssize_t size = ::readlinkat(from, name.c_str(), target.data(), target.size() - 1);
      if (size < 0 || ::symlinkat(target.data(), to, name.c_str()) != 0) {
        return ErrnoStatus(fmt::format("copying {}", below), errno);
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

absl::Status AddBytes(int folder, const std::string& path, std::uint64_t& bytes) {
  const absl::StatusOr<std::vector<std::string>> names = NamesIn(folder, path);
  if (!names.ok()) {
    return names.status();
  }
  for (const std::string& name : *names) {
    struct stat info {};
    if (::fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
      return ErrnoStatus(fmt::format("looking at {}/{}", path, name), errno);
    }
    if (S_ISREG(info.st_mode)) {
      bytes += static_cast<std::uint64_t>(info.st_size);
    } else if (S_ISDIR(info.st_mode)) {
      const UniqueFd sub = OpenFolderAt(folder, name);
      const std::string below = fmt::format("{}/{}", path, name);
      if (absl::Status status =
              sub.valid() ? AddBytes(sub.get(), below, bytes) : ErrnoStatus(fmt::format("opening {}", below), errno);
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
    return ErrnoStatus(fmt::format("opening {}", from), errno);
  }
  if (::mkdir(to.c_str(), kFolderMode) != 0) {
    return ErrnoStatus(fmt::format("making {}", to), errno);
  }
  const UniqueFd target = OpenFolderAt(AT_FDCWD, to);
  return target.valid() ? CopyInto(source.get(), target.get(), to) : ErrnoStatus(fmt::format("opening {}", to), errno);
}

absl::StatusOr<std::uint64_t> TreeBytes(const std::string& path) {
  const UniqueFd folder = OpenFolderAt(AT_FDCWD, path);
  std::uint64_t bytes = 0;
  if (!folder.valid()) {
    return ErrnoStatus(fmt::format("opening {}", path), errno);
  }
  if (absl::Status status = AddBytes(folder.get(), path, bytes); !status.ok()) {
    return status;
  }
  return bytes;
}

}  // namespace rayctl::working_dir
