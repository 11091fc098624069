// What ranks do, and what follows for their job.
#include <fmt/format.h>

#include <algorithm>

#include "base/invariant.h"
#include "daemon/head/cause.h"
#include "daemon/head/head_impl.h"

namespace rayctl::head {
namespace {

// Attempts of one job that may end for nothing that counts (a taken port, a node that left) before a taken port does.
constexpr std::uint32_t kFreeRetriesMax = 64;
constexpr std::int32_t kExitOther = 1;

}  // namespace

std::vector<NodeId> Head::Impl::NodesOf(const AttemptRecord& attempt) const {
  std::vector<NodeId> nodes;
  std::set<NodeId> seen;
  for (const RankRecord& rank : attempt.ranks) {
    if (seen.insert(rank.node).second) {
      nodes.push_back(rank.node);
    }
  }
  return nodes;
}

bool Head::Impl::RunsOn(const JobRecord& job, NodeId node) const {
  return !IsFinal(job.state) && std::any_of(job.attempt.ranks.begin(), job.attempt.ranks.end(),
                                            [&](const RankRecord& rank) { return rank.node == node; });
}

// What an agent says of ranks that are not, or no longer, the head's: ends are taken note of, the living are killed.
void Head::Impl::Discard(NodeId node, const link::RankKey& key, bool alive) {
  NodeRuntime& runtime = runtimes_[node];
  if (alive) {
    runtime.stale.insert(key);
    SendTo(node, link::StopGroup{key.job, key.attempt, Duration{0}, "this attempt is over"});
  } else {
    runtime.stale.erase(key);
    const auto job = jobs_.find(key.job);
    const bool here = job != jobs_.end() && RunsOn(job->second, node);
    Forget(node, key.job, here ? LastSettled(job->second) : std::nullopt);
  }
  RefreshPresence(node);
}

// The newest attempt of the job of which every end is recorded; nullopt: there is none.
std::optional<AttemptNumber> Head::Impl::LastSettled(const JobRecord& job) const {
  if (InLine(job.id)) {
    return job.attempt.number;
  }
  return job.attempt.number == 0 ? std::nullopt : std::optional(job.attempt.number - 1);
}

// What is recorded need not be told again: up to that attempt of a job that goes on here, else all of the job. Not
// while a rank of the job is still to be heard of: the end of that is what frees the node.
void Head::Impl::Forget(NodeId node, JobId id, std::optional<AttemptNumber> attempt) {
  const auto& stale = runtimes_.at(node).stale;
  const auto first = stale.lower_bound({id, 0, 0});
  if (first != stale.end() && first->job == id) {
    return;
  }
  const auto job = jobs_.find(id);
  if (job == jobs_.end() || !RunsOn(job->second, node)) {
    SendTo(node, link::ForgetJob{id});
  } else if (attempt) {
    SendTo(node, link::ForgetRanks{id, *attempt});
  }
}

std::optional<JobId> Head::Impl::ApplyFacts(NodeId node, const link::RankFacts& facts) {
  const link::RankKey& key = facts.key;
  const bool alive = facts.state == WorkerState::kStarting || facts.state == WorkerState::kRunning;
  const auto found = jobs_.find(key.job);
  if (found == jobs_.end() || IsFinal(found->second.state) || key.attempt != found->second.attempt.number ||
      key.rank >= found->second.attempt.ranks.size() || found->second.attempt.ranks[key.rank].node != node) {
    Discard(node, key, alive);
    return std::nullopt;
  }
  JobRecord& job = found->second;
  RankRecord& rank = job.attempt.ranks[key.rank];
  if (!rank.HoldsLease()) {
    if (rank.state == WorkerState::kLost) {
      Discard(node, key, alive);
    }
    return std::nullopt;
  }
  if (alive) {
    if (rank.pid != facts.pid) {
      rank.pid = facts.pid;
      Touch(job.id);
    }
    if (facts.state == WorkerState::kRunning && rank.state == WorkerState::kStarting) {
      SetRank(job, key.rank, WorkerState::kRunning, {});
    }
    return job.id;
  }
  link::RankEnd end = facts.end;
  if (facts.pid != 0) {
    rank.pid = facts.pid;
  }
  if (facts.state == WorkerState::kLost) {
    end.lost = true;
  }
  if (end.stop_requested && !job.attempt.ended) {
    // Nobody here asked for it: its shim was alone for longer than agent_grace, or its node is being stopped.
    end.stop_requested = false;
    end.lost = true;
    end.start_error = "it was ended on its node, with no agent or by it";
  }
  if (end.lost && end.start_error.empty()) {
    end.start_error = "its shim died";
  }
  SetRank(job, key.rank, WorkerState::kExited, std::move(end));
  if (PeerLost(rank.end)) {
    for (const NodeId other : NodesOf(job.attempt)) {
      Reschedule(other);  // A silent node elsewhere in the gang is waited for less long now.
    }
  }
  return job.id;
}

void Head::Impl::SetRank(JobRecord& job, Rank number, WorkerState state, link::RankEnd end) {
  RankRecord& rank = job.attempt.ranks[number];
  Invariant(rank.HoldsLease(), "a rank ends once");
  Tally& tally = tallies_[job.id];
  --(rank.state == WorkerState::kStarting ? tally.starting : tally.running);
  rank.state = state;
  Touch(job.id);
  if (rank.HoldsLease()) {
    ++(state == WorkerState::kStarting ? tally.starting : tally.running);
    return;
  }
  rank.end = std::move(end);
  rank.end_order = tally.ends() + 1;
  ++(state == WorkerState::kExited && rank.end.Clean() ? tally.clean : tally.unclean);
  ledger_.Release(rank.node, job.spec.resources_per_worker, rank.devices);
  auto& leases = runtimes_[rank.node].leases;
  if (const auto held = leases.find(job.id); --held->second == 0) {
    leases.erase(held);
  }
  Reschedule(rank.node);
}

void Head::Impl::Lose(JobRecord& job, Rank rank, const std::string& why, bool stop_requested) {
  link::RankEnd end;
  end.lost = true;
  end.start_error = why;
  end.stop_requested = stop_requested;
  end.at = now_.wall;
  SetRank(job, rank, WorkerState::kLost, std::move(end));
}

void Head::Impl::LoseRanksOn(JobRecord& job, NodeId node, const std::string& why, bool stop_requested) {
  for (Rank rank = 0; rank < job.attempt.ranks.size(); ++rank) {
    if (job.attempt.ranks[rank].node == node && job.attempt.ranks[rank].HoldsLease()) {
      Lose(job, rank, why, stop_requested);
    }
  }
}

void Head::Impl::LoseRanksOnDeadNodes(JobRecord& job, bool stop_requested) {
  for (const NodeId node : NodesOf(job.attempt)) {
    if (StateOf(node) == NodeState::kDead) {
      LoseRanksOn(job, node, nodes_.at(node).reason, stop_requested);
    }
  }
}

void Head::Impl::Evaluate(JobId id) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end() || IsFinal(found->second.state) || InLine(id)) {
    return;
  }
  JobRecord& job = found->second;
  const Tally tally = tallies_[id];
  if (job.attempt.ended) {
    if (tally.leases() == 0) {
      Settle(job);
    }
    return;
  }
  if (tally.unclean > 0) {
    EndByFailure(job);
  } else if (tally.leases() == 0) {
    job.attempt.ended = true;
    job.message.clear();
    job.last_output.clear();
    job.failed_rank.reset();
    FreePort(job);
    Finish(job, JobState::kSucceeded, Reason::kNone, 0);
  } else if (tally.starting == 0) {
    if (job.state == JobState::kStarting || job.state == JobState::kRecovering) {
      job.reason = Reason::kNone;
      job.message.clear();
      job.last_output.clear();  // Of an older attempt.
      job.failed_rank.reset();
      SetState(job, JobState::kRunning);
    }
  }
}

bool Head::Impl::HasFailuresLeft(const JobRecord& job) const {
  return job.spec.max_failures < 0 || job.failures < static_cast<std::uint32_t>(job.spec.max_failures);
}

void Head::Impl::StopRanks(const JobRecord& job, const std::string& why) {
  for (const NodeId node : NodesOf(job.attempt)) {
    if (runtimes_[node].leases.contains(job.id)) {
      SendTo(node, link::StopGroup{job.id, job.attempt.number, job.spec.grace_period, why});
    }
  }
}

// The first failure ends the attempt: the rest of the gang is stopped, and what comes next is decided once none is
// left.
void Head::Impl::EndByFailure(JobRecord& job) {
  StopMoving(job.id);
  LoseRanksOnDeadNodes(job, /*stop_requested=*/false);
  job.attempt.ended = true;
  const auto& ranks = job.attempt.ranks;
  const bool port_taken = std::any_of(ranks.begin(), ranks.end(), [](const RankRecord& rank) {
    return rank.state == WorkerState::kExited && rank.end.port_in_use;
  });
  const bool free = port_taken && job.attempt.number - std::min(job.failures, job.attempt.number) < kFreeRetriesMax;
  const bool again = free || HasFailuresLeft(job);
  if (!free) {
    ++job.failures;
  }
  if (again) {
    SetState(job, JobState::kRecovering);
  } else {
    job.stop_state = JobState::kFailed;
    job.stop_reason = Reason::kNone;
    SetState(job, JobState::kStopping);
  }
  Touch(job.id);
  StopRanks(job, "another rank of the group ended");
  Evaluate(job.id);
}

// Ends the attempt for something that counts as no failure.
void Head::Impl::EndFree(JobRecord& job, const std::string& message) {
  StopMoving(job.id);
  LoseRanksOnDeadNodes(job, /*stop_requested=*/true);
  job.attempt.ended = true;
  job.message = message;
  SetState(job, JobState::kRecovering);
  Touch(job.id);
  StopRanks(job, message);
  Evaluate(job.id);
}

// No rank of the ended attempt holds anything any more.
void Head::Impl::Settle(JobRecord& job) {
  FreePort(job);
  const auto cause = FindCause(job.attempt, [this](NodeId node) { return NodeName(node); });
  if (cause && (job.state == JobState::kRecovering || job.stop_reason == Reason::kNone)) {
    job.message = cause->message;
    job.last_output = cause->last_output;
    job.failed_rank = cause->rank;
  }
  if (job.state == JobState::kRecovering) {
    job.reason = cause ? cause->reason : Reason::kNone;
    for (const NodeId node : NodesOf(job.attempt)) {
      Forget(node, job.id, job.attempt.number);
    }
    Touch(job.id);
    Enqueue(job);
    return;
  }
  Invariant(job.state == JobState::kStopping, "an ended attempt belongs to a job that recovers or stops");
  if (job.stop_reason != Reason::kNone) {
    Finish(job, job.stop_state, job.stop_reason, ExitCodeOf(job.stop_reason));
    return;
  }
  Finish(job, job.stop_state, cause ? cause->reason : Reason::kExited, cause ? cause->exit_code : kExitOther);
}

}  // namespace rayctl::head
