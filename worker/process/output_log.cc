#include "worker/process/output_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/errno_status.h"
#include "worker/process/worker_process.h"

namespace rayctl::process {

namespace {

constexpr mode_t kLogMode = 0600;

void PutInteger(std::string& out, std::uint64_t value, unsigned bytes) {
  for (unsigned i = 0; i < bytes; ++i) {
    out.push_back(static_cast<char>((value >> (8 * i)) & 0xFFU));
  }
}

std::uint64_t GetInteger(std::string_view bytes, std::size_t at, unsigned count) {
  std::uint64_t value = 0;
  for (unsigned i = 0; i < count; ++i) {
    value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  }
  return value;
}

// How many of `bytes` were written, and why not all of them.
std::pair<std::size_t, int> WriteAll(int fd, std::string_view bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0) {
      if (errno == EINTR) {
        continue;
      }
      return {done, errno};
    }
    done += static_cast<std::size_t>(n);
  }
  return {done, 0};
}

absl::StatusOr<struct stat> StatOf(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) < 0) {
    return ErrnoStatus("reading the size of " + path, errno);
  }
  return info;
}

absl::Status Rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) < 0 && errno != ENOENT) {
    return ErrnoStatus("renaming " + from, errno);
  }
  return absl::OkStatus();
}

// Bytes of the UTF-8 character that `text` begins with; 0: it does not begin with one.
std::size_t CharacterBytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) {
    return 1;
  }
  const std::size_t size = first >= 0xC2 && first <= 0xDF   ? 2
                           : (first & 0xF0U) == 0xE0        ? 3
                           : first >= 0xF0 && first <= 0xF4 ? 4
                                                            : 0;
  if (size == 0 || text.size() < size) {
    return 0;
  }
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) {
      return 0;
    }
  }
  const bool overlong = (first == 0xE0 && byte(1) < 0xA0) || (first == 0xF0 && byte(1) < 0x90);
  const bool surrogate = first == 0xED && byte(1) >= 0xA0;
  const bool beyond = first == 0xF4 && byte(1) >= 0x90;
  return overlong || surrogate || beyond ? 0 : size;
}

}  // namespace

std::string Encode(const LogIndexHeader& header) {
  std::string bytes(kLogIndexMagic);
  PutInteger(bytes, header.version, 4);
  PutInteger(bytes, 0, 4);
  PutInteger(bytes, header.first_offset, 8);
  PutInteger(bytes, header.inode, 8);
  return bytes;
}

std::string Encode(const LogIndexRecord& record) {
  std::string bytes;
  PutInteger(bytes, record.unix_nanos, 8);
  PutInteger(bytes, record.length, 4);
  PutInteger(bytes, static_cast<std::uint64_t>(record.stream), 1);
  PutInteger(bytes, 0, 3);
  return bytes;
}

absl::StatusOr<LogIndexHeader> DecodeLogIndexHeader(std::string_view bytes) {
  if (bytes.size() < kLogIndexHeaderBytes || bytes.substr(0, kLogIndexMagic.size()) != kLogIndexMagic) {
    return absl::InvalidArgumentError("not the index of a log");
  }
  LogIndexHeader header;
  header.version = static_cast<std::uint32_t>(GetInteger(bytes, 8, 4));
  if (header.version != kLogIndexVersion) {
    return absl::InvalidArgumentError("a log index of version " + std::to_string(header.version) +
                                      "; this program reads " + std::to_string(kLogIndexVersion));
  }
  header.first_offset = GetInteger(bytes, 16, 8);
  header.inode = GetInteger(bytes, 24, 8);
  return header;
}

absl::StatusOr<LogIndexRecord> DecodeLogIndexRecord(std::string_view bytes) {
  LogIndexRecord record;
  if (bytes.size() < kLogIndexRecordBytes) {
    return absl::InvalidArgumentError("a torn record in a log index");
  }
  record.unix_nanos = GetInteger(bytes, 0, 8);
  record.length = static_cast<std::uint32_t>(GetInteger(bytes, 8, 4));
  const std::uint64_t stream = GetInteger(bytes, 12, 1);
  if (stream != static_cast<std::uint64_t>(OutputStream::kStdout) &&
      stream != static_cast<std::uint64_t>(OutputStream::kStderr)) {
    return absl::InvalidArgumentError("a log index names stream " + std::to_string(stream));
  }
  record.stream = static_cast<OutputStream>(stream);
  return record;
}

std::string LogPath(const std::string& path, std::uint32_t age) {
  return age == 0 ? path : path + "." + std::to_string(age);
}

std::string LogIndexPath(const std::string& path, std::uint32_t age) { return LogPath(path, age) + ".idx"; }

absl::StatusOr<OutputLog> OutputLog::Open(OutputLogOptions options) {
  if (options.bytes_max == 0) {
    options.bytes_max = kLogBytesMaxDefault;
  }
  if (options.files_max == 0) {
    options.files_max = kLogFilesMaxDefault;
  }
  const std::size_t slash = options.path.rfind('/');
  if (slash != std::string::npos && slash > 0) {
    if (absl::Status made = MakeFolders(options.path.substr(0, slash)); !made.ok()) {
      return made;
    }
  }
  OutputLog log(std::move(options));
  if (absl::Status opened = log.OpenCurrent(); !opened.ok()) {
    return opened;
  }
  return log;
}

absl::Status OutputLog::OpenCurrent() {
  constexpr int kFlags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW;
  const std::string index_path = LogIndexPath(options_.path, 0);
  log_.Reset(::open(options_.path.c_str(), kFlags, kLogMode));
  if (!log_.valid()) {
    return ErrnoStatus("opening log " + options_.path, errno);
  }
  const absl::StatusOr<struct stat> info = StatOf(log_.get(), options_.path);
  if (!info.ok()) {
    return info.status();
  }
  bytes_ = static_cast<std::uint64_t>(info->st_size);
  index_.Reset(::open(index_path.c_str(), kFlags, kLogMode));
  if (!index_.valid()) {
    return ErrnoStatus("opening log index " + index_path, errno);
  }
  const absl::StatusOr<struct stat> index_info = StatOf(index_.get(), index_path);
  if (!index_info.ok()) {
    return index_info.status();
  }
  std::array<char, kLogIndexHeaderBytes> bytes{};
  const ssize_t n = ::pread(index_.get(), bytes.data(), bytes.size(), 0);
  const absl::StatusOr<LogIndexHeader> header =
      DecodeLogIndexHeader({bytes.data(), static_cast<std::size_t>(n < 0 ? 0 : n)});
  if (!header.ok() || header->inode != info->st_ino) {
    if (absl::Status started = StartIndex(info->st_ino); !started.ok()) {
      return started;
    }
  } else {
    first_offset_ = header->first_offset;
    const std::uint64_t records =
        (static_cast<std::uint64_t>(index_info->st_size) - kLogIndexHeaderBytes) / kLogIndexRecordBytes;
    index_bytes_ = kLogIndexHeaderBytes + records * kLogIndexRecordBytes;
    if (::ftruncate(index_.get(), static_cast<off_t>(index_bytes_)) < 0) {
      return ErrnoStatus("cutting a torn record off " + index_path, errno);
    }
    // Bytes that no record names were written right before their writer died; nobody can have read them.
    std::uint64_t named = 0;
    for (std::uint64_t i = 0; i < records; ++i) {
      std::array<char, kLogIndexRecordBytes> raw{};
      const auto at = static_cast<off_t>(kLogIndexHeaderBytes + i * kLogIndexRecordBytes);
      if (::pread(index_.get(), raw.data(), raw.size(), at) == static_cast<ssize_t>(raw.size())) {
        named += static_cast<std::uint64_t>(GetInteger({raw.data(), raw.size()}, 8, 4));
      }
    }
    if (named < bytes_) {
      if (::ftruncate(log_.get(), static_cast<off_t>(named)) < 0) {
        return ErrnoStatus("cutting unnamed bytes off " + options_.path, errno);
      }
      bytes_ = named;
    }
    return absl::OkStatus();
  }
  if (bytes_ > 0) {  // A log without a usable index: it counts as one piece of stdout of an unknown time.
    const std::uint64_t whole = bytes_;
    LogIndexRecord record;
    for (std::uint64_t named = 0; named < whole; named += record.length) {
      record.length = static_cast<std::uint32_t>(std::min<std::uint64_t>(whole - named, 1U << 30));
      if (const auto [done, error] = WriteAll(index_.get(), Encode(record)); error != 0) {
        return ErrnoStatus("writing log index " + index_path, error);
      }
      index_bytes_ += kLogIndexRecordBytes;
    }
  }
  return absl::OkStatus();
}

absl::Status OutputLog::StartIndex(std::uint64_t inode) {
  const std::string path = LogIndexPath(options_.path, 0);
  if (::ftruncate(index_.get(), 0) < 0) {
    return ErrnoStatus("emptying log index " + path, errno);
  }
  LogIndexHeader header;
  header.first_offset = first_offset_;
  header.inode = inode;
  if (const auto [done, error] = WriteAll(index_.get(), Encode(header)); error != 0) {
    return ErrnoStatus("writing log index " + path, error);
  }
  index_bytes_ = kLogIndexHeaderBytes;
  return absl::OkStatus();
}

absl::Status OutputLog::Rotate() {
  for (std::uint32_t age = options_.files_max; age > 0; --age) {
    absl::Status moved = Rename(LogPath(options_.path, age - 1), LogPath(options_.path, age));
    moved.Update(Rename(LogIndexPath(options_.path, age - 1), LogIndexPath(options_.path, age)));
    if (!moved.ok()) {
      return moved;
    }
  }
  first_offset_ += bytes_;
  bytes_ = 0;
  return OpenCurrent();
}

absl::Status OutputLog::Append(OutputStream stream, std::string_view bytes, WallTime now) {
  tail_.append(bytes);
  if (tail_.size() > 2 * kLastOutputBytes) {
    tail_.erase(0, tail_.size() - kLastOutputBytes - 1);  // One more, to see whether the cut is at a line.
  }
  if (lost_bytes_ > 0) {
    const std::string note = "\n[rayctl: " + std::to_string(lost_bytes_) + " bytes of output are missing here]\n";
    if (absl::Status written = Write(OutputStream::kStderr, note, now); !written.ok()) {
      lost_bytes_ += bytes.size();
      return written;
    }
    lost_bytes_ = 0;
  }
  absl::Status written = Write(stream, bytes, now);
  return written;
}

absl::Status OutputLog::Write(OutputStream stream, std::string_view bytes, WallTime now) {
  if (bytes.empty()) {
    return absl::OkStatus();
  }
  if (!log_.valid() || !index_.valid() || (bytes_ > 0 && bytes_ + bytes.size() > options_.bytes_max)) {
    absl::Status ready = log_.valid() && index_.valid() ? Rotate() : OpenCurrent();
    if (!ready.ok()) {
      log_.Reset();
      index_.Reset();
      lost_bytes_ += bytes.size();
      return ready;
    }
  }
  const auto [done, error] = WriteAll(log_.get(), bytes);
  if (done > 0) {
    LogIndexRecord record;
    record.unix_nanos = static_cast<std::uint64_t>(now.time_since_epoch().count());
    record.length = static_cast<std::uint32_t>(done);
    record.stream = stream;
    if (const auto [index_done, index_error] = WriteAll(index_.get(), Encode(record)); index_error != 0) {
      // A reader goes by the index, so bytes without a record were never written.
      if (::ftruncate(index_.get(), static_cast<off_t>(index_bytes_)) < 0 ||
          ::ftruncate(log_.get(), static_cast<off_t>(bytes_)) < 0) {
        log_.Reset();
        index_.Reset();
      }
      lost_bytes_ += bytes.size();
      return ErrnoStatus("writing log index " + LogIndexPath(options_.path, 0), index_error);
    }
    index_bytes_ += kLogIndexRecordBytes;
    bytes_ += done;
  }
  if (error != 0) {
    lost_bytes_ += bytes.size() - done;
    return ErrnoStatus("writing log " + options_.path, error);
  }
  return absl::OkStatus();
}

std::string OutputLog::LastOutput() const {
  if (tail_.size() <= kLastOutputBytes) {
    return ToUtf8(tail_);
  }
  const std::size_t cut = tail_.size() - kLastOutputBytes;
  // The line that the cut falls into goes, unless nothing would be left.
  const std::size_t line_end = tail_.find('\n', cut - 1);
  const bool keep_whole = line_end == std::string::npos || line_end + 1 >= tail_.size();
  return ToUtf8(std::string_view(tail_).substr(keep_whole ? cut : line_end + 1));
}

std::string ToUtf8(std::string_view bytes) {
  std::string result;
  result.reserve(bytes.size());
  while (!bytes.empty()) {
    const std::size_t size = CharacterBytes(bytes);
    if (size == 0) {
      result.push_back('?');
      bytes.remove_prefix(1);
    } else {
      result.append(bytes.substr(0, size));
      bytes.remove_prefix(size);
    }
  }
  return result;
}

}  // namespace rayctl::process
