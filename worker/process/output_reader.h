#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "worker/process/output_log.h"

namespace rayctl::process {

// A piece of a rank's output that came on one stream.
struct OutputRun {
  OutputStream stream = OutputStream::kStdout;
  std::uint64_t offset = 0;       // Of its first byte, counted from the rank's first.
  std::uint64_t unix_nanos = 0;   // When its first byte came.
  std::string bytes;              // At most kRunBytesMax. None: so far there was only what is not wanted; ask again.
  std::uint64_t lost_before = 0;  // So many bytes before it were rotated away before they were read.
};

// Which part of a rank's output is read.
struct OutputChoice {
  struct Stream {
    bool wanted = true;
    std::uint64_t from = 0;  // The offset to begin at.
  };
  Stream out;
  Stream err;
  std::uint64_t since_unix_nanos = 0;  // What came before this is passed over.

  const Stream& Of(OutputStream stream) const { return stream == OutputStream::kStdout ? out : err; }
  Stream& Of(OutputStream stream) { return stream == OutputStream::kStdout ? out : err; }
};

// Reads a rank's log from the oldest byte that is left, through rotated files and while it is being written. It holds
// the file it is in open, so a rotation takes nothing away from under it; a reader that is several rotations behind
// goes on at the oldest byte that is left. One thread, no locks: the writer knows nothing of it.
class OutputReader {
 public:
  static constexpr std::size_t kRunBytesMax = 64U << 10;
  static constexpr std::uint64_t kAnyTime = std::numeric_limits<std::uint64_t>::max();
  // So many pieces that are not wanted are passed over at once; then it is the caller's turn.
  static constexpr std::size_t kSkippedMax = 16U << 10;

  // `from`: the offset to begin at.
  explicit OutputReader(std::string path, std::uint64_t from = 0)
      : OutputReader(std::move(path), OutputChoice{.out = {.from = from}, .err = {.from = from}}) {}
  OutputReader(std::string path, const OutputChoice& choice);

  // The next piece, of what was written until then (the first write of it in any case); nullopt: nothing more now. A
  // log that does not exist yet is an empty one. INVALID_ARGUMENT: the index is damaged; other codes: the disk says no.
  absl::StatusOr<std::optional<OutputRun>> Next(std::uint64_t until_unix_nanos = kAnyTime);

  enum class Sight { kOutput, kNothing, kNotYet };
  struct Peeked {
    Sight sight = Sight::kNothing;  // kNotYet: so far there was only what is not wanted; ask again.
    std::uint64_t unix_nanos = 0;   // Of the next piece.
  };
  absl::StatusOr<Peeked> Peek();

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
  absl::StatusOr<std::optional<LogIndexRecord>> RecordAt(std::uint64_t at);
  bool Wanted(const LogIndexRecord& record) const;
  void Pass(const LogIndexRecord& record);
  absl::StatusOr<Peeked> FindHere();
  absl::StatusOr<OutputRun> TakeHere(std::uint64_t until_unix_nanos);

  std::string path_;
  OutputChoice choice_;
  std::uint64_t offset_;
  std::uint64_t lost_ = 0;  // Rotated away before offset_ and not yet told.
  std::optional<Pair> pair_;
  std::uint64_t record_at_ = 0;      // In the index file: the record that covers offset_, or the one to come.
  std::uint64_t record_offset_ = 0;  // Of that record's first byte.
  std::string index_bytes_;          // A part of the index file, from index_at_.
  std::uint64_t index_at_ = 0;
};

}  // namespace rayctl::process
