#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "worker/process/output_log.h"

namespace rayctl::process {

// A piece of a rank's output that came on one stream.
struct OutputRun {
  OutputStream stream = OutputStream::kStdout;
  std::uint64_t offset = 0;      // Of its first byte, counted from the rank's first.
  std::uint64_t unix_nanos = 0;  // When its first byte came.
  std::string bytes;             // At most kRunBytesMax.
};

// Reads a rank's log from the oldest byte that is left, through rotated files and while it is being written. It holds
// the file it is in open, so a rotation takes nothing away from under it; a reader that is several rotations behind
// goes on at the oldest byte that is left. One thread, no locks: the writer knows nothing of it.
class OutputReader {
 public:
  static constexpr std::size_t kRunBytesMax = 64U << 10;

  // `from`: the offset to begin at.
  explicit OutputReader(std::string path, std::uint64_t from = 0) : path_(std::move(path)), offset_(from) {}

  // The next piece; nullopt: nothing more now. A log that does not exist yet is an empty one. INVALID_ARGUMENT: the
  // index is damaged; other codes: the disk says no.
  absl::StatusOr<std::optional<OutputRun>> Next();

  std::uint64_t offset() const { return offset_; }  // Of the next byte.
  // `log_bytes` of RankExited: nothing will ever follow.
  bool HasAll(std::uint64_t log_bytes) const { return offset_ >= log_bytes; }

 private:
  struct Pair {
    UniqueFd log;
    UniqueFd index;
    std::uint64_t inode = 0;
    std::uint64_t first_offset = 0;
  };
  absl::StatusOr<std::optional<Pair>> OpenPair(std::uint32_t age) const;
  absl::StatusOr<bool> OpenFor(std::uint64_t offset);
  absl::StatusOr<std::optional<LogIndexRecord>> RecordAt(std::uint64_t at) const;
  absl::StatusOr<std::optional<OutputRun>> NextHere();

  std::string path_;
  std::uint64_t offset_;
  std::optional<Pair> pair_;
  std::uint64_t record_at_ = 0;      // In the index file: the record that covers offset_, or the one to come.
  std::uint64_t record_offset_ = 0;  // Of that record's first byte.
};

}  // namespace rayctl::process
