#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/states.h"
#include "base/unique_fd.h"

// A rank's output on disk: `rank_0.log` has both streams raw, in the order in which they arrived; `rank_0.log.idx` says
// which bytes came when on which stream. When the log is full both become `.log.1` and `.log.1.idx`, older ones move
// on, and the oldest goes. Offsets count from the rank's first byte, whatever has been rotated away since.
namespace rayctl::process {

inline constexpr std::string_view kLogIndexMagic = "RCTLIDX\n";
inline constexpr std::uint32_t kLogIndexVersion = 1;
inline constexpr std::size_t kLogIndexHeaderBytes =
    32;  // magic, u32 version, u32 0, u64 first offset, u64 inode of the log
inline constexpr std::size_t kLogIndexRecordBytes = 16;  // u64 unix nanoseconds, u32 length, u8 stream, 3 zeros
inline constexpr std::size_t kLastOutputBytes = 4096;

inline constexpr std::uint64_t kLogBytesMaxDefault = 100ULL << 20;
inline constexpr std::uint32_t kLogFilesMaxDefault = 4;

struct LogIndexHeader {
  std::uint32_t version = kLogIndexVersion;
  std::uint64_t first_offset = 0;
  std::uint64_t inode = 0;  // Pairs the index with its log while the two are being renamed.
};
struct LogIndexRecord {
  std::uint64_t unix_nanos = 0;
  std::uint32_t length = 0;
  OutputStream stream = OutputStream::kStdout;
};
std::string Encode(const LogIndexHeader& header);
std::string Encode(const LogIndexRecord& record);
// INVALID_ARGUMENT: not an index, or of a version that we do not know.
absl::StatusOr<LogIndexHeader> DecodeLogIndexHeader(std::string_view bytes);
absl::StatusOr<LogIndexRecord> DecodeLogIndexRecord(std::string_view bytes);

// `rank_0.log`, `rank_0.log.1`, … and their indexes.
std::string LogPath(const std::string& path, std::uint32_t age);
std::string LogIndexPath(const std::string& path, std::uint32_t age);

struct OutputLogOptions {
  std::string path;
  std::uint64_t bytes_max = 0;  // 0: kLogBytesMaxDefault.
  std::uint32_t files_max = 0;  // Rotated ones kept beside the current one. 0: kLogFilesMaxDefault.
};

// Writes one rank's log. Never waits for a reader. One thread.
class OutputLog {
 public:
  // Makes the folders (0700). A log that is there already is continued.
  static absl::StatusOr<OutputLog> Open(OutputLogOptions options);

  OutputLog(OutputLog&&) noexcept = default;
  OutputLog& operator=(OutputLog&&) noexcept = default;

  // RESOURCE_EXHAUSTED and others: the bytes could not be kept (disk full); a line in the log says how many were lost
  // as soon as it can be written again. The rank is never made to wait for the disk.
  absl::Status Append(OutputStream stream, std::string_view bytes, WallTime now);

  std::uint64_t length() const { return first_offset_ + bytes_; }  // Of all that was ever written.
  // The last lines, at most kLastOutputBytes, cut at a line where there is one. Valid UTF-8: what is not becomes '?'.
  std::string LastOutput() const;

 private:
  explicit OutputLog(OutputLogOptions options) : options_(std::move(options)) {}
  absl::Status OpenCurrent();
  absl::Status StartIndex(std::uint64_t inode);
  absl::Status Rotate();
  absl::Status Write(OutputStream stream, std::string_view bytes, WallTime now);

  OutputLogOptions options_;
  UniqueFd log_;
  UniqueFd index_;
  std::uint64_t first_offset_ = 0;
  std::uint64_t bytes_ = 0;  // In the current file.
  std::uint64_t index_bytes_ = 0;
  std::uint64_t lost_bytes_ = 0;
  std::string tail_;
};

// Replaces what is not UTF-8 by '?', byte by byte.
std::string ToUtf8(std::string_view bytes);

}  // namespace rayctl::process
