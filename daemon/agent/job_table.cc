#include "daemon/agent/job_table.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/status_text.h"
#include "daemon/agent/rank_env.h"

namespace rayctl::agent {

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
    rank.devices = assignment.devices;
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
    rank.start.set_pids_max(config_.pids_max);
    rank.place = Place::kWaitsForWork;
  }
  if (!added_any) {
    return;
  }
  if (ConfigNeedsFile(group.spec)) {
    out_.push_back(WriteFile{paths.config_file, group.spec.train_loop_config_json});
  }
  // The port last: what is free now need not be when a folder has come.
  job.port_wish[group.attempt] = {group.master_port, checks_port};
  if (group.spec.working_dir.empty() || job.work == Work::kReady) {
    WorkDirAnswered({group.job, absl::OkStatus()}, now);
  } else if (job.work == Work::kNone) {
    job.work = Work::kComing;
    out_.push_back(PrepareWorkDir{group.job, group.spec.working_dir});
  }
}

void JobTable::WorkDirAnswered(const WorkDirPrepared& answer, Now now) {
  const auto it = jobs_.find(answer.job);
  if (it == jobs_.end()) {
    return;
  }
  Job& job = it->second;
  job.work = answer.status.ok() ? Work::kReady : Work::kNone;
  for (auto& [index, rank] : job.ranks) {
    if (rank.place != Place::kWaitsForWork || rank.Ended()) {
      continue;
    }
    if (answer.status.ok()) {
      rank.place = Place::kWaitsForPort;
      continue;
    }
    link::RankEnd end;
    end.start_failed = true;
    end.exit_code = 1;
    end.start_error = rayctl::Text(rayctl::Annotate(answer.status, "the working directory"));
    end.at = now.wall;
    End(rank, std::move(end), 0);
  }
  const std::map<AttemptNumber, PortWish> wishes = std::exchange(job.port_wish, {});
  if (!answer.status.ok()) {
    Settle(answer.job);
    return;
  }
  for (const auto& [attempt, wish] : wishes) {
    AskForPort(answer.job, attempt, wish, now);  // May erase the job.
  }
}

void JobTable::AskForPort(JobId id, AttemptNumber attempt, const PortWish& wish, Now now) {
  const link::RankKey key{id, attempt, 0};
  if (wish.checked) {
    out_.push_back(CheckPort{key, wish.port});
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

std::map<JobId, AttemptNumber> JobTable::LiveFrom() const {
  std::map<JobId, AttemptNumber> live;
  for (const auto& [id, job] : jobs_) {
    AttemptNumber oldest = job.newest;
    for (const auto& [index, rank] : job.ranks) {
      oldest = rank.Ended() ? oldest : std::min(oldest, index.first);
    }
    live.emplace(id, oldest);
  }
  return live;
}

std::vector<DeviceTable::Lease> JobTable::Leases() const {
  std::vector<DeviceTable::Lease> leases;
  for (const auto& [id, job] : jobs_) {
    for (const auto& [index, rank] : job.ranks) {
      if (!rank.Ended()) {
        leases.push_back(
            {rank.facts.key, rank.devices.value_or(std::vector<scheduler::DeviceShare>()), rank.devices.has_value()});
      }
    }
  }
  return leases;
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
