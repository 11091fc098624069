#include "worker/process/output_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include "base/errno_status.h"

namespace rayctl::process {

namespace {

constexpr std::uint32_t kAgesMax = 1000;  // Where a search for rotated files gives up.
constexpr int kSearchesMax = 8;           // While files are being renamed under the search.
constexpr std::size_t kIndexReadBytes = 256 * kLogIndexRecordBytes;

absl::StatusOr<UniqueFd> OpenToRead(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() && errno != ENOENT) {
    return ErrnoStatus("opening " + path, errno);
  }
  return fd;
}

}  // namespace

OutputReader::OutputReader(std::string path, const OutputChoice& choice)
    : path_(std::move(path)), choice_(choice), offset_(std::min(choice.out.from, choice.err.from)) {
  if (choice.out.wanted != choice.err.wanted) {
    offset_ = choice.out.wanted ? choice.out.from : choice.err.from;
  }
}

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
      index_bytes_.clear();
      pair_ = std::move(best);
      return true;
    }
    if (!found_gap) {
      return false;
    }
  }
  return false;
}

absl::StatusOr<std::optional<LogIndexRecord>> OutputReader::RecordAt(std::uint64_t at) {
  // Records are only added, so what was read of the file once stays true.
  if (at < index_at_ || at + kLogIndexRecordBytes > index_at_ + index_bytes_.size()) {
    index_bytes_.resize(kIndexReadBytes);
    const ssize_t n = ::pread(pair_->index.get(), index_bytes_.data(), index_bytes_.size(), static_cast<off_t>(at));
    index_bytes_.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
    index_at_ = at;
    if (n < 0) {
      return ErrnoStatus("reading the index of " + path_, errno);
    }
    if (index_bytes_.size() < kLogIndexRecordBytes) {
      return std::nullopt;  // Not there yet, or torn.
    }
  }
  absl::StatusOr<LogIndexRecord> record =
      DecodeLogIndexRecord(std::string_view(index_bytes_).substr(at - index_at_, kLogIndexRecordBytes));
  if (!record.ok()) {
    return record.status();
  }
  return *record;
}

bool OutputReader::Wanted(const LogIndexRecord& record) const {
  const OutputChoice::Stream& stream = choice_.Of(record.stream);
  return stream.wanted && record.unix_nanos >= choice_.since_unix_nanos &&
         record_offset_ + record.length > std::max(offset_, stream.from);
}

void OutputReader::Pass(const LogIndexRecord& record) {
  record_at_ += kLogIndexRecordBytes;
  record_offset_ += record.length;
  offset_ = std::max(offset_, record_offset_);
}

// The next wanted record of this file; record_at_ is at it then.
absl::StatusOr<OutputReader::Peeked> OutputReader::FindHere() {
  if (offset_ < record_offset_) {  // This file begins after where we were.
    // Who goes on at an offset of one stream has had what came on the other before it.
    const std::uint64_t known = std::max({offset_, choice_.out.from, choice_.err.from});
    lost_ += record_offset_ - std::min(record_offset_, known);
    offset_ = record_offset_;
  }
  for (std::size_t skipped = 0; skipped < kSkippedMax; ++skipped) {
    const absl::StatusOr<std::optional<LogIndexRecord>> record = RecordAt(record_at_);
    if (!record.ok()) {
      return record.status();
    }
    if (!record->has_value()) {
      return Peeked{Sight::kNothing};
    }
    if (Wanted(**record)) {
      return Peeked{Sight::kOutput, (*record)->unix_nanos};
    }
    if ((*record)->unix_nanos < choice_.since_unix_nanos) {
      lost_ = 0;  // Older still, and nobody asked for it.
    }
    Pass(**record);
  }
  return Peeked{Sight::kNotYet};
}

// After FindHere gave kOutput.
absl::StatusOr<OutputRun> OutputReader::TakeHere(std::uint64_t until_unix_nanos) {
  OutputRun run;
  std::uint64_t end = 0;
  while (true) {
    const absl::StatusOr<std::optional<LogIndexRecord>> record = RecordAt(record_at_);
    if (!record.ok()) {
      return record.status();
    }
    if (!record->has_value()) {
      break;
    }
    const std::uint64_t record_end = record_offset_ + (*record)->length;
    if (end == 0) {
      run.stream = (*record)->stream;
      run.offset = std::max({offset_, record_offset_, choice_.Of(run.stream).from});
      run.unix_nanos = (*record)->unix_nanos;
      end = run.offset;
    } else if ((*record)->stream != run.stream || !Wanted(**record) || (*record)->unix_nanos > until_unix_nanos) {
      break;
    }
    end = std::min(record_end, run.offset + kRunBytesMax);
    offset_ = end;
    if (end < record_end) {
      break;
    }
    Pass(**record);
    if (end == run.offset + kRunBytesMax) {
      break;
    }
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
  run.lost_before = std::exchange(lost_, 0);
  return run;
}

absl::StatusOr<OutputReader::Peeked> OutputReader::Peek() {
  while (true) {
    if (!pair_) {
      const absl::StatusOr<bool> opened = OpenFor(offset_);
      if (!opened.ok()) {
        return opened.status();
      }
      if (!*opened) {
        return Peeked{Sight::kNothing};
      }
    }
    absl::StatusOr<Peeked> found = FindHere();
    if (!found.ok() || found->sight != Sight::kNothing) {
      return found;
    }
    struct stat current {};
    if (::stat(path_.c_str(), &current) < 0) {
      if (errno != ENOENT) {
        return ErrnoStatus("looking at " + path_, errno);
      }
      return found;  // Between the renames of a rotation; or it has been removed.
    }
    if (current.st_ino == pair_->inode) {
      return found;
    }
    // Rotated away: complete by now, also what was added between our look at it and at the name.
    found = FindHere();
    if (!found.ok() || found->sight != Sight::kNothing) {
      return found;
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
      return found;
    }
  }
}

absl::StatusOr<std::optional<OutputRun>> OutputReader::Next(std::uint64_t until_unix_nanos) {
  const absl::StatusOr<Peeked> found = Peek();
  if (!found.ok()) {
    return found.status();
  }
  switch (found->sight) {
    case Sight::kNothing:
      return std::nullopt;
    case Sight::kNotYet:
      return OutputRun{.offset = offset_};
    case Sight::kOutput:
      break;
  }
  return TakeHere(until_unix_nanos);
}

}  // namespace rayctl::process
