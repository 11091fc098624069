#include "daemon/agent/line_filter.h"

#include <algorithm>
#include <string_view>

namespace rayctl::agent {

void LineFilter::Take(const process::OutputRun& run, std::vector<OutputPiece>& kept) {
  Begun& line = begun_.at(run.stream == OutputStream::kStdout ? 0 : 1);
  std::string_view rest = run.bytes;
  std::uint64_t offset = run.offset;
  while (!rest.empty()) {
    if (line.text.empty()) {
      line.unix_nanos = run.unix_nanos;
    }
    const std::size_t found = rest.find('\n');
    const std::size_t room = kLineBytesMax - line.text.size();
    const std::size_t length = std::min(found == std::string_view::npos ? rest.size() : found + 1, room);
    line.text += rest.substr(0, length);
    rest.remove_prefix(length);
    offset += length;
    line.next_offset = offset;
    if (line.text.ends_with('\n') || line.text.size() == kLineBytesMax) {
      if (pattern_.Finds(line.text)) {
        Keep(run.stream, line, kept);
      }
      line.text.clear();
    }
  }
}

void LineFilter::End(std::vector<OutputPiece>& kept) {
  for (const OutputStream stream : {OutputStream::kStdout, OutputStream::kStderr}) {
    Begun& line = begun_.at(stream == OutputStream::kStdout ? 0 : 1);
    if (!line.text.empty() && pattern_.Finds(line.text)) {
      Keep(stream, line, kept);
    }
    line.text.clear();
  }
}

// Lines of one stream that follow each other travel together.
void LineFilter::Keep(OutputStream stream, const Begun& line, std::vector<OutputPiece>& kept) {
  if (!kept.empty() && kept.back().stream == stream &&
      kept.back().bytes.size() + line.text.size() <= process::OutputReader::kRunBytesMax) {
    kept.back().bytes += line.text;
    kept.back().next_offset = line.next_offset;
    return;
  }
  for (std::size_t at = 0; at < line.text.size(); at += process::OutputReader::kRunBytesMax) {
    // A reader that goes on after a part of a long line gets that line again rather than never.
    const std::string part = line.text.substr(at, process::OutputReader::kRunBytesMax);
    const bool last = at + part.size() == line.text.size();
    kept.push_back({stream, line.unix_nanos, part, last ? line.next_offset : 0});
  }
}

}  // namespace rayctl::agent
