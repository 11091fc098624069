#include "daemon/agent/output_scan.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/status_text.h"
#include "fmt/format.h"

namespace rayctl::agent {
namespace {

using process::OutputReader;

process::OutputChoice ChoiceFor(const link::OpenOutput& what, Rank rank) {
  process::OutputChoice choice;
  if (what.since) {
    choice.since_unix_nanos =
        static_cast<std::uint64_t>(std::max<std::int64_t>(0, what.since->time_since_epoch().count()));
  }
  if (!what.streams.empty()) {
    for (const OutputStream stream : {OutputStream::kStdout, OutputStream::kStderr}) {
      choice.Of(stream).wanted = std::find(what.streams.begin(), what.streams.end(), stream) != what.streams.end();
    }
  }
  for (const link::OutputPosition& position : what.resume) {
    if (position.rank == rank) {
      choice.Of(position.stream).from = std::max(choice.Of(position.stream).from, position.offset);
    }
  }
  return choice;
}

// The current one is missing for a moment in every rotation.
bool HasLog(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0 || ::access(process::LogPath(path, 1).c_str(), F_OK) == 0;
}

}  // namespace

absl::StatusOr<OutputScan> OutputScan::Open(const link::OpenOutput& what, const LogOf& log_of, const IsLive& is_live) {
  std::optional<LinePattern> pattern;
  if (!what.grep.empty()) {
    absl::StatusOr<LinePattern> parsed = LinePattern::Parse(what.grep);
    if (!parsed.ok()) {
      return parsed.status();
    }
    pattern = *std::move(parsed);
  }
  OutputScan scan;
  scan.by_time_ = what.by_time;
  for (const Rank rank : what.ranks) {
    const std::string path = log_of(rank);
    const bool live = is_live(rank);
    if (!live && !HasLog(path)) {
      scan.ranks_without_log_.push_back(rank);
      continue;
    }
    Source source{rank, OutputReader(path, ChoiceFor(what, rank)), std::nullopt, !what.follow || !live, false};
    if (pattern) {
      source.filter.emplace(*pattern);
    }
    scan.sources_.push_back(std::move(source));
  }
  return scan;
}

void OutputScan::RankEnded(Rank rank) {
  for (Source& source : sources_) {
    source.complete = source.complete || source.rank == rank;
  }
}

// What comes next of a rank; nullopt: its log is broken, which was said. The end of what is complete is told as not yet
// known, for the filter may have let go of a last line.
std::optional<OutputReader::Peeked> OutputScan::Peek(Source& source) {
  const absl::StatusOr<OutputReader::Peeked> peeked = source.reader.Peek();
  if (!peeked.ok()) {
    Break(source, peeked.status());
    return std::nullopt;
  }
  if (peeked->sight == OutputReader::Sight::kNothing && source.complete) {
    Finish(source);
    return OutputReader::Peeked{.sight = OutputReader::Sight::kNotYet};
  }
  return *peeked;
}

// In turn, so that a rank that writes much does not keep the others waiting.
OutputScan::Chosen OutputScan::ChooseInTurn() {
  bool not_yet = false;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    Source& source = sources_[turn_];
    turn_ = (turn_ + 1) % sources_.size();
    if (source.sent) {
      continue;
    }
    const std::optional<OutputReader::Peeked> peeked = Peek(source);
    if (peeked && peeked->sight == OutputReader::Sight::kOutput) {
      return {.source = &source};
    }
    not_yet = not_yet || !peeked || peeked->sight == OutputReader::Sight::kNotYet;
  }
  return {.not_yet = not_yet};
}

// The rank whose next write is the oldest, up to the next write of another.
OutputScan::Chosen OutputScan::ChooseByTime() {
  Chosen chosen;
  std::uint64_t first = OutputReader::kAnyTime;
  std::uint64_t second = OutputReader::kAnyTime;
  for (Source& source : sources_) {
    if (source.sent) {
      continue;
    }
    const std::optional<OutputReader::Peeked> peeked = Peek(source);
    if (!peeked || peeked->sight == OutputReader::Sight::kNotYet) {
      return {.not_yet = true};
    }
    if (peeked->sight == OutputReader::Sight::kNothing) {
      continue;
    }
    if (chosen.source == nullptr || peeked->unix_nanos < first) {
      second = first;
      first = peeked->unix_nanos;
      chosen.source = &source;
    } else {
      second = std::min(second, peeked->unix_nanos);
    }
  }
  if (chosen.source != nullptr) {
    chosen.until = std::min(second, first + kPieceNanosMax);
  }
  return chosen;
}

void OutputScan::Finish(Source& source) {
  source.sent = true;
  if (source.filter) {
    std::vector<OutputPiece> kept;
    source.filter->End(kept);
    for (OutputPiece& piece : kept) {
      queue_.emplace_back(Piece{source.rank, std::move(piece)});
    }
  }
}

void OutputScan::Break(Source& source, const absl::Status& why) {
  Finish(source);
  queue_.emplace_back(Remark{fmt::format("the output of rank {} cannot be read further: {}", source.rank, Text(why))});
}

OutputScan::Step OutputScan::TakeQueued() {
  Step step = std::visit([](auto& next) -> Step { return std::move(next); }, queue_.front());
  queue_.pop_front();
  return step;
}

OutputScan::Step OutputScan::Next() {
  for (std::size_t looked_through = 0; queue_.empty() && looked_through < kStepBytesMax;) {
    if (std::all_of(sources_.begin(), sources_.end(), [](const Source& source) { return source.sent; })) {
      return AllSent{};
    }
    const Chosen chosen = by_time_ ? ChooseByTime() : ChooseInTurn();
    if (chosen.source == nullptr) {
      if (!queue_.empty()) {
        break;
      }
      return chosen.not_yet ? Step(NotYet{}) : Step(Nothing{});
    }
    Source& source = *chosen.source;
    absl::StatusOr<std::optional<process::OutputRun>> run = source.reader.Next(chosen.until);
    if (!run.ok()) {
      Break(source, run.status());
      break;
    }
    if (!run->has_value()) {
      break;  // What was seen is gone again: the next look tells.
    }
    looked_through += (*run)->bytes.size();
    if ((*run)->lost_before != 0) {
      queue_.emplace_back(
          Remark{fmt::format("{} bytes of the output of rank {} were rotated away before they were read",
                             (*run)->lost_before, source.rank)});
    }
    if (source.filter) {
      std::vector<OutputPiece> kept;
      source.filter->Take(**run, kept);
      for (OutputPiece& piece : kept) {
        queue_.emplace_back(Piece{source.rank, std::move(piece)});
      }
    } else if (!(*run)->bytes.empty()) {
      const std::uint64_t end = (*run)->offset + (*run)->bytes.size();
      queue_.emplace_back(Piece{source.rank, {(*run)->stream, (*run)->unix_nanos, std::move((*run)->bytes), end}});
    }
  }
  return queue_.empty() ? Step(NotYet{}) : TakeQueued();
}

}  // namespace rayctl::agent
