#include "worker/shim/checkpoint_copy.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <utility>

#include "base/errno_status.h"
#include "base/folders.h"
#include "base/unique_fd.h"
#include "worker/process/worker_process.h"

namespace rayctl::shim {

namespace {

using local::v1::CheckpointFile;
constexpr std::size_t kCopyBytes = 256U << 10;
constexpr mode_t kPermissions = 07777;

absl::Status CopyBytes(int from, int to, const std::string& path) {
  if (::ioctl(to, FICLONE, from) == 0) {
    return absl::OkStatus();
  }
  std::vector<char> buffer(kCopyBytes);
  while (true) {
    const ssize_t n = ::read(from, buffer.data(), buffer.size());
    if (n == 0) {
      return absl::OkStatus();
    }
    if (n < 0) {
      return ErrnoStatus("reading " + path, errno);
    }
    for (ssize_t done = 0; done < n;) {
      const ssize_t written = ::write(to, buffer.data() + done, static_cast<std::size_t>(n - done));
      if (written < 0) {
        return ErrnoStatus("copying " + path, errno);
      }
      done += written;
    }
  }
}

absl::Status CopyFile(const std::string& from, const std::string& to, mode_t mode) {
  const UniqueFd source(::open(from.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!source.valid()) {
    return ErrnoStatus("opening " + from, errno);
  }
  const UniqueFd target(::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!target.valid()) {
    return ErrnoStatus("making " + to, errno);
  }
  if (absl::Status copied = CopyBytes(source.get(), target.get(), from); !copied.ok()) {
    return copied;
  }
  if (::fchmod(target.get(), mode & kPermissions) < 0) {
    return ErrnoStatus("setting the mode of " + to, errno);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> SortedNames(const std::string& path) {
  const UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) {
    return ErrnoStatus("opening checkpoint folder " + path, errno);
  }
  absl::StatusOr<std::vector<std::string>> names = NamesIn(folder.get(), path);
  if (names.ok()) {
    std::sort(names->begin(), names->end());
  }
  return names;
}

absl::Status CopyInto(const std::string& from, const std::string& to, const std::string& prefix,
                      std::vector<CheckpointFile>& files) {
  if (::mkdir(to.c_str(), 0700) < 0) {
    return ErrnoStatus("making folder " + to, errno);
  }
  const absl::StatusOr<std::vector<std::string>> names = SortedNames(from);
  if (!names.ok()) {
    return names.status();
  }
  for (const std::string& name : *names) {
    std::string source = from;
    source.append("/").append(name);
    std::string target = to;
    target.append("/").append(name);
    struct stat info {};
    if (::lstat(source.c_str(), &info) < 0) {
      return ErrnoStatus("reading " + source, errno);
    }
    CheckpointFile file;
    file.set_path(prefix + name);
    file.set_mode(info.st_mode);
    absl::Status copied;
    if (S_ISDIR(info.st_mode)) {
      files.push_back(file);
      copied = CopyInto(source, target, prefix + name + "/", files);
    } else if (S_ISLNK(info.st_mode)) {
      std::array<char, PATH_MAX> link{};
      const ssize_t n = ::readlink(source.c_str(), link.data(), link.size());
      if (n < 0) {
        return ErrnoStatus("reading link " + source, errno);
      }
      file.set_symlink(std::string(link.data(), static_cast<std::size_t>(n)));
      if (::symlink(file.symlink().c_str(), target.c_str()) < 0) {
        return ErrnoStatus("making link " + target, errno);
      }
      files.push_back(file);
    } else if (S_ISREG(info.st_mode)) {
      file.set_bytes(static_cast<std::uint64_t>(info.st_size));
      files.push_back(file);
      copied = CopyFile(source, target, info.st_mode);
    } else {
      return absl::InvalidArgumentError(source + " is no file, folder or symbolic link");
    }
    if (!copied.ok()) {
      return copied;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<CheckpointFile>> CopyFolder(const std::string& from, const std::string& to) {
  const std::string unfinished = to + ".unfinished";
  if (const std::size_t slash = to.rfind('/'); slash != std::string::npos && slash > 0) {
    if (absl::Status made = process::MakeFolders(to.substr(0, slash)); !made.ok()) {
      return made;
    }
  }
  for (const std::string& leftover : {unfinished, to}) {  // Of a report that was refused and is made again.
    if (absl::Status removed = RemoveTree(leftover); !removed.ok()) {
      return removed;
    }
  }
  std::vector<CheckpointFile> files;
  if (absl::Status copied = CopyInto(from, unfinished, "", files); !copied.ok()) {
    copied.Update(RemoveTree(unfinished));  // The first failure is the one to tell.
    return copied;
  }
  if (::rename(unfinished.c_str(), to.c_str()) < 0) {
    return ErrnoStatus("naming " + to, errno);
  }
  return files;
}

}  // namespace rayctl::shim
