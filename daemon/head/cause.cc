#include "daemon/head/cause.h"

#include <fmt/format.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <csignal>
#include <tuple>

#include "base/units.h"

namespace rayctl::head {
namespace {

// What Gloo, NCCL, the TCP store and Python print when another rank went away. Lower case.
constexpr std::array<std::string_view, 6> kPeerLostMarks = {
    "connection closed by peer", "connection reset by peer", "broken pipe", "nccl", "socket timeout", "peer lost"};

bool Mentions(std::string_view text, std::string_view mark) {
  const auto same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
  };
  return std::search(text.begin(), text.end(), mark.begin(), mark.end(), same) != text.end();
}

constexpr std::int32_t kExitOutOfMemory = 137;
constexpr std::int32_t kExitSignalBase = 128;
constexpr std::int32_t kExitCancelled = 130;
constexpr std::int32_t kExitTimeout = 124;
constexpr std::int32_t kExitOther = 1;

std::string Bytes(std::uint64_t bytes) { return FormatBytes(static_cast<std::int64_t>(bytes)); }

Cause Describe(Rank rank, const RankRecord& record, const std::string& node) {
  const link::RankEnd& end = record.end;
  Cause cause;
  cause.rank = rank;
  cause.last_output = end.last_output;
  const std::string who = fmt::format("rank {} on {}", rank, node);
  if (record.state == WorkerState::kLost || end.lost) {
    cause.reason = Reason::kNodeLost;
    cause.exit_code = kExitOther;
    cause.message = end.start_error.empty() ? fmt::format("{} was lost", who)
                                            : fmt::format("{} was lost: {}", who, end.start_error);
  } else if (end.out_of_memory) {
    cause.reason = Reason::kOutOfMemory;
    cause.exit_code = kExitOutOfMemory;
    cause.message = end.memory_bytes_max == 0 ? fmt::format("{} was killed because memory ran out", who)
                                              : fmt::format("{} ran out of memory: used {} of {}", who,
                                                            Bytes(end.memory_peak_bytes), Bytes(end.memory_bytes_max));
  } else if (end.start_failed) {
    cause.reason = Reason::kStartFailed;
    cause.exit_code = end.exit_code == 126 || end.exit_code == 127 ? end.exit_code : kExitOther;
    cause.message = end.start_error.empty() ? fmt::format("{} could not be executed", who)
                                            : fmt::format("{} could not be executed: {}", who, end.start_error);
  } else if (end.signal != 0) {
    cause.reason = Reason::kSignaled;
    cause.exit_code = kExitSignalBase + end.signal;
    cause.message = fmt::format("{} was killed by signal {} ({})", who, end.signal, SignalName(end.signal));
  } else {
    cause.reason = Reason::kExited;
    cause.exit_code = end.exit_code;
    cause.message = fmt::format("{} exited with code {}", who, end.exit_code);
  }
  if (end.pids_max_reached != 0) {
    cause.message += fmt::format("; its job had reached the limit of {} processes and threads there (start --pids-max)",
                                 end.pids_max_reached);
  }
  return cause;
}

}  // namespace

std::int32_t ExitCodeOf(Reason reason) {
  switch (reason) {
    case Reason::kTimeout:
      return kExitTimeout;
    case Reason::kUser:
    case Reason::kClusterStopped:
      return kExitCancelled;
    default:
      return kExitOther;
  }
}

std::string SignalName(std::int32_t signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

bool PeerLost(const link::RankEnd& end) {
  if (end.peer_lost) {
    return true;
  }
  // A watchdog aborts its own process when a collective fails; any other signal came from outside.
  if (end.lost || end.start_failed || end.out_of_memory || (end.signal != 0 && end.signal != SIGABRT) ||
      (end.signal == 0 && end.exit_code == 0)) {
    return false;
  }
  return std::any_of(kPeerLostMarks.begin(), kPeerLostMarks.end(),
                     [&](std::string_view mark) { return Mentions(end.last_output, mark); });
}

std::optional<Cause> FindCause(const AttemptRecord& attempt, const std::function<std::string(NodeId)>& node_name) {
  std::optional<std::tuple<bool, std::uint64_t, Rank>> best;
  for (Rank rank = 0; rank < attempt.ranks.size(); ++rank) {
    const RankRecord& record = attempt.ranks[rank];
    const bool lost = record.state == WorkerState::kLost;
    if (record.HoldsLease() || record.end.stop_requested || (!lost && record.end.Clean())) {
      continue;
    }
    const std::tuple<bool, std::uint64_t, Rank> candidate{!lost && PeerLost(record.end), record.end_order, rank};
    if (!best || candidate < *best) {
      best = candidate;
    }
  }
  if (!best) {
    return std::nullopt;
  }
  const Rank rank = std::get<2>(*best);
  return Describe(rank, attempt.ranks[rank], node_name(attempt.ranks[rank].node));
}

}  // namespace rayctl::head
