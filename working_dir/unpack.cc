#include "working_dir/unpack.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/errno_status.h"
#include "base/folders.h"
#include "base/status_text.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "working_dir/digest.h"
#include "working_dir/pack.h"

namespace rayctl::working_dir {
namespace {

constexpr std::size_t kReadBytes = std::size_t{256} << 10;
constexpr mode_t kReadOnly = 0444;
constexpr mode_t kReadOnlyExecutable = 0555;
constexpr mode_t kWhileUnpacked = 0700;
constexpr mode_t kSpecialBits = S_ISUID | S_ISGID | S_ISVTX;

struct FreeArchive {
  void operator()(archive* what) const { ::archive_read_free(what); }
};

// What the archive alone can be to blame for is a wrong archive.
absl::Status Errno(int error, std::string_view what, std::string_view path) {
  switch (error) {
    case EEXIST:
      return absl::InvalidArgumentError(fmt::format("the archive has {} twice", path));
    case ENOENT:
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return absl::InvalidArgumentError(fmt::format("{} {}: {}", what, path, ErrnoText(error)));
    default:
      return ErrnoStatus(fmt::format("{} {}", what, path), error);
  }
}

absl::Status Refused(std::string_view path, std::string_view why) {
  return absl::InvalidArgumentError(fmt::format("the archive has {}, {}", path, why));
}

absl::StatusOr<std::vector<std::string>> SplitPath(std::string_view path) {
  std::vector<std::string> parts;
  std::string_view rest = path;
  if (rest.ends_with('/')) {
    rest.remove_suffix(1);
  }
  if (rest.empty() || rest.starts_with('/')) {
    return Refused(path, "which is no relative path");
  }
  while (true) {
    const std::size_t slash = rest.find('/');
    const std::string_view part = rest.substr(0, slash);
    if (part.empty() || part == "." || part == "..") {
      return Refused(path, "a path that leads out of its folder or is not in its plain form");
    }
    parts.emplace_back(part);
    if (parts.size() > kDepthMax) {
      return Refused(path, fmt::format("deeper than {} folders", kDepthMax));
    }
    if (slash == std::string_view::npos) {
      return parts;
    }
    rest.remove_prefix(slash + 1);
  }
}

// One archive on its way into one folder.
class Unpacker {
 public:
  Unpacker(int archive_fd, std::string folder) : archive_fd_(archive_fd), folder_(std::move(folder)) {}

  absl::StatusOr<std::uint64_t> Run() {
    root_.Reset(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!root_.valid()) {
      return Errno(errno, "opening", folder_);
    }
    const std::unique_ptr<archive, FreeArchive> reader(::archive_read_new());
    // Tar alone: whatever else the library reads is nothing that rayctl packs.
    if (::archive_read_support_format_tar(reader.get()) != ARCHIVE_OK ||
        ::archive_read_support_filter_none(reader.get()) != ARCHIVE_OK ||
        ::archive_read_open_fd(reader.get(), archive_fd_, kReadBytes) != ARCHIVE_OK) {
      return NoArchive(reader.get());
    }
    std::uint64_t entries = 0;
    while (true) {
      archive_entry* entry = nullptr;
      const int result = ::archive_read_next_header(reader.get(), &entry);
      if (result == ARCHIVE_EOF) {
        break;
      }
      if (result != ARCHIVE_OK) {
        return NoArchive(reader.get());
      }
      if (++entries > kEntriesMax) {
        return absl::ResourceExhaustedError(fmt::format("the archive has more than {} entries", kEntriesMax));
      }
      if (absl::Status status = Take(reader.get(), entry); !status.ok()) {
        return status;
      }
    }
    // The folders last, from the deepest: until then something was still to be put into them.
    for (auto folder = folders_.rbegin(); folder != folders_.rend(); ++folder) {
      const absl::StatusOr<UniqueFd> fd = OpenFolder(*folder, folder->size());
      if (!fd.ok()) {
        return fd.status();
      }
      if (::fchmod(fd->get(), kReadOnlyExecutable) != 0) {
        return Errno(errno, "changing", folder_);
      }
    }
    if (::fchmod(root_.get(), kReadOnlyExecutable) != 0) {
      return Errno(errno, "changing", folder_);
    }
    return bytes_;
  }

 private:
  static absl::Status NoArchive(archive* reader) {
    const char* const why = ::archive_error_string(reader);
    return absl::InvalidArgumentError(
        fmt::format("reading the archive of a working directory: {}", why == nullptr ? "it is none" : why));
  }

  // The folder that the first `depth` parts name. No link is followed on the way.
  absl::StatusOr<UniqueFd> OpenFolder(const std::vector<std::string>& parts, std::size_t depth) const {
    UniqueFd at(::openat(root_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (std::size_t i = 0; at.valid() && i < depth; ++i) {
      at.Reset(::openat(at.get(), parts[i].c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!at.valid()) {
        const int error = errno;
        return Errno(error, "opening the folder", parts[i]);
      }
    }
    if (!at.valid()) {
      return Errno(errno, "opening", folder_);
    }
    return at;
  }

  absl::Status Take(archive* reader, archive_entry* entry) {
    const char* const name = ::archive_entry_pathname(entry);
    if (name == nullptr) {
      return Refused("a name", "which cannot be read");
    }
    const std::string path(name);
    const absl::StatusOr<std::vector<std::string>> parts = SplitPath(path);
    if (!parts.ok()) {
      return parts.status();
    }
    if (::archive_entry_hardlink(entry) != nullptr) {
      return Refused(path, "a hard link");
    }
    const mode_t mode = ::archive_entry_perm(entry);
    if ((mode & kSpecialBits) != 0) {
      return Refused(path, "with setuid, setgid or sticky bits");
    }
    const absl::StatusOr<UniqueFd> parent = OpenFolder(*parts, parts->size() - 1);
    if (!parent.ok()) {
      return rayctl::Annotate(parent.status(), path);
    }
    const std::string& leaf = parts->back();
    switch (::archive_entry_filetype(entry)) {
      case AE_IFDIR:
        if (::mkdirat(parent->get(), leaf.c_str(), kWhileUnpacked) != 0) {
          return Errno(errno, "making", path);
        }
        folders_.push_back(*parts);
        return absl::OkStatus();
      case AE_IFLNK: {
        const char* const target = ::archive_entry_symlink(entry);
        if (target == nullptr) {
          return Refused(path, "a link that leads nowhere");
        }
        if (absl::Status inside = CheckLink(path, target); !inside.ok()) {
          return inside;
        }
        if (::symlinkat(target, parent->get(), leaf.c_str()) != 0) {
          return Errno(errno, "making", path);
        }
        return absl::OkStatus();
      }
      case AE_IFREG:
        return TakeFile(reader, entry, path, *parent, leaf);
      default:
        return Refused(path, "which is no file, folder or symbolic link");
    }
  }

  absl::Status TakeFile(archive* reader, archive_entry* entry, const std::string& path, const UniqueFd& parent,
                        const std::string& leaf) {
    // Holes would let a small archive fill the disk.
    if (::archive_entry_sparse_count(entry) != 0) {
      return Refused(path, "a file with holes");
    }
    const auto size = static_cast<std::uint64_t>(std::max<la_int64_t>(::archive_entry_size(entry), 0));
    bytes_ += std::min(size, kContentBytesMax + 1);
    if (bytes_ > kContentBytesMax) {
      return absl::ResourceExhaustedError(fmt::format("the archive has more than {} of files",
                                                      FormatBytes(static_cast<std::int64_t>(kContentBytesMax))));
    }
    const UniqueFd file(
        ::openat(parent.get(), leaf.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kWhileUnpacked));
    if (!file.valid()) {
      return Errno(errno, "making", path);
    }
    std::uint64_t done = 0;
    while (true) {
      const la_ssize_t got = ::archive_read_data(reader, buffer_.data(), buffer_.size());
      if (got < 0) {
        return NoArchive(reader);
      }
      if (got == 0) {
        break;
      }
      done += static_cast<std::uint64_t>(got);
      if (done > size) {
        return Refused(path, "which is longer than it says");
      }
      for (la_ssize_t written = 0; written < got;) {
        const ssize_t wrote = ::write(file.get(), buffer_.data() + written, static_cast<std::size_t>(got - written));
        if (wrote < 0 && errno == EINTR) {
          continue;
        }
        if (wrote <= 0) {
          return Errno(wrote < 0 ? errno : ENOSPC, "writing", path);
        }
        written += wrote;
      }
    }
    if (done != size) {
      return Refused(path, "which is shorter than it says");
    }
    const bool executable = (::archive_entry_perm(entry) & S_IXUSR) != 0;
    if (::fchmod(file.get(), executable ? kReadOnlyExecutable : kReadOnly) != 0) {
      return Errno(errno, "changing", path);
    }
    return absl::OkStatus();
  }

  const int archive_fd_;
  const std::string folder_;
  UniqueFd root_;
  std::vector<std::vector<std::string>> folders_;
  std::uint64_t bytes_ = 0;
  std::vector<char> buffer_ = std::vector<char>(kReadBytes);
};

}  // namespace

absl::StatusOr<std::uint64_t> Unpack(int archive_fd, const std::string& folder) {
  if (::mkdir(folder.c_str(), kWhileUnpacked) != 0) {
    return ErrnoStatus(fmt::format("making {}", folder), errno);
  }
  absl::StatusOr<std::uint64_t> bytes = Unpacker(archive_fd, folder).Run();
  if (!bytes.ok()) {
    if (const absl::Status removed = RemoveTree(folder); !removed.ok()) {
      return rayctl::Annotate(bytes.status(), rayctl::Text(removed));
    }
  }
  return bytes;
}

}  // namespace rayctl::working_dir
