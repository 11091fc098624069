#include "working_dir/pack.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

#include "base/errno_status.h"
#include "base/status_text.h"
#include "base/units.h"
#include "working_dir/digest.h"
#include "working_dir/ignore_rules.h"

namespace rayctl::working_dir {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kReadBytes = std::size_t{256} << 10;
constexpr std::size_t kLargestNamed = 3;
constexpr std::time_t kPackedTime = 315532800;  // 1980-01-01, the first day that zip files know too.
constexpr std::string_view kNeverPacked = ".git";
constexpr mode_t kFolderMode = 0755;
constexpr mode_t kFileMode = 0644;
constexpr mode_t kExecutableMode = 0755;

std::string Join(const std::string& folder, const std::string& name) {
  return folder.empty() ? name : fmt::format("{}/{}", folder, name);
}

std::string IgnoreFileNames() { return fmt::format("{}, {} or {}", kIgnoreFiles[0], kIgnoreFiles[1], kIgnoreFiles[2]); }

// Walks one folder tree.
class Lister {
 public:
  explicit Lister(const std::string& folder) : root_(folder) {}

  absl::StatusOr<Listing> Run() {
    if (absl::Status status = Walk(""); !status.ok()) {
      return status;
    }
    if (listing_.bytes > kContentBytesMax) {
      return absl::ResourceExhaustedError(
          fmt::format("{} has {}, more than the {} that a working directory may have; the largest: {}; name what the "
                      "job does not need in {}",
                      root_, FormatBytes(static_cast<std::int64_t>(listing_.bytes)),
                      FormatBytes(static_cast<std::int64_t>(kContentBytesMax)), Largest(), IgnoreFileNames()));
    }
    return std::move(listing_);
  }

 private:
  struct Rules {
    std::string folder;
    IgnoreRules rules;
  };

  absl::Status Walk(const std::string& folder) {
    const std::string path = Path(folder);
    if (static_cast<std::size_t>(std::count(folder.begin(), folder.end(), '/')) + 2 > kDepthMax) {
      return absl::InvalidArgumentError(
          fmt::format("{} lies deeper than the {} folders that a working directory may have", path, kDepthMax));
    }
    std::error_code error;
    std::vector<std::string> names;
    for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
      names.push_back(it->path().filename().string());
    }
    if (error) {
      return ErrnoStatus(fmt::format("reading {}", path), error.value());
    }
    std::sort(names.begin(), names.end());
    const std::size_t rules_before = rules_.size();
    if (absl::Status status = ReadRules(folder); !status.ok()) {
      return status;
    }
    for (const std::string& name : names) {
      if (absl::Status status = name == kNeverPacked ? absl::OkStatus() : Take(Join(folder, name)); !status.ok()) {
        return status;
      }
    }
    rules_.resize(rules_before);
    return absl::OkStatus();
  }

  absl::Status ReadRules(const std::string& folder) {
    for (const std::string_view name : kIgnoreFiles) {
      const std::string path = Path(Join(folder, std::string(name)));
      struct stat info {};
      if (::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) {
        continue;
      }
      std::ifstream file(path, std::ios::binary);
      std::ostringstream text;
      text << file.rdbuf();
      if (!file) {
        return absl::PermissionDeniedError(fmt::format("reading {} failed; what to leave out is not known", path));
      }
      rules_.push_back({folder, IgnoreRules::Parse(text.str())});
      break;
    }
    return absl::OkStatus();
  }

  bool Ignored(const std::string& path, bool is_folder) const {
    for (auto rules = rules_.rbegin(); rules != rules_.rend(); ++rules) {
      const std::size_t skipped = rules->folder.empty() ? 0 : rules->folder.size() + 1;
      const auto verdict = rules->rules.Judge(std::string_view(path).substr(skipped), is_folder);
      if (verdict != IgnoreRules::Verdict::kNone) {
        return verdict == IgnoreRules::Verdict::kIgnored;
      }
    }
    return false;
  }

  absl::Status Take(const std::string& path) {
    struct stat info {};
    if (::lstat(Path(path).c_str(), &info) != 0) {
      return ErrnoStatus(fmt::format("looking at {}", Path(path)), errno);
    }
    if (Ignored(path, S_ISDIR(info.st_mode))) {
      return absl::OkStatus();
    }
    Entry entry{.path = path};
    if (S_ISDIR(info.st_mode)) {
      entry.kind = Kind::kFolder;
    } else if (S_ISREG(info.st_mode)) {
      entry.bytes = static_cast<std::uint64_t>(info.st_size);
      entry.executable = (info.st_mode & S_IXUSR) != 0;
    } else if (S_ISLNK(info.st_mode)) {
      entry.kind = Kind::kLink;
      std::error_code error;
      entry.target = fs::read_symlink(Path(path), error).string();
      if (error) {
        return ErrnoStatus(fmt::format("reading the link {}", Path(path)), error.value());
      }
      if (absl::Status inside = CheckLink(path, entry.target); !inside.ok()) {
        return absl::Status(inside.code(), fmt::format("{}; leave it out by {} or put a copy in its place",
                                                       rayctl::Text(inside), IgnoreFileNames()));
      }
    } else {
      listing_.left_out.push_back(path);
      return absl::OkStatus();
    }
    listing_.bytes += entry.bytes;
    by_top_[path.substr(0, path.find('/'))] += entry.bytes;
    const bool is_folder = entry.kind == Kind::kFolder;
    listing_.entries.push_back(std::move(entry));
    if (listing_.entries.size() > kEntriesMax) {
      return absl::ResourceExhaustedError(
          fmt::format("{} has more than the {} files and folders that a working directory may have; the largest so "
                      "far: {}; name what the job does not need in {}",
                      root_, kEntriesMax, Largest(), IgnoreFileNames()));
    }
    return is_folder ? Walk(path) : absl::OkStatus();
  }

  // What takes most, among the names at the top.
  std::string Largest() const {
    std::vector<std::pair<std::uint64_t, std::string>> sizes;
    for (const auto& [name, bytes] : by_top_) {
      sizes.emplace_back(bytes, name);
    }
    std::sort(sizes.rbegin(), sizes.rend());
    std::string text;
    for (std::size_t i = 0; i < std::min(sizes.size(), kLargestNamed); ++i) {
      text += fmt::format("{}{} ({})", i == 0 ? "" : ", ", sizes[i].second,
                          FormatBytes(static_cast<std::int64_t>(sizes[i].first)));
    }
    return text;
  }

  std::string Path(const std::string& path) const { return path.empty() ? root_ : fmt::format("{}/{}", root_, path); }

  const std::string root_;
  Listing listing_;
  std::vector<Rules> rules_;  // Of the folders from the top to the one being walked.
  std::map<std::string, std::uint64_t> by_top_;
};

struct FreeArchive {
  void operator()(archive* what) const { ::archive_write_free(what); }
};
struct FreeEntry {
  void operator()(archive_entry* what) const { ::archive_entry_free(what); }
};

// Where the archive's bytes go.
struct Output {
  int fd = -1;
  Sha256 hash;
  std::uint64_t bytes = 0;
  int error = 0;
};

la_ssize_t WriteOut(archive* /*writer*/, void* data, const void* buffer, std::size_t size) {
  auto& output = *static_cast<Output*>(data);
  const auto* bytes = static_cast<const char*>(buffer);
  for (std::size_t done = 0; done < size;) {
    const ssize_t wrote = ::write(output.fd, bytes + done, size - done);
    if (wrote < 0 && errno == EINTR) {
      continue;
    }
    if (wrote <= 0) {
      output.error = wrote < 0 ? errno : ENOSPC;
      return -1;
    }
    done += static_cast<std::size_t>(wrote);
  }
  output.hash.Add({bytes, size});
  output.bytes += size;
  return static_cast<la_ssize_t>(size);
}

// A file that has no name and goes when it is closed.
absl::StatusOr<UniqueFd> NamelessFile() {
  const char* const wanted = std::getenv("TMPDIR");
  const std::string folder = wanted != nullptr && *wanted != '\0' ? wanted : "/tmp";
  std::string name = folder + "/rayctl-pack-XXXXXX";
  UniqueFd file(::mkostemp(name.data(), O_CLOEXEC));
  if (!file.valid()) {
    return ErrnoStatus(fmt::format("making a file in {}", folder), errno);
  }
  ::unlink(name.c_str());
  return file;
}

// Copies one file's contents into the archive.
absl::Status WriteContents(archive* writer, const Output& output, const std::string& path, const Entry& entry,
                           const std::function<void(std::uint64_t)>& on_bytes) {
  const auto changed = [&path] {
    return absl::FailedPreconditionError(fmt::format("{} changed while it was packed; submit again", path));
  };
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) {
    return ErrnoStatus(fmt::format("reading {}", path), errno);
  }
  std::vector<char> buffer(kReadBytes);
  std::uint64_t done = 0;
  while (true) {
    const ssize_t got = ::read(file.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return ErrnoStatus(fmt::format("reading {}", path), errno);
    }
    if (got == 0) {
      return done == entry.bytes ? absl::OkStatus() : changed();
    }
    done += static_cast<std::uint64_t>(got);
    if (done > entry.bytes) {
      return changed();
    }
    if (::archive_write_data(writer, buffer.data(), static_cast<std::size_t>(got)) != got) {
      return output.error != 0
                 ? ErrnoStatus(fmt::format("writing the archive of {}", path), output.error)
                 : absl::InternalError(fmt::format("packing {}: {}", path, ::archive_error_string(writer)));
    }
    on_bytes(static_cast<std::uint64_t>(got));
  }
}

}  // namespace

absl::Status CheckLink(std::string_view path, std::string_view target) {
  const auto leads_out = [&] {
    return absl::InvalidArgumentError(
        fmt::format("the link {} leads to {}, out of the working directory", path, target));
  };
  if (target.empty() || target.starts_with('/')) {
    return leads_out();
  }
  auto up_max = std::count(path.begin(), path.end(), '/');
  bool went_down = false;
  while (!target.empty()) {
    const std::size_t slash = target.find('/');
    const std::string_view part = target.substr(0, slash);
    target.remove_prefix(slash == std::string_view::npos ? target.size() : slash + 1);
    if (part.empty() || part == ".") {
      continue;
    }
    if (part != "..") {
      went_down = true;
      continue;
    }
    // Behind a name, which may be a link itself, `..` can be anywhere.
    if (went_down || up_max-- == 0) {
      return leads_out();
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Listing> List(const std::string& folder) { return Lister(folder).Run(); }

absl::StatusOr<Packed> Pack(const std::string& folder, const Listing& listing,
                            const std::function<void(std::uint64_t)>& on_progress) {
  absl::StatusOr<UniqueFd> file = NamelessFile();
  if (!file.ok()) {
    return file.status();
  }
  Output output;
  output.fd = file->get();
  const std::unique_ptr<archive, FreeArchive> writer(::archive_write_new());
  // Names go in as the bytes that they are, in whatever locale.
  if (::archive_write_set_format_gnutar(writer.get()) != ARCHIVE_OK ||
      ::archive_write_set_bytes_per_block(writer.get(), kReadBytes) != ARCHIVE_OK ||
      ::archive_write_set_bytes_in_last_block(writer.get(), 1) != ARCHIVE_OK ||
      ::archive_write_open(writer.get(), &output, nullptr, WriteOut, nullptr) != ARCHIVE_OK) {
    return absl::InternalError(fmt::format("beginning an archive: {}", ::archive_error_string(writer.get())));
  }
  std::uint64_t done = 0;
  for (const Entry& entry : listing.entries) {
    const std::unique_ptr<archive_entry, FreeEntry> header(::archive_entry_new());
    ::archive_entry_copy_pathname(header.get(), entry.path.c_str());
    ::archive_entry_set_mtime(header.get(), kPackedTime, 0);
    ::archive_entry_set_uid(header.get(), 0);
    ::archive_entry_set_gid(header.get(), 0);
    switch (entry.kind) {
      case Kind::kFolder:
        ::archive_entry_set_filetype(header.get(), AE_IFDIR);
        ::archive_entry_set_perm(header.get(), kFolderMode);
        break;
      case Kind::kFile:
        ::archive_entry_set_filetype(header.get(), AE_IFREG);
        ::archive_entry_set_perm(header.get(), entry.executable ? kExecutableMode : kFileMode);
        ::archive_entry_set_size(header.get(), static_cast<la_int64_t>(entry.bytes));
        break;
      case Kind::kLink:
        ::archive_entry_set_filetype(header.get(), AE_IFLNK);
        ::archive_entry_set_perm(header.get(), kExecutableMode);
        ::archive_entry_copy_symlink(header.get(), entry.target.c_str());
        break;
    }
    const std::string path = fmt::format("{}/{}", folder, entry.path);
    if (::archive_write_header(writer.get(), header.get()) != ARCHIVE_OK) {
      return output.error != 0
                 ? ErrnoStatus(fmt::format("writing the archive of {}", path), output.error)
                 : absl::InternalError(fmt::format("packing {}: {}", path, ::archive_error_string(writer.get())));
    }
    if (entry.kind == Kind::kFile) {
      absl::Status written = WriteContents(writer.get(), output, path, entry, [&](std::uint64_t bytes) {
        done += bytes;
        on_progress(done);
      });
      if (!written.ok()) {
        return written;
      }
    }
  }
  if (::archive_write_close(writer.get()) != ARCHIVE_OK) {
    return output.error != 0
               ? ErrnoStatus(fmt::format("writing the archive of {}", folder), output.error)
               : absl::InternalError(fmt::format("packing {}: {}", folder, ::archive_error_string(writer.get())));
  }
  if (output.bytes > kArchiveBytesMax) {
    return absl::ResourceExhaustedError(
        fmt::format("the archive of {} has {}, more than {}: it has very many long names", folder,
                    FormatBytes(static_cast<std::int64_t>(output.bytes)),
                    FormatBytes(static_cast<std::int64_t>(kArchiveBytesMax))));
  }
  if (::lseek(file->get(), 0, SEEK_SET) != 0) {
    return ErrnoStatus(fmt::format("reading the archive of {}", folder), errno);
  }
  return Packed{output.hash.Hex(), output.bytes, *std::move(file)};
}

}  // namespace rayctl::working_dir
