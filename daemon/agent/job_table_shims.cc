#include <algorithm>
#include <csignal>
#include <set>
#include <utility>

#include "daemon/agent/job_table.h"

// The part of JobTable that speaks with shims.
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
  end.out_of_memory = exit.out_of_memory();
  end.memory_peak_bytes = exit.memory_peak_bytes();
  end.memory_bytes_max = exit.memory_bytes_max();
  end.pids_max_reached = exit.pids_max_reached();
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
  returned_.push_back(rank.devices);
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

// ---- What shims are told.

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

}  // namespace rayctl::agent
