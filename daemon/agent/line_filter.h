#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/line_pattern.h"
#include "base/states.h"
#include "worker/process/output_reader.h"

namespace rayctl::agent {

// A piece of one rank's output as it is sent.
struct OutputPiece {
  OutputStream stream = OutputStream::kStdout;
  std::uint64_t unix_nanos = 0;   // When its first byte came.
  std::string bytes;              // At most process::OutputReader::kRunBytesMax.
  std::uint64_t next_offset = 0;  // Where a reader of this stream goes on who has this.
};

// Lets through the lines of one rank's output that a pattern finds something in. The two streams have lines of their
// own, and a line that came in several pieces is one.
class LineFilter {
 public:
  // A longer line is taken for several.
  static constexpr std::size_t kLineBytesMax = 1U << 20;

  explicit LineFilter(LinePattern pattern) : pattern_(std::move(pattern)) {}

  // Adds to `kept` the lines that end with this piece.
  void Take(const process::OutputRun& run, std::vector<OutputPiece>& kept);
  // Nothing follows: what has begun is a line too.
  void End(std::vector<OutputPiece>& kept);

 private:
  struct Begun {
    std::string text;  // Of a line that has no end yet.
    std::uint64_t unix_nanos = 0;
    std::uint64_t next_offset = 0;
  };
  static void Keep(OutputStream stream, const Begun& line, std::vector<OutputPiece>& kept);

  LinePattern pattern_;
  std::array<Begun, 2> begun_;  // Of stdout and stderr.
};

}  // namespace rayctl::agent
