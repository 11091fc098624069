// When a node is alive, suspect or dead.
//
//   what                                         | suspect            | dead
//   ---------------------------------------------+--------------------+------------------------------------------------
//   said goodbye                                 |                    | at once; its groups move and count no failure
//   registers with another boot id               |                    | its ranks are lost at once, the node is alive
//   suspect, runs nothing                        |                    | 10 s after its last sign
//   suspect, a rank elsewhere lost its peer      |                    | 10 s after its last sign
//   the agent ended the stream (crash), or the   | at once            | after that agent_grace + grace_period of the
//   head was restarted and it has not come back  |                    | longest of its jobs: the shims end theirs first
//   silent, stream open or lost by then          | after 2.5 missed   | 30 s after its last sign
//                                                | heartbeats (5 s)   |
//
// Every count is on the head's steady clock and begins again when the head was started or stalled. A dead node's ranks
// keep their leases (on a node that takes no work) until their attempt is ended by placing the next, by another
// failure, by wish, or because the job has no failures left and agent_grace passed once more. Until then a node that
// registers again with the same boot id has its ranks back.
#include <fmt/format.h>

#include <algorithm>

#include "daemon/head/cause.h"
#include "daemon/head/head_impl.h"

namespace rayctl::head {
namespace {

constexpr Duration kDeadWhenIdle = std::chrono::seconds(10);
constexpr Duration kDeadWhenSilent = std::chrono::seconds(30);

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

NodeState Head::Impl::StateOf(NodeId node) const {
  const NodeRecord& record = nodes_.at(node);
  if (record.state == NodeState::kDead) {
    return NodeState::kDead;
  }
  if (runtimes_.at(node).suspect) {
    return NodeState::kSuspect;
  }
  return record.draining ? NodeState::kDraining : NodeState::kAlive;
}

void Head::Impl::RefreshPresence(NodeId node) {
  const NodeState state = StateOf(node);
  const NodeRuntime& runtime = runtimes_.at(node);
  ledger_.SetPresence(node, state != NodeState::kDead,
                      state == NodeState::kAlive && runtime.stream && runtime.stale.empty());
}

Duration Head::Impl::SuspectAfter(const NodeRuntime& runtime) const { return runtime.heartbeat_interval * 5 / 2; }

void Head::Impl::OnSign(NodeId node) {
  NodeRuntime& runtime = runtimes_[node];
  runtime.last_sign = now_.steady;
  runtime.last_seen = now_.wall;
  if (nodes_.at(node).state == NodeState::kDead) {
    return;  // It said goodbye; only a registration brings it back.
  }
  if (runtime.suspect) {
    MarkAlive(node);
  } else {
    Reschedule(node);
  }
}

void Head::Impl::MarkAlive(NodeId node) {
  NodeRuntime& runtime = runtimes_[node];
  runtime.suspect = false;
  runtime.suspect_why.clear();
  RefreshPresence(node);
  Reschedule(node);
}

void Head::Impl::MarkSuspect(NodeId node, const std::string& why) {
  NodeRuntime& runtime = runtimes_[node];
  runtime.suspect = true;
  runtime.suspect_why = why;
  RefreshPresence(node);
  Reschedule(node);
}

// Whether a rank elsewhere of a gang on this node lost its peer by an error.
bool Head::Impl::PeersLost(NodeId node) const {
  const auto& leases = runtimes_.at(node).leases;
  return std::any_of(leases.begin(), leases.end(), [&](const auto& lease) {
    const auto& ranks = jobs_.at(lease.first).attempt.ranks;
    return std::any_of(ranks.begin(), ranks.end(), [&](const RankRecord& rank) {
      return rank.node != node && rank.state == WorkerState::kExited && !rank.end.stop_requested && PeerLost(rank.end);
    });
  });
}

Head::Impl::Death Head::Impl::WhenDead(NodeId node) const {
  const NodeRuntime& runtime = runtimes_.at(node);
  if (runtime.leases.empty()) {
    return {runtime.last_sign + kDeadWhenIdle, fmt::format("no sign of it for {} s", Seconds(kDeadWhenIdle))};
  }
  if (PeersLost(node)) {
    return {runtime.last_sign + kDeadWhenIdle,
            fmt::format("no sign of it for {} s, and ranks elsewhere lost theirs there", Seconds(kDeadWhenIdle))};
  }
  if (runtime.stream_state == StreamState::kEndedByAgent) {
    Duration wait{0};
    for (const auto& [id, count] : runtime.leases) {
      const JobSpec& spec = jobs_.at(id).spec;
      wait = std::max(wait, spec.agent_grace + spec.grace_period);
    }
    return {runtime.stream_ended_at + wait, fmt::format("its agent has been away for {} s", Seconds(wait))};
  }
  return {runtime.last_sign + kDeadWhenSilent, fmt::format("no sign of it for {} s", Seconds(kDeadWhenSilent))};
}

void Head::Impl::Reschedule(NodeId node) {
  const TimerKey key{TimerKind::kNode, node.value};
  const auto record = nodes_.find(node);
  if (record == nodes_.end() || record->second.state == NodeState::kDead) {
    timers_.Clear(key);
    return;
  }
  const NodeRuntime& runtime = runtimes_.at(node);
  timers_.Set(key, runtime.suspect ? WhenDead(node).at : runtime.last_sign + SuspectAfter(runtime));
}

void Head::Impl::OnNodeTimer(NodeId node) {
  const NodeRuntime& runtime = runtimes_.at(node);
  if (nodes_.at(node).state == NodeState::kDead) {
    return;
  }
  if (!runtime.suspect) {
    MarkSuspect(node, fmt::format("no heartbeat for {} s", Seconds(SuspectAfter(runtime))));
    return;
  }
  const Death death = WhenDead(node);
  if (death.at > now_.steady) {
    Reschedule(node);
    return;
  }
  MarkDead(node, death.why);
}

void Head::Impl::MarkDead(NodeId node, const std::string& why) {
  NodeRecord& record = nodes_.at(node);
  record.state = NodeState::kDead;
  record.reason = why;
  touched_nodes_.insert(node);
  NodeRuntime& runtime = runtimes_[node];
  runtime.suspect = false;
  runtime.stale.clear();
  if (!record.said_goodbye) {
    // If it only slept it registers again, which settles what both know.
    CloseStreamOf(node, absl::DeadlineExceededError(why));
  }
  RefreshPresence(node);
  Reschedule(node);
  const auto leases = runtime.leases;
  for (const auto& [id, count] : leases) {
    JobRecord& job = jobs_.at(id);
    if (job.attempt.ended) {
      LoseRanksOn(job, node, why,
                  /*stop_requested=*/job.state == JobState::kStopping && job.stop_reason != Reason::kNone);
      Evaluate(id);
    } else if (record.said_goodbye) {
      EndFree(job, fmt::format("node {} left the cluster", record.name));
    } else {
      BeginMoving(job);
    }
  }
}

void Head::Impl::BeginMoving(JobRecord& job) {
  moving_.try_emplace(job.id, 0);
  if (!HasFailuresLeft(job)) {
    timers_.Set({TimerKind::kNodeLostGrace, job.id.value}, now_.steady + job.spec.agent_grace);
  }
  touched_jobs_.insert(job.id);
}

void Head::Impl::StopMoving(JobId id) {
  moving_.erase(id);
  timers_.Clear({TimerKind::kNodeLostGrace, id.value});
}

void Head::Impl::ReturnFromMoving(NodeId node) {
  for (const auto& [id, count] : runtimes_.at(node).leases) {
    if (!moving_.contains(id)) {
      continue;
    }
    const auto& ranks = jobs_.at(id).attempt.ranks;
    const bool away = std::any_of(ranks.begin(), ranks.end(), [&](const RankRecord& rank) {
      return rank.HoldsLease() && StateOf(rank.node) == NodeState::kDead;
    });
    if (!away) {
      StopMoving(id);
    }
  }
}

void Head::Impl::RestartCounts() {
  for (auto& [id, runtime] : runtimes_) {
    if (nodes_.at(id).state == NodeState::kDead) {
      continue;
    }
    runtime.last_sign = now_.steady;
    runtime.stream_ended_at = now_.steady;
    Reschedule(id);
  }
  for (const auto& [id, tried_at] : moving_) {
    if (const JobRecord& job = jobs_.at(id); !HasFailuresLeft(job)) {
      timers_.Set({TimerKind::kNodeLostGrace, id.value}, now_.steady + job.spec.agent_grace);
    }
  }
}

}  // namespace rayctl::head
