#include "base/whole_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

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

std::string Temporary(const WholeFile& file) { return file.path + ".new"; }

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

}  // namespace

absl::Status WriteDurably(const std::vector<WholeFile>& files) {
  std::vector<UniqueFd> written;
  for (const WholeFile& file : files) {
    const std::string temporary = Temporary(file);
    written.emplace_back(
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
    if (!written.back().valid()) {
      return Errno("writing", temporary);
    }
    if (absl::Status status = WriteAll(written.back().get(), file.contents, temporary); !status.ok()) {
      return status;
    }
    // All data is on its way before the first sync, whose commit of the file system then covers every file. What this
    // cannot do here is left to the syncs.
    ::sync_file_range(written.back().get(), 0, 0, SYNC_FILE_RANGE_WRITE);
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (::fsync(written[i].get()) != 0) {
      return Errno("syncing", Temporary(files[i]));
    }
  }
  for (const WholeFile& file : files) {
    if (::rename(Temporary(file).c_str(), file.path.c_str()) != 0) {
      return Errno("writing", file.path);
    }
  }
  if (!files.empty()) {
    const std::string folder = std::filesystem::path(files.front().path).parent_path();
    const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.valid() || ::fsync(fd.get()) != 0) {
      return Errno("syncing", folder);
    }
  }
  return absl::OkStatus();
}

}  // namespace rayctl
