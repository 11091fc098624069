#pragma once

#include <functional>
#include <optional>
#include <string>

#include "daemon/head/records.h"

namespace rayctl::head {

// What ended an attempt, as a person wants to read it.
struct Cause {
  Rank rank = 0;
  Reason reason = Reason::kNone;
  std::int32_t exit_code = 1;
  std::string message;      // "rank 1 on node-a was killed by signal 9 (SIGKILL)".
  std::string last_output;  // Of that rank.
};

// Whether this end is the consequence of another rank's: the SDK said so, or its last lines do.
bool PeerLost(const link::RankEnd& end);

// The rank that failed first by cause: of those that were not told to stop a signal or an exception of its own before
// a lost peer, then the order in which the ends reached the head. nullopt: no rank failed by itself.
std::optional<Cause> FindCause(const AttemptRecord& attempt, const std::function<std::string(NodeId)>& node_name);

// The exit code of a job that was ended by wish, for this reason.
std::int32_t ExitCodeOf(Reason reason);

// "SIGKILL"; "signal 99" for one without a name.
std::string SignalName(std::int32_t signal);

}  // namespace rayctl::head
