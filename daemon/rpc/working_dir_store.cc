#include "daemon/rpc/working_dir_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <tuple>
#include <utility>
#include <vector>

#include "base/errno_status.h"
#include "base/units.h"
#include "fmt/format.h"

namespace rayctl::rpc {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPartSuffix = ".part";

std::string Size(std::uint64_t bytes) { return FormatBytes(static_cast<std::int64_t>(bytes)); }

}  // namespace

absl::StatusOr<std::unique_ptr<WorkingDirStore>> WorkingDirStore::Open(std::string folder, std::uint64_t bytes_max) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus(fmt::format("making {} on the head", folder), errno);
  }
  std::unique_ptr<WorkingDirStore> store(new WorkingDirStore(std::move(folder), bytes_max));
  std::vector<std::tuple<fs::file_time_type, std::string, std::uint64_t>> found;
  std::error_code error;
  for (fs::directory_iterator it(store->folder_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code gone;
    if (name.ends_with(kPartSuffix)) {
      fs::remove(it->path(), gone);
    } else if (working_dir::IsDigest(name)) {
      found.emplace_back(it->last_write_time(gone), name, it->file_size(gone));
    }
  }
  if (error) {
    return absl::InternalError(fmt::format("reading {}: {}", store->folder_, error.message()));
  }
  std::sort(found.begin(), found.end());
  for (const auto& [time, name, bytes] : found) {
    store->kept_[name] = {bytes, ++store->uses_};
  }
  return store;
}

bool WorkingDirStore::Has(const std::string& digest) {
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(digest);
  if (found == kept_.end()) {
    return false;
  }
  found->second.used = ++uses_;
  return true;
}

absl::StatusOr<std::unique_ptr<WorkingDirStore::Upload>> WorkingDirStore::Begin(const std::string& digest) {
  if (!working_dir::IsDigest(digest)) {
    return absl::InvalidArgumentError("a working directory is named by the SHA-256 of its archive in hex");
  }
  std::unique_ptr<Upload> upload;
  {
    const std::lock_guard lock(mutex_);
    if (uploads_ >= kUploadsMax) {
      return absl::ResourceExhaustedError(fmt::format(
          "{} working directories are on their way to the head already; submit again in a moment", kUploadsMax));
    }
    ++uploads_;
    upload.reset(new Upload(*this, digest));
    upload->path_ = fmt::format("{}/{}-{}{}", folder_, digest, ++last_upload_, kPartSuffix);
  }
  upload->file_.Reset(::open(upload->path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!upload->file_.valid()) {
    return ErrnoStatus(fmt::format("making {} on the head", upload->path_), errno);
  }
  return upload;
}

WorkingDirStore::Upload::~Upload() {
  if (file_.valid()) {
    ::unlink(path_.c_str());
  }
  const std::lock_guard lock(store_.mutex_);
  --store_.uploads_;
}

absl::Status WorkingDirStore::Upload::Add(std::string_view bytes) {
  bytes_ += bytes.size();
  if (bytes_ > working_dir::kArchiveBytesMax) {
    return absl::ResourceExhaustedError(
        fmt::format("the archive has more than {}", Size(working_dir::kArchiveBytesMax)));
  }
  hash_.Add(bytes);
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(file_.get(), bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) {
      continue;
    }
    if (wrote < 0) {
      return ErrnoStatus(fmt::format("writing {} on the head", path_), errno);
    }
    bytes.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return absl::OkStatus();
}

absl::Status WorkingDirStore::Upload::Finish() {
  if (hash_.Hex() != digest_) {
    return absl::InvalidArgumentError("what came is not what its digest names; was it cut short?");
  }
  // Its name promises what is in it, also after a power cut.
  if (::fsync(file_.get()) != 0) {
    return ErrnoStatus(fmt::format("writing {} on the head", path_), errno);
  }
  const std::lock_guard names(store_.names_mutex_);
  if (::rename(path_.c_str(), store_.Path(digest_).c_str()) != 0) {
    return ErrnoStatus(fmt::format("naming {} on the head", path_), errno);
  }
  file_.Reset();
  const std::lock_guard lock(store_.mutex_);
  store_.kept_[digest_] = {bytes_, ++store_.uses_};
  return absl::OkStatus();
}

absl::Status WorkingDirStore::MakeRoom(const std::set<std::string>& needed, const std::string& newest) {
  const std::lock_guard names(names_mutex_);
  std::vector<std::string> gone;
  absl::Status status = Choose(needed, newest, gone);
  for (const std::string& digest : gone) {
    ::unlink(Path(digest).c_str());
  }
  return status;
}

absl::Status WorkingDirStore::Choose(const std::set<std::string>& needed, const std::string& newest,
                                     std::vector<std::string>& gone) {
  const std::lock_guard lock(mutex_);
  std::uint64_t total = 0;
  std::vector<std::pair<std::uint64_t, std::string>> removable;
  for (const auto& [digest, kept] : kept_) {
    total += kept.bytes;
    if (digest != newest && !needed.contains(digest)) {
      removable.emplace_back(kept.used, digest);
    }
  }
  std::sort(removable.begin(), removable.end());
  const auto remove = [&](const std::string& digest) {
    total -= kept_[digest].bytes;
    kept_.erase(digest);
    gone.push_back(digest);
  };
  for (auto next = removable.begin(); next != removable.end() && total > bytes_max_; ++next) {
    remove(next->second);
  }
  if (total <= bytes_max_) {
    return absl::OkStatus();
  }
  if (kept_.contains(newest) && !needed.contains(newest)) {
    remove(newest);
  }
  return absl::ResourceExhaustedError(
      fmt::format("the head keeps at most {} of working directories (working_dirs_bytes_max), and jobs that have not "
                  "ended need what is there; submit again when some have",
                  Size(bytes_max_)));
}

absl::StatusOr<UniqueFd> WorkingDirStore::Read(const std::string& digest) {
  UniqueFd file;
  if (Has(digest)) {
    file.Reset(::open(Path(digest).c_str(), O_RDONLY | O_CLOEXEC));
  }
  if (!file.valid()) {
    return absl::NotFoundError(
        fmt::format("the head has no working directory {} any more; submit the job again", digest));
  }
  // What was used last is known after a restart too. An order that is lost makes no file wrong.
  static_cast<void>(::futimens(file.get(), nullptr));
  return file;
}

}  // namespace rayctl::rpc
