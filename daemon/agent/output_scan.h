#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "base/line_pattern.h"
#include "daemon/agent/line_filter.h"
#include "daemon/link/messages.h"
#include "worker/process/output_reader.h"

namespace rayctl::agent {

// What one order for output gives, piece by piece: the logs of some ranks of one attempt, filtered and put in order.
// Reads files, waits for nothing. Agent loop only.
class OutputScan {
 public:
  using LogOf = std::function<std::string(Rank)>;           // The path of its log.
  using IsLive = std::function<bool(Rank)>;                 // Whether it may still write.
  static constexpr std::size_t kStepBytesMax = 256U << 10;  // So much is looked through before it is others' turn.
  // In order of time, one piece holds no more than what was written in this time, so that the head can put pieces of
  // several nodes in order.
  static constexpr std::uint64_t kPieceNanosMax = 100'000'000;

  // INVALID_ARGUMENT: the expression is wrong.
  static absl::StatusOr<OutputScan> Open(const link::OpenOutput& what, const LogOf& log_of, const IsLive& is_live);

  // Asked for, and no log of theirs is kept here, nor will be one.
  const std::vector<Rank>& ranks_without_log() const { return ranks_without_log_; }
  // Its log is complete: where the file ends, it ends.
  void RankEnded(Rank rank);

  struct Piece {
    Rank rank = 0;
    OutputPiece piece;
  };
  struct Remark {
    std::string text;
  };
  struct Nothing {};  // Until a log grows, or a rank ends.
  struct NotYet {};   // Nothing found so far: ask again.
  struct AllSent {};
  using Step = std::variant<Piece, Remark, Nothing, NotYet, AllSent>;
  Step Next();

 private:
  struct Source {
    Rank rank = 0;
    process::OutputReader reader;
    std::optional<LineFilter> filter;
    bool complete = false;
    bool sent = false;
  };
  struct Chosen {
    Source* source = nullptr;  // Null: nothing to read now.
    bool not_yet = false;
    std::uint64_t until = process::OutputReader::kAnyTime;
  };

  OutputScan() = default;
  std::optional<process::OutputReader::Peeked> Peek(Source& source);
  Chosen ChooseInTurn();
  Chosen ChooseByTime();
  void Finish(Source& source);
  void Break(Source& source, const absl::Status& why);
  Step TakeQueued();

  bool by_time_ = false;
  std::vector<Source> sources_;
  std::vector<Rank> ranks_without_log_;
  std::size_t turn_ = 0;
  std::deque<std::variant<Piece, Remark>> queue_;
};

}  // namespace rayctl::agent
