#include "daemon/agent/job_table.h"

#include <algorithm>
#include <csignal>
#include <set>
#include <utility>

#include "daemon/agent/rank_env.h"
#include "fmt/format.h"

namespace rayctl::agent {
namespace {

// What an AgentHello says of a job whose settings are not known yet: keep what the shim has.
constexpr std::uint64_t kKeepAgentGrace = 0;

std::uint64_t Millis(Duration duration) {
  return static_cast<std::uint64_t>(
      std::max<std::int64_t>(0, std::chrono::duration_cast<std::chrono::milliseconds>(duration).count()));
}

link::RankEnd ToRankEnd(const local::RankExited& exit) {
  link::RankEnd end;
  end.exit_code = exit.exit_code();
  end.signal = exit.signal();
  end.stop_requested = exit.stop_requested();
  end.start_failed = exit.start_failed();
  end.start_error = exit.start_error();
  end.peer_lost = exit.peer_lost();
  end.last_output = exit.last_output();
  end.at = WallTime(std::chrono::nanoseconds(exit.unix_nanos()));
  return end;
}

link::RankEnd LostEnd(const std::string& why, Now now) {
  link::RankEnd end;
  end.lost = true;
  end.start_error = why;
  end.at = now.wall;
  return end;
}

}  // namespace

// ---- What shims tell.

void JobTable::Adopt(const ShimFound& found, Now now) {
  Job& job = jobs_[found.job];
  for (const local::RankStatus& status : found.ranks) {
    TakeStatus(found.job, job, status);
  }
  if (found.living) {
    job.shim = ShimState::kComing;
    job.sent = 0;
    SendHello(found.job, job);
    return;
  }
  job.shim = ShimState::kNone;
  job.has_leftovers = true;
  for (auto& [index, rank] : job.ranks) {
    if (!rank.Ended()) {
      End(rank, LostEnd("its shim died while no agent ran", now), 0);
    }
  }
}

void JobTable::ShimSaid(JobId id, const local::ShimToAgent& message, Now now) {
  if (!jobs_.contains(id) && !message.has_hello()) {
    return;
  }
  Job& job = jobs_[id];
  const RankIndex index{message.id().attempt(), message.id().rank()};
  const std::uint64_t sequence = message.id().sequence();
  if (sequence > job.event_seen) {
    job.event_seen = sequence;
    job.unacked.push_back({sequence, index.first});
  }
  switch (message.body_case()) {
    case local::ShimToAgent::kHello:
      TakeHello(id, job, message.hello(), now);
      break;
    case local::ShimToAgent::kStarted:
      MarkRunning(FindOrAddRank(id, job, index), message.started().pid());
      break;
    case local::ShimToAgent::kExited:
      End(FindOrAddRank(id, job, index), ToRankEnd(message.exited()), message.exited().log_bytes());
      break;
    default:
      break;  // Reports, barriers and the like: not the business of a command job.
  }
  Settle(id);
}

void JobTable::TakeHello(JobId id, Job& job, const local::ShimHello& hello, Now now) {
  std::set<RankIndex> told;
  for (const local::RankStatus& status : hello.ranks()) {
    TakeStatus(id, job, status);
    told.emplace(status.attempt(), status.rank());
  }
  if (job.shim != ShimState::kNone && job.shim != ShimState::kComing) {
    return;  // Its answer to a second AgentHello.
  }
  job.shim = ShimState::kLiving;
  job.has_leftovers = false;
  for (auto& [index, rank] : job.ranks) {
    if (rank.place == Place::kInShim && !rank.Ended() && !told.contains(index)) {
      End(rank, LostEnd("its shim does not know it", now), 0);
    }
  }
  if (head_reachable_) {
    SendReachable(id, job);
  }
  if (leaving_) {
    StopAll(id, job, leave_grace_, leave_why_, now);
    return;
  }
  SendWaiting(id, job);
}

void JobTable::TakeStatus(JobId id, Job& job, const local::RankStatus& status) {
  RankState& rank = FindOrAddRank(id, job, {status.attempt(), status.rank()});
  switch (status.phase()) {
    case local::RANK_PHASE_RUNNING:
      MarkRunning(rank, status.pid());
      break;
    case local::RANK_PHASE_EXITED:
      if (status.pid() != 0) {
        rank.facts.pid = status.pid();
      }
      End(rank, ToRankEnd(status.exit()), status.exit().log_bytes());
      break;
    default:
      break;
  }
}

JobTable::RankState& JobTable::FindOrAddRank(JobId id, Job& job, RankIndex index) {
  const auto [it, added] = job.ranks.try_emplace(index);
  RankState& rank = it->second;
  if (added) {
    rank.facts.key = {id, index.first, index.second};
    Changed(rank);
  }
  rank.place = Place::kInShim;
  job.newest = std::max(job.newest, index.first);
  return rank;
}

void JobTable::MarkRunning(RankState& rank, std::int64_t pid) {
  if (rank.facts.state != WorkerState::kStarting) {
    return;
  }
  rank.facts.state = WorkerState::kRunning;
  rank.facts.pid = pid;
  Changed(rank);
}

void JobTable::End(RankState& rank, link::RankEnd end, std::uint64_t log_bytes) {
  if (rank.Ended()) {
    return;
  }
  rank.facts.state = WorkerState::kExited;
  rank.facts.end = std::move(end);
  rank.start.Clear();
  out_.push_back(OutputEnded{rank.facts.key, log_bytes});
  Changed(rank);
}

void JobTable::EndUnstarted(RankState& rank, Now now) {
  link::RankEnd end;
  // As if the signal had met it in its first moment: a rank that never ran has not succeeded.
  end.signal = SIGTERM;
  end.stop_requested = true;
  end.at = now.wall;
  End(rank, std::move(end), 0);
}

void JobTable::ShimGone(const ShimClosed& closed, Now now) {
  const auto it = jobs_.find(closed.job);
  if (it == jobs_.end()) {
    return;
  }
  Job& job = it->second;
  const bool came = job.shim == ShimState::kLiving || job.shim == ShimState::kReleased;
  job.shim = ShimState::kNone;
  job.has_leftovers = true;
  job.unacked.clear();
  job.event_seen = 0;
  for (const local::RankStatus& status : closed.ranks) {
    TakeStatus(closed.job, job, status);
  }
  bool some_wait = false;
  for (auto& [index, rank] : job.ranks) {
    if (rank.Ended()) {
      continue;
    }
    if (rank.place == Place::kInShim) {
      End(rank, LostEnd(closed.why, now), 0);
    } else if (rank.place == Place::kWaitsForShim) {
      if (came) {
        some_wait = true;  // It was going when they came: they are for the next one.
        continue;
      }
      link::RankEnd end;
      end.start_failed = true;
      end.exit_code = 1;
      end.start_error = closed.why;
      end.at = now.wall;
      End(rank, std::move(end), 0);
    }
  }
  if (some_wait) {
    SpawnOrSend(closed.job, job);
  }
  Settle(closed.job);
}

void JobTable::PortAnswered(const PortChecked& answer, Now now) {
  const auto it = jobs_.find(answer.key.job);
  if (it == jobs_.end()) {
    return;
  }
  Job& job = it->second;
  bool some = false;
  for (auto& [index, rank] : job.ranks) {
    if (index.first != answer.key.attempt || rank.place != Place::kWaitsForPort || rank.Ended()) {
      continue;
    }
    some = true;
    if (answer.free) {
      rank.place = Place::kWaitsForShim;
      continue;
    }
    link::RankEnd end;
    end.start_failed = true;
    end.exit_code = 1;
    end.port_in_use = true;
    end.start_error = "the port chosen for MASTER_PORT is taken on this node";
    end.at = now.wall;
    End(rank, std::move(end), 0);
  }
  if (some && answer.free) {
    SpawnOrSend(answer.key.job, job);
  }
  Settle(answer.key.job);
}

// ---- What the head orders.

void JobTable::Start(const link::StartGroup& group, Now now) {
  if (leaving_) {
    return;
  }
  Job& job = jobs_[group.job];
  if (group.attempt < job.newest) {
    return;
  }
  job.newest = group.attempt;
  job.forgotten = false;
  job.head_grace = group.spec.head_grace;
  job.grace_period = group.spec.grace_period;
  const bool grace_is_new = job.agent_grace != group.spec.agent_grace;
  job.agent_grace = group.spec.agent_grace;
  if (job.shim == ShimState::kLiving && grace_is_new) {
    SendHello(group.job, job);
  }
  std::erase_if(job.ranks,
                [&job](const auto& entry) { return entry.first.first < job.newest && entry.second.recorded; });

  const JobPaths paths = JobPaths::Of(config_.state_dir, group.job);
  bool checks_port = false;
  bool added_any = false;
  for (const link::RankAssignment& assignment : group.ranks) {
    const auto [it, added] = job.ranks.try_emplace(RankIndex{group.attempt, assignment.rank});
    RankState& rank = it->second;
    if (!added) {
      if (rank.recorded) {  // The head does not know its end after all.
        rank.recorded = false;
        Changed(rank);
      }
      continue;
    }
    added_any = true;
    checks_port = checks_port || (group.checks_master_port && assignment.rank == 0);
    rank.facts.key = {group.job, group.attempt, assignment.rank};
    rank.start = MakeRankStart(config_.registration, config_.base_env, paths, group, assignment);
    rank.place = Place::kWaitsForPort;
  }
  if (!added_any) {
    return;
  }
  if (ConfigNeedsFile(group.spec)) {
    out_.push_back(WriteFile{paths.config_file, group.spec.train_loop_config_json});
  }
  const link::RankKey key{group.job, group.attempt, 0};
  if (checks_port) {
    out_.push_back(CheckPort{key, group.master_port});
  } else {
    PortAnswered({key, true}, now);
  }
}

void JobTable::StopAttempts(JobId id, AttemptNumber attempt, Duration grace, const std::string& why, Now now) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) {
    return;
  }
  Job& job = it->second;
  std::map<AttemptNumber, std::vector<Rank>> live;
  for (const auto& [index, rank] : job.ranks) {
    if (index.first <= attempt && !rank.Ended()) {
      live[index.first].push_back(index.second);
    }
  }
  for (const auto& [number, ranks] : live) {
    Stop(id, job, number, ranks, grace, why, now);
  }
  Settle(id);
}

void JobTable::ForgetRanks(JobId id, AttemptNumber attempt) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) {
    return;
  }
  Job& job = it->second;
  for (auto& [index, rank] : job.ranks) {
    if (index.first <= attempt && rank.Ended()) {
      rank.recorded = true;
    }
  }
  // An acknowledgement covers all before it, so it stops at the first event that the head may still need.
  std::size_t count = 0;
  while (count < job.unacked.size() && job.unacked[count].attempt <= attempt) {
    ++count;
  }
  Acknowledge(id, job, count);
}

void JobTable::ForgetJob(JobId id) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) {
    return;
  }
  it->second.forgotten = true;
  Settle(id);
}

void JobTable::Reconcile(const link::Registered& wanted, Now now) {
  std::set<link::RankKey> named;
  std::set<JobId> kept(wanted.kept_jobs.begin(), wanted.kept_jobs.end());
  for (const link::StartGroup& group : wanted.groups) {
    kept.insert(group.job);
    for (const link::RankAssignment& assignment : group.ranks) {
      named.insert({group.job, group.attempt, assignment.rank});
    }
  }
  for (const JobId id : Ids()) {
    Job& job = jobs_.at(id);
    std::map<AttemptNumber, std::vector<Rank>> unwanted;
    for (const auto& [index, rank] : job.ranks) {
      if (!rank.Ended() && !named.contains(rank.facts.key)) {
        unwanted[index.first].push_back(index.second);
      }
    }
    for (const auto& [attempt, ranks] : unwanted) {
      Stop(id, job, attempt, ranks, Duration(0), "the head does not want it here", now);
    }
    if (!kept.contains(id)) {
      job.forgotten = true;
    }
    Settle(id);
  }
  for (const link::StartGroup& group : wanted.groups) {
    Start(group, now);
  }
}

void JobTable::Stop(JobId id, Job& job, AttemptNumber attempt, const std::vector<Rank>& ranks, Duration grace,
                    const std::string& why, Now now) {
  local::AgentToShim message;
  local::StopRanks* stop = message.mutable_stop();
  stop->set_grace_millis(Millis(grace));
  stop->set_reason(why);
  for (const Rank number : ranks) {
    RankState& rank = job.ranks.at({attempt, number});
    if (rank.place == Place::kInShim) {
      stop->add_ranks(number);
    } else {
      EndUnstarted(rank, now);
    }
  }
  if (stop->ranks_size() != 0) {
    Send(id, job, attempt, std::move(message));
  }
}

void JobTable::StopAll(JobId id, Job& job, Duration grace, const std::string& why, Now now) {
  std::map<AttemptNumber, std::vector<Rank>> live;
  for (const auto& [index, rank] : job.ranks) {
    if (!rank.Ended()) {
      live[index.first].push_back(index.second);
    }
  }
  for (const auto& [attempt, ranks] : live) {
    Stop(id, job, attempt, ranks, grace, why, now);
  }
}

// ---- The head comes and goes.

void JobTable::SetHeadReachable(bool reachable, Now now) {
  if (head_reachable_ == reachable) {
    return;
  }
  head_reachable_ = reachable;
  head_lost_at_ = reachable ? std::nullopt : std::optional<SteadyTime>(now.steady);
  for (auto& [id, job] : jobs_) {
    job.abandoned = false;
    if (job.shim == ShimState::kLiving) {
      SendReachable(id, job);
    }
  }
}

std::optional<SteadyTime> JobTable::NextAbandoned() const {
  std::optional<SteadyTime> next;
  if (!head_lost_at_ || leaving_) {
    return next;
  }
  for (const auto& [id, job] : jobs_) {
    if (job.head_grace > Duration(0) && !job.abandoned) {
      const SteadyTime at = *head_lost_at_ + job.head_grace;
      next = next ? std::min(*next, at) : at;
    }
  }
  return next;
}

void JobTable::StopAbandoned(Now now) {
  if (!head_lost_at_ || leaving_) {
    return;
  }
  for (const JobId id : Ids()) {
    Job& job = jobs_.at(id);
    if (job.head_grace > Duration(0) && !job.abandoned && now.steady >= *head_lost_at_ + job.head_grace) {
      job.abandoned = true;
      StopAll(id, job, job.grace_period, "the head was away longer than head_grace", now);
      Settle(id);
    }
  }
}

void JobTable::Leave(Duration grace, const std::string& why, Now now) {
  leaving_ = true;
  leave_grace_ = grace;
  leave_why_ = why;
  for (const JobId id : Ids()) {
    StopAll(id, jobs_.at(id), grace, why, now);
    Settle(id);
  }
}

// ---- What is known.

std::vector<link::RankFacts> JobTable::Unrecorded() const {
  std::vector<link::RankFacts> facts;
  for (const auto& [id, job] : jobs_) {
    for (const auto& [index, rank] : job.ranks) {
      if (!rank.recorded) {
        facts.push_back(rank.facts);
      }
    }
  }
  return facts;
}

// ---- Shims.

void JobTable::SpawnOrSend(JobId id, Job& job) {
  switch (job.shim) {
    case ShimState::kNone:
      if (job.has_leftovers) {
        out_.push_back(RemoveShim{id});
        job.has_leftovers = false;
      }
      job.shim = ShimState::kComing;
      job.sent = 0;
      out_.push_back(SpawnShim{id, job.agent_grace.value_or(JobSpec().agent_grace)});
      SendHello(id, job);
      break;
    case ShimState::kLiving:
      SendWaiting(id, job);
      break;
    case ShimState::kComing:    // At its hello.
    case ShimState::kReleased:  // By the next one, after it has gone.
      break;
  }
}

void JobTable::SendWaiting(JobId id, Job& job) {
  std::map<AttemptNumber, local::AgentToShim> starts;
  for (auto& [index, rank] : job.ranks) {
    if (rank.place == Place::kWaitsForShim && !rank.Ended()) {
      *starts[index.first].mutable_start()->add_ranks() = std::move(rank.start);
      rank.start.Clear();
      rank.place = Place::kInShim;
    }
  }
  for (auto& [attempt, message] : starts) {
    Send(id, job, attempt, std::move(message));
  }
}

void JobTable::SendHello(JobId id, Job& job) {
  local::AgentToShim message;
  local::AgentHello* hello = message.mutable_hello();
  hello->set_protocol(link::kProtocol);
  hello->set_agent_version(config_.registration.version);
  hello->set_agent_pid(config_.pid);
  // At least 1, because 0 means something else.
  hello->set_agent_grace_millis(job.agent_grace ? std::max<std::uint64_t>(1, Millis(*job.agent_grace))
                                                : kKeepAgentGrace);
  Send(id, job, 0, std::move(message));
}

void JobTable::SendReachable(JobId id, Job& job) {
  local::AgentToShim message;
  message.mutable_head_reachable()->set_reachable(head_reachable_);
  Send(id, job, 0, std::move(message));
}

void JobTable::Acknowledge(JobId id, Job& job, std::size_t count) {
  if (count == 0) {
    return;
  }
  if (job.shim == ShimState::kLiving) {
    local::AgentToShim message;
    message.mutable_ack()->set_sequence(job.unacked[count - 1].sequence);
    Send(id, job, 0, std::move(message));
  }
  job.unacked.erase(job.unacked.begin(), job.unacked.begin() + static_cast<std::ptrdiff_t>(count));
}

void JobTable::Send(JobId id, Job& job, AttemptNumber attempt, local::AgentToShim message) {
  if (job.shim != ShimState::kLiving && !message.has_hello()) {
    return;  // Its hello, or its end, settles what this would have.
  }
  message.mutable_id()->set_job_id(id.value);
  message.mutable_id()->set_attempt(attempt);
  message.mutable_id()->set_sequence(++job.sent);
  out_.push_back(SendShim{id, std::move(message)});
}

void JobTable::Settle(JobId id) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) {
    return;
  }
  Job& job = it->second;
  const bool all_ended =
      std::all_of(job.ranks.begin(), job.ranks.end(), [](const auto& entry) { return entry.second.Ended(); });
  if ((!job.forgotten && !leaving_) || !all_ended) {
    return;
  }
  switch (job.shim) {
    case ShimState::kLiving: {
      Acknowledge(id, job, job.unacked.size());
      local::AgentToShim message;
      message.mutable_release();
      Send(id, job, 0, std::move(message));
      job.shim = ShimState::kReleased;
      break;
    }
    case ShimState::kNone:
      if (job.has_leftovers) {
        out_.push_back(RemoveShim{id});
      }
      jobs_.erase(it);
      break;
    case ShimState::kComing:    // At its hello.
    case ShimState::kReleased:  // When its socket closes.
      break;
  }
}

void JobTable::Changed(const RankState& rank) {
  const auto it = std::find_if(changed_.begin(), changed_.end(),
                               [&rank](const link::RankFacts& facts) { return facts.key == rank.facts.key; });
  if (it == changed_.end()) {
    changed_.push_back(rank.facts);
  } else {
    *it = rank.facts;
  }
}

std::vector<JobId> JobTable::Ids() const {
  std::vector<JobId> ids;
  ids.reserve(jobs_.size());
  for (const auto& [id, job] : jobs_) {
    ids.push_back(id);
  }
  return ids;
}

}  // namespace rayctl::agent
