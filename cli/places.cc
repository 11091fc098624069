#include "cli/places.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "client/token.h"

namespace rayctl::cli {
namespace {

constexpr std::size_t kRunDirHexDigits = 16;
constexpr mode_t kPrivate = 0700;

absl::Status Errno(std::string_view what, const std::string& path) {
  const std::string message = fmt::format("{} {}: {}", what, path, std::strerror(errno));
  return errno == EACCES || errno == EPERM ? absl::PermissionDeniedError(message) : absl::InternalError(message);
}

std::string UserName(uid_t uid) {
  const passwd* const entry = ::getpwuid(uid);
  return entry == nullptr ? fmt::format("user {}", uid) : fmt::format("user {} ({})", entry->pw_name, uid);
}

// Makes one folder that is this user's alone; an existing one must be this user's and is closed to others.
absl::Status MakePrivateDir(const std::string& path) {
  if (::mkdir(path.c_str(), kPrivate) != 0 && errno != EEXIST) {
    return Errno("making", path);
  }
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    return Errno("looking at", path);
  }
  if (!S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(fmt::format("{} is no folder; remove it", path));
  }
  if (info.st_uid != ::geteuid()) {
    return absl::PermissionDeniedError(
        fmt::format("{} belongs to {}; only its owner may start a node there, and only they or root can remove it",
                    path, UserName(info.st_uid)));
  }
  if ((info.st_mode & 0077) != 0 && ::chmod(path.c_str(), kPrivate) != 0) {
    return Errno("closing to others", path);
  }
  return absl::OkStatus();
}

bool IsNetworkFileSystem(long type) {
  constexpr long kCifsMagic = 0xFF534D42;
  return type == NFS_SUPER_MAGIC || type == SMB_SUPER_MAGIC || type == SMB2_SUPER_MAGIC || type == kCifsMagic;
}

}  // namespace

std::string HostName() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0' ? std::string(name.data())
                                                                             : std::string("node");
}

std::string DefaultStateDir(const std::string& home, const std::string& leaf) {
  const char* const base = std::getenv("XDG_STATE_HOME");
  // The rule of XDG: a path that is not absolute counts as unset.
  if (base != nullptr && base[0] == '/') {
    return fmt::format("{}/rayctl/{}", base, leaf);
  }
  return fmt::format("{}/.local/state/rayctl/{}", home, leaf);
}

absl::StatusOr<std::string> MakeStateDir(const std::string& path) {
  const std::filesystem::path absolute = std::filesystem::absolute(path).lexically_normal();
  std::string folder = absolute.string();
  while (folder.size() > 1 && folder.ends_with('/')) {
    folder.pop_back();
  }
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(folder).parent_path(), error);
  if (error) {
    return absl::InternalError(fmt::format("making {}: {}", folder, error.message()));
  }
  if (::mkdir(folder.c_str(), kPrivate) != 0 && errno != EEXIST) {
    return Errno("making", folder);
  }
  const std::filesystem::path real = std::filesystem::canonical(folder, error);
  if (error) {
    return absl::InternalError(fmt::format("making {}: {}", folder, error.message()));
  }
  if (absl::Status status = MakePrivateDir(real.string()); !status.ok()) {
    return status;
  }
  struct statfs file_system {};
  if (::statfs(real.c_str(), &file_system) != 0) {
    return Errno("looking at", real.string());
  }
  if (IsNetworkFileSystem(file_system.f_type)) {
    return absl::FailedPreconditionError(fmt::format(
        "the state folder {} is on a network file system, where the journal and sockets break; name a local folder "
        "with --state-dir or RAYCTL_STATE_DIR",
        real.string()));
  }
  return real.string();
}

bool IsOnNetworkFileSystem(const std::string& path) {
  struct statfs file_system {};
  return ::statfs(path.c_str(), &file_system) == 0 && IsNetworkFileSystem(file_system.f_type);
}

absl::StatusOr<std::string> MoveAside(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::StatusOr<std::string>("") : Errno("looking at", path);
  }
  const std::string stamp = fmt::format("{:%Y%m%dT%H%M%SZ}", fmt::gmtime(std::time(nullptr)));
  for (int more = 0;; ++more) {
    const std::string aside =
        more == 0 ? fmt::format("{}.old-{}", path, stamp) : fmt::format("{}.old-{}-{}", path, stamp, more);
    if (::lstat(aside.c_str(), &info) == 0) {
      continue;
    }
    if (::rename(path.c_str(), aside.c_str()) != 0) {
      return Errno("moving aside", path);
    }
    return aside;
  }
}

std::string RunDirOf(const std::string& runtime_root, const std::string& state_dir) {
  return fmt::format("{}/{}", runtime_root, client::ToHex(client::Sha256(state_dir)).substr(0, kRunDirHexDigits));
}

absl::StatusOr<RunDirLock> MakeRunDir(const std::string& runtime_root, const std::string& state_dir) {
  RunDirLock result;
  result.path = RunDirOf(runtime_root, state_dir);
  while (true) {
    for (const std::string& path : {runtime_root, result.path}) {
      if (absl::Status status = MakePrivateDir(path); !status.ok()) {
        return status;
      }
    }
    result.lock.Reset(::open(result.path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!result.lock.valid()) {
      if (errno == ENOENT) {
        continue;  // A stop cleared it away at this moment.
      }
      return Errno("opening", result.path);
    }
    while (::flock(result.lock.get(), LOCK_EX) != 0) {
      if (errno != EINTR) {
        return Errno("locking", result.path);
      }
    }
    struct stat held {};
    struct stat named {};
    if (::fstat(result.lock.get(), &held) == 0 && ::stat(result.path.c_str(), &named) == 0 &&
        held.st_ino == named.st_ino) {
      return result;
    }
  }
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  constexpr std::size_t kChunkBytes = 64 * 1024;
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) {
    return errno == ENOENT ? absl::NotFoundError(fmt::format("{}: no such file", path)) : Errno("reading", path);
  }
  std::string text;
  while (true) {
    const std::size_t size = text.size();
    text.resize(size + kChunkBytes);
    const ssize_t got = ::read(file.get(), text.data() + size, kChunkBytes);
    if (got < 0 && errno != EINTR) {
      return Errno("reading", path);
    }
    text.resize(size + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) {
      return text;
    }
  }
}

}  // namespace rayctl::cli
