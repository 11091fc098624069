#include "worker/process/output_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "worker/process/errors.h"

namespace rayctl::process {

namespace {

constexpr std::uint32_t kAgesMax = 1000;  // Where a search for rotated files gives up.
constexpr int kSearchesMax = 8;           // While files are being renamed under the search.

absl::StatusOr<UniqueFd> OpenToRead(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() && errno != ENOENT) {
    return ErrnoStatus("opening " + path, errno);
  }
  return fd;
}

}  // namespace

// nullopt: no such file, or the log and the index under these names are not a pair (they are being renamed).
absl::StatusOr<std::optional<OutputReader::Pair>> OutputReader::OpenPair(std::uint32_t age) const {
  absl::StatusOr<UniqueFd> index = OpenToRead(LogIndexPath(path_, age));
  if (!index.ok()) {
    return index.status();
  }
  absl::StatusOr<UniqueFd> log = OpenToRead(LogPath(path_, age));
  if (!log.ok()) {
    return log.status();
  }
  if (!index->valid() || !log->valid()) {
    return std::nullopt;
  }
  std::array<char, kLogIndexHeaderBytes> bytes{};
  const ssize_t n = ::pread(index->get(), bytes.data(), bytes.size(), 0);
  if (n < 0) {
    return ErrnoStatus("reading " + LogIndexPath(path_, age), errno);
  }
  if (n < static_cast<ssize_t>(bytes.size())) {
    return std::nullopt;  // Being made right now.
  }
  const absl::StatusOr<LogIndexHeader> header = DecodeLogIndexHeader({bytes.data(), bytes.size()});
  if (!header.ok()) {
    return absl::Status(header.status().code(),
                        LogIndexPath(path_, age) + ": " + std::string(header.status().message()));
  }
  struct stat info {};
  if (::fstat(log->get(), &info) < 0) {
    return ErrnoStatus("reading " + LogPath(path_, age), errno);
  }
  if (info.st_ino != header->inode) {
    return std::nullopt;
  }
  Pair pair;
  pair.log = *std::move(log);
  pair.index = *std::move(index);
  pair.inode = header->inode;
  pair.first_offset = header->first_offset;
  return pair;
}

// Takes the file that holds `offset`, else the oldest that begins after it. False: there is none (now).
absl::StatusOr<bool> OutputReader::OpenFor(std::uint64_t offset) {
  for (int search = 0; search < kSearchesMax; ++search) {
    std::optional<Pair> best;
    bool found_gap = false;
    for (std::uint32_t age = 0; age < kAgesMax; ++age) {
      absl::StatusOr<std::optional<Pair>> pair = OpenPair(age);
      if (!pair.ok()) {
        return pair.status();
      }
      if (!pair->has_value()) {
        if (::access(LogPath(path_, age).c_str(), F_OK) == 0 || ::access(LogIndexPath(path_, age).c_str(), F_OK) == 0) {
          found_gap = true;
          continue;
        }
        if (age == 0) {
          found_gap = true;  // The current one is missing for a moment in every rotation.
          continue;
        }
        break;
      }
      const std::uint64_t first = (*pair)->first_offset;
      if (best && best->first_offset <= first) {
        found_gap = true;  // Files moved on between two looks: this is the one seen before, or a newer one.
        continue;
      }
      best = *std::move(*pair);
      if (first <= offset) {
        break;
      }
    }
    if (best && (best->first_offset <= offset || !found_gap)) {
      record_at_ = kLogIndexHeaderBytes;
      record_offset_ = best->first_offset;
      pair_ = std::move(best);
      return true;
    }
    if (!found_gap) {
      return false;
    }
  }
  return false;
}

absl::StatusOr<std::optional<LogIndexRecord>> OutputReader::RecordAt(std::uint64_t at) const {
  std::array<char, kLogIndexRecordBytes> bytes{};
  const ssize_t n = ::pread(pair_->index.get(), bytes.data(), bytes.size(), static_cast<off_t>(at));
  if (n < 0) {
    return ErrnoStatus("reading the index of " + path_, errno);
  }
  if (n < static_cast<ssize_t>(bytes.size())) {
    return std::nullopt;  // Not there yet, or torn.
  }
  absl::StatusOr<LogIndexRecord> record = DecodeLogIndexRecord({bytes.data(), bytes.size()});
  if (!record.ok()) {
    return record.status();
  }
  return *record;
}

absl::StatusOr<std::optional<OutputRun>> OutputReader::NextHere() {
  OutputRun run;
  bool begun = false;
  std::uint64_t end = 0;
  while (true) {
    absl::StatusOr<std::optional<LogIndexRecord>> record = RecordAt(record_at_);
    if (!record.ok()) {
      return record.status();
    }
    if (!record->has_value()) {
      break;
    }
    const std::uint64_t record_end = record_offset_ + (*record)->length;
    const std::uint64_t here = begun ? end : std::max(offset_, record_offset_);
    if (record_end <= here) {  // Before where we begin.
      record_at_ += kLogIndexRecordBytes;
      record_offset_ = record_end;
      continue;
    }
    if (!begun) {
      begun = true;
      run.stream = (*record)->stream;
      run.offset = here;
      run.unix_nanos = (*record)->unix_nanos;
    } else if ((*record)->stream != run.stream) {
      break;
    }
    end = std::min(record_end, run.offset + kRunBytesMax);
    if (end < record_end || end == run.offset + kRunBytesMax) {
      break;
    }
    record_at_ += kLogIndexRecordBytes;
    record_offset_ = record_end;
  }
  if (!begun) {
    return std::nullopt;
  }
  run.bytes.resize(end - run.offset);
  std::size_t done = 0;
  while (done < run.bytes.size()) {
    const auto at = static_cast<off_t>(run.offset - pair_->first_offset + done);
    const ssize_t n = ::pread(pair_->log.get(), run.bytes.data() + done, run.bytes.size() - done, at);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      return ErrnoStatus("reading " + path_, errno);
    }
    if (n == 0) {
      return absl::InvalidArgumentError(path_ + " is shorter than its index says");
    }
    done += static_cast<std::size_t>(n);
  }
  offset_ = end;
  return run;
}

absl::StatusOr<std::optional<OutputRun>> OutputReader::Next() {
  while (true) {
    if (!pair_) {
      const absl::StatusOr<bool> opened = OpenFor(offset_);
      if (!opened.ok()) {
        return opened.status();
      }
      if (!*opened) {
        return std::nullopt;
      }
    }
    absl::StatusOr<std::optional<OutputRun>> run = NextHere();
    if (!run.ok() || run->has_value()) {
      return run;
    }
    struct stat current {};
    if (::stat(path_.c_str(), &current) < 0) {
      if (errno != ENOENT) {
        return ErrnoStatus("looking at " + path_, errno);
      }
      return std::nullopt;  // Between the renames of a rotation; or it has been removed.
    }
    if (current.st_ino == pair_->inode) {
      return std::nullopt;
    }
    // Rotated away: complete by now, also what was added between our look at it and at the name.
    run = NextHere();
    if (!run.ok() || run->has_value()) {
      return run;
    }
    const std::uint64_t inode = pair_->inode;
    const std::uint64_t record_at = record_at_;
    const std::uint64_t record_offset = record_offset_;
    Pair before = *std::move(pair_);
    pair_.reset();
    const absl::StatusOr<bool> opened = OpenFor(offset_);
    if (!opened.ok()) {
      return opened.status();
    }
    if (!*opened || pair_->inode == inode) {  // The next file is not there yet.
      pair_ = std::move(before);
      record_at_ = record_at;
      record_offset_ = record_offset;
      return std::nullopt;
    }
  }
}

}  // namespace rayctl::process
