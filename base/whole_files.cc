#include "base/whole_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/unique_fd.h"
#include "fmt/format.h"

namespace rayctl {
namespace {

absl::Status Errno(std::string_view what, const std::string& path) {
  const int error = errno;
  const std::string message = fmt::format("{} {}: {}", what, path, std::strerror(error));
  if (error == ENOENT) {
    return absl::NotFoundError(message);
  }
  if (error == EACCES || error == EPERM) {
    return absl::PermissionDeniedError(message);
  }
  return error == ENOSPC || error == EDQUOT ? absl::ResourceExhaustedError(message) : absl::UnavailableError(message);
}

absl::Status WriteAll(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t wrote = ::write(fd, text.data(), text.size());
    if (wrote < 0 && errno != EINTR) {
      return Errno("writing", path);
    }
    text.remove_prefix(wrote > 0 ? static_cast<std::size_t>(wrote) : 0);
  }
  return absl::OkStatus();
}

// Files that are written, but not in place. Those that do not come that far are removed.
class Temporaries {
 public:
  Temporaries() = default;
  Temporaries(const Temporaries&) = delete;
  Temporaries& operator=(const Temporaries&) = delete;
  ~Temporaries() {
    for (const Temporary& each : written_) {
      if (!each.placed) {
        ::unlink(each.path.c_str());
      }
    }
  }

  absl::Status Write(const std::vector<WholeFile>& files) {
    written_.reserve(files.size());
    for (const WholeFile& file : files) {
      std::string path = file.path + ".XXXXXX";
      const int fd = ::mkostemp(path.data(), O_CLOEXEC);  // 0600.
      if (fd < 0) {
        return Errno("writing", file.path);
      }
      written_.push_back({.path = std::move(path), .target = file.path, .fd = UniqueFd(fd)});
      if (absl::Status status = WriteAll(fd, file.contents, file.path); !status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }

  absl::Status Sync() {
    // All data is on its way before the first sync, whose commit of the file system then covers every file. What this
    // cannot do here is left to the syncs.
    for (const Temporary& each : written_) {
      ::sync_file_range(each.fd.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
    }
    for (const Temporary& each : written_) {
      if (::fsync(each.fd.get()) != 0) {
        return Errno("syncing", each.target);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Place() {
    for (Temporary& each : written_) {
      if (::rename(each.path.c_str(), each.target.c_str()) != 0) {
        return Errno("writing", each.target);
      }
      each.placed = true;
    }
    return absl::OkStatus();
  }

 private:
  struct Temporary {
    std::string path;
    std::string target;
    UniqueFd fd;
    bool placed = false;
  };
  std::vector<Temporary> written_;
};

absl::Status SyncFolder(const std::string& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return fd.valid() && ::fsync(fd.get()) == 0 ? absl::OkStatus() : Errno("syncing", folder);
}

}  // namespace

absl::Status WriteWhole(const std::vector<WholeFile>& files) {
  Temporaries temporaries;
  absl::Status status = temporaries.Write(files);
  return status.ok() ? temporaries.Place() : status;
}

absl::Status WriteDurably(const std::vector<WholeFile>& files) {
  Temporaries temporaries;
  absl::Status status = temporaries.Write(files);
  if (status.ok()) {
    status = temporaries.Sync();
  }
  if (status.ok()) {
    status = temporaries.Place();
  }
  if (status.ok() && !files.empty()) {
    status = SyncFolder(std::filesystem::path(files.front().path).parent_path());
  }
  return status;
}

}  // namespace rayctl
