#include "worker/shim/shim.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "worker/process/output_log.h"
#include "worker/shim/shim_impl.h"

namespace rayctl::shim {

Shim::Shim(ShimConfig config, Now now) : impl_(std::make_unique<Impl>(std::move(config), now)) {}
Shim::~Shim() = default;
Shim::Shim(Shim&&) noexcept = default;
Shim& Shim::operator=(Shim&&) noexcept = default;
std::vector<Effect> Shim::On(const Event& event, Now now) { return impl_->On(event, now); }
std::optional<SteadyTime> Shim::NextDeadline() const { return impl_->NextDeadline(); }
bool Shim::AnyRankAlive() const { return impl_->AnyRankAlive(); }

std::vector<Effect> Shim::Impl::On(const Event& event, Now now) {
  now_ = now;
  effects_.clear();
  if (exited_) {
    return {};
  }
  std::visit([this](const auto& e) { Handle(e); }, event);
  CheckDeadlines();
  ExitIfDone();
  return std::exchange(effects_, {});
}

std::optional<SteadyTime> Shim::Impl::NextDeadline() const {
  std::optional<SteadyTime> next;
  const auto consider = [&next](SteadyTime at) { next = next ? std::min(*next, at) : at; };
  if (exited_) {
    return next;
  }
  if (agent_gone_since_ && !ending_) {
    consider(*agent_gone_since_ + config_.agent_grace);
  }
  for (const auto& [home, rank] : ranks_) {
    if (rank.alive() && rank.kill_at) {
      consider(*rank.kill_at);
    }
  }
  return next;
}

bool Shim::Impl::AnyRankAlive() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& entry) { return entry.second.alive(); });
}

RankState* Shim::Impl::FindHome(const RankRef& home) {
  const auto found = ranks_.find(home);
  return found == ranks_.end() ? nullptr : &found->second;
}

RankState* Shim::Impl::FindCurrent(const RankRef& current) {
  for (auto& [home, rank] : ranks_) {
    if (rank.current == current) {
      return &rank;
    }
  }
  return nullptr;
}

std::vector<RankState*> Shim::Impl::LiveRanks(std::uint32_t group, AttemptNumber attempt) {
  std::vector<RankState*> result;
  for (auto& [home, rank] : ranks_) {
    if (rank.alive() && rank.current.group == group && rank.current.attempt == attempt) {
      result.push_back(&rank);
    }
  }
  return result;
}

AttemptNumber Shim::Impl::Latest(std::uint32_t group) const {
  const auto found = latest_.find(group);
  return found == latest_.end() ? 0 : found->second;
}

// ---- The agent.

void Shim::Impl::Handle(const AgentConnected&) {
  agent_gone_since_.reset();
  agent_ready_ = false;
  head_reachable_ = false;
}

void Shim::Impl::Handle(const AgentClosed&) {
  agent_gone_since_ = now_.steady;
  agent_ready_ = false;
  head_reachable_ = false;
  TryEverybody();  // Reports that waited for the head may now be spooled for it.
}

void Shim::Impl::Handle(const AgentSaid& event) {
  using Body = local::AgentToShim;
  const local::AgentToShim& message = event.message;
  const local::RankId& id = message.id();
  if (id.job_id() != config_.job.value) {
    RefuseAgent(
        id, local::REFUSAL_CODE_BAD_MESSAGE,
        "this is the shim of job " + std::to_string(config_.job.value) + ", not of job " + std::to_string(id.job_id()));
    return;
  }
  switch (message.body_case()) {
    case Body::kHello:
      Hello(message.hello());
      return;
    case Body::kStop:  // Ranks of an older attempt may still be stopped.
      Stop(id, message.stop());
      return;
    case Body::kRelease:
      Release();
      return;
    case Body::kAck:
      Acknowledge(message.ack().sequence());
      return;
    case Body::kHeadReachable:
      head_reachable_ = message.head_reachable().reachable();
      TryEverybody();
      return;
    default:
      break;
  }
  if (id.attempt() < Latest(id.group())) {
    RefuseAgent(id, local::REFUSAL_CODE_OLD_ATTEMPT,
                "attempt " + std::to_string(id.attempt()) + " is over: attempt " + std::to_string(Latest(id.group())) +
                    " has begun");
    return;
  }
  if (message.body_case() == Body::kStart) {
    Start(id, message.start());
    return;
  }
  // The rest is about an attempt that has been started here; for any other there is nobody to tell.
  if (!attempts_.contains({id.group(), id.attempt()})) {
    RefuseAgent(id, local::REFUSAL_CODE_UNKNOWN_RANK,
                "no rank of attempt " + std::to_string(id.attempt()) + " was started here");
    return;
  }
  switch (message.body_case()) {
    case Body::kHold:
      return Hold(id, message.hold());
    case Body::kBoundary:
      return Boundary(id, message.boundary());
    case Body::kPass:
      return Pass(id, message.pass());
    case Body::kCancelBoundary:
      return Cancel(id, message.cancel_boundary());
    case Body::kReportsComplete:
      return Complete(id, message.reports_complete());
    case Body::kNotify:
      return Notify(id, message.notify());
    case Body::kReleaseBarrier:
      return ReleaseBarrier(id, message.release_barrier());
    case Body::kDeliverBroadcast:
      return Deliver(id, message.deliver_broadcast());
    case Body::kDecide:
      return Decide(id, message.decide());
    default:
      RefuseAgent(id, local::REFUSAL_CODE_BAD_MESSAGE, "unknown message of a newer agent");
  }
}

void Shim::Impl::Hello(const local::AgentHello& hello) {
  agent_ready_ = true;
  if (hello.protocol() == 0) {
    agent_ready_ = false;
    local::ShimToAgent refusal;
    refusal.mutable_id()->set_job_id(config_.job.value);
    refusal.mutable_refused()->set_code(local::REFUSAL_CODE_BAD_MESSAGE);
    refusal.mutable_refused()->set_message("the hello names no protocol");
    effects_.push_back(SendAgent{std::move(refusal)});
    return;
  }
  if (hello.agent_grace_millis() > 0) {
    config_.agent_grace = SpanOf(hello.agent_grace_millis());
  }
  Acknowledge(hello.replay_after());
  local::ShimToAgent answer;
  answer.mutable_id()->set_job_id(config_.job.value);
  local::ShimHello* body = answer.mutable_hello();
  body->set_protocol(std::min(kProtocol, hello.protocol()));
  body->set_shim_version(config_.version);
  body->set_shim_pid(config_.pid);
  body->set_job_id(config_.job.value);
  body->set_last_sequence(last_sequence_);
  for (const auto& [home, rank] : ranks_) {
    local::RankStatus* status = body->add_ranks();
    status->set_attempt(rank.current.attempt);
    status->set_group(rank.current.group);
    status->set_rank(rank.current.rank);
    status->set_phase(rank.phase);
    status->set_pid(rank.pid);
    status->set_pid_start_ticks(rank.start_ticks);
    if (!rank.alive()) {
      *status->mutable_exit() = rank.exit;
    }
  }
  effects_.push_back(SendAgent{std::move(answer)});
  for (const local::ShimToAgent& message : unacknowledged_) {
    effects_.push_back(SendAgent{message});
  }
  RepeatUnnumbered();
}

void Shim::Impl::Start(const local::RankId& id, const local::StartRanks& start) {
  if (ending_) {
    RefuseAgent(id, local::REFUSAL_CODE_UNKNOWN_RANK, "this shim is ending: its agent was gone for too long");
    return;
  }
  latest_[id.group()] = id.attempt();
  for (const local::RankStart& wanted : start.ranks()) {
    const RankRef ref{id.group(), id.attempt(), wanted.rank()};
    if (FindCurrent(ref) != nullptr || FindHome(ref) != nullptr) {
      continue;
    }
    RankState& rank = ranks_[ref];
    rank.home = ref;
    rank.current = ref;
    rank.context = wanted.context();
    attempts_.try_emplace({ref.group, ref.attempt});
    WriteState write;
    write.record.set_group(ref.group);
    write.record.set_attempt(ref.attempt);
    write.record.set_rank(ref.rank);
    *write.record.mutable_starting() = wanted;
    write.record.mutable_starting()->clear_argv();  // Both may hold secrets, and nobody starts a rank again from here.
    write.record.mutable_starting()->clear_env();
    effects_.push_back(std::move(write));
    effects_.push_back(Spawn{ref, wanted});
  }
}

void Shim::Impl::Stop(const local::RankId& id, const local::StopRanks& stop) {
  for (RankState* rank : LiveRanks(id.group(), id.attempt())) {
    const auto& wanted = stop.ranks();
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), rank->current.rank) == wanted.end()) {
      continue;
    }
    rank->stop_requested = true;
    if (rank->last_signal == SIGKILL) {
      continue;
    }
    if (stop.grace_millis() == 0) {
      Signal(*rank, SIGKILL);
      continue;
    }
    const SteadyTime deadline = now_.steady + SpanOf(stop.grace_millis());
    rank->kill_at = rank->kill_at ? std::min(*rank->kill_at, deadline) : deadline;
    if (rank->last_signal == 0) {
      Signal(*rank, SIGTERM);
    }
  }
}

void Shim::Impl::Release() {
  if (AnyRankAlive()) {
    local::RankId id;
    RefuseAgent(id, local::REFUSAL_CODE_BAD_MESSAGE, "ranks still run: stop them before the shim is released");
    return;
  }
  exited_ = true;
  effects_.push_back(Exit{true, "released"});
}

void Shim::Impl::RefuseAgent(const local::RankId& id, local::RefusalCode code, std::string why) {
  if (!agent_ready_) {
    return;
  }
  local::ShimToAgent message;
  *message.mutable_id() = id;
  message.mutable_id()->set_job_id(config_.job.value);
  message.mutable_id()->set_sequence(0);
  message.mutable_refused()->set_code(code);
  message.mutable_refused()->set_message(std::move(why));
  effects_.push_back(SendAgent{std::move(message)});
}

void Shim::Impl::Acknowledge(std::uint64_t sequence) {
  while (!unacknowledged_.empty() && unacknowledged_.front().id().sequence() <= sequence) {
    unacknowledged_.pop_front();
  }
}

void Shim::Impl::Emit(const RankState& rank, local::ShimToAgent message) {
  using Body = local::ShimToAgent;
  local::RankId* id = message.mutable_id();
  id->set_job_id(config_.job.value);
  id->set_group(rank.current.group);
  id->set_attempt(rank.current.attempt);
  id->set_rank(rank.current.rank);
  id->set_sequence(++last_sequence_);
  WriteState write;
  write.record.set_sequence(last_sequence_);
  write.record.set_group(rank.current.group);
  write.record.set_attempt(rank.current.attempt);
  write.record.set_rank(rank.current.rank);
  switch (message.body_case()) {
    case Body::kStarted:
      *write.record.mutable_started() = message.started();
      break;
    case Body::kExited:
      *write.record.mutable_exited() = message.exited();
      break;
    case Body::kReport:
      *write.record.mutable_report() = message.report();
      break;
    case Body::kFailed:
      *write.record.mutable_failed() = message.failed();
      break;
    default:
      break;
  }
  effects_.push_back(std::move(write));
  unacknowledged_.push_back(message);
  if (agent_ready_) {
    effects_.push_back(SendAgent{std::move(message)});
  }
}

void Shim::Impl::Say(const RankState& rank, local::ShimToAgent message) {
  if (!agent_ready_) {
    return;
  }
  local::RankId* id = message.mutable_id();
  id->set_job_id(config_.job.value);
  id->set_group(rank.current.group);
  id->set_attempt(rank.current.attempt);
  id->set_rank(rank.current.rank);
  effects_.push_back(SendAgent{std::move(message)});
}

// ---- The lives of the ranks.

void Shim::Impl::Handle(const Spawned& event) {
  RankState* rank = FindHome(event.rank);
  if (rank == nullptr || rank->phase != local::RANK_PHASE_STARTING) {
    return;
  }
  rank->phase = local::RANK_PHASE_RUNNING;
  rank->pid = event.pid;
  rank->start_ticks = event.start_ticks;
  local::ShimToAgent message;
  message.mutable_started()->set_pid(event.pid);
  message.mutable_started()->set_pid_start_ticks(event.start_ticks);
  message.mutable_started()->set_unix_nanos(WallNanos());
  Emit(*rank, std::move(message));
  if (rank->last_signal != 0) {
    effects_.push_back(Kill{rank->home, rank->last_signal});  // It was asked for before there was anybody to kill.
  }
}

void Shim::Impl::Handle(const SpawnFailed& event) {
  RankState* rank = FindHome(event.rank);
  if (rank == nullptr || !rank->alive()) {
    return;
  }
  local::RankExited exit;
  exit.set_exit_code(event.exit_code);
  exit.set_start_failed(true);
  exit.set_start_error(process::ToUtf8(event.why));  // It may quote the command.
  Ended(*rank, std::move(exit));
}

void Shim::Impl::Handle(const Exited& event) {
  RankState* rank = FindHome(event.rank);
  if (rank == nullptr || !rank->alive()) {
    return;
  }
  local::RankExited exit;
  exit.set_exit_code(event.exit_code);
  exit.set_signal(event.signal);
  exit.set_last_output(event.last_output);
  exit.set_log_bytes(event.log_bytes);
  exit.set_memory_peak_bytes(event.memory_peak_bytes);
  exit.set_out_of_memory(event.out_of_memory);
  exit.set_memory_bytes_max(event.memory_bytes_max);
  exit.set_pids_max_reached(event.pids_max_reached);
  exit.set_peer_lost(rank->peer_lost);
  Ended(*rank, std::move(exit));
}

void Shim::Impl::Ended(RankState& rank, local::RankExited exit) {
  exit.set_stop_requested(rank.stop_requested);
  exit.set_unix_nanos(WallNanos());
  rank.phase = local::RANK_PHASE_EXITED;
  rank.kill_at.reset();
  rank.exit = exit;
  rank.waiting.reset();  // What had not been let through is dropped with the attempt.
  rank.owed.reset();
  rank.barrier_entered = 0;
  rank.broadcast_waiting = 0;
  rank.broadcast_given.reset();
  local::ShimToAgent message;
  *message.mutable_exited() = std::move(exit);
  Emit(rank, std::move(message));
  if (rank.connected) {
    rank.connected = false;
    effects_.push_back(CloseRankSocket{rank.home, "the rank has ended"});
  }
  ForgetBroadcasts({rank.current.group, rank.current.attempt});
}

void Shim::Impl::Signal(RankState& rank, int signal) {
  rank.last_signal = signal;
  if (signal == SIGKILL) {
    rank.kill_at = now_.steady + config_.kill_wait;
  }
  effects_.push_back(Kill{rank.home, signal});
}

void Shim::Impl::Handle(const Tick&) {}  // CheckDeadlines runs after every event.

void Shim::Impl::CheckDeadlines() {
  if (agent_gone_since_ && !ending_ && now_.steady >= *agent_gone_since_ + config_.agent_grace) {
    ending_ = true;
    for (auto& [home, rank] : ranks_) {
      if (rank.alive()) {
        rank.stop_requested = true;
        Signal(rank, SIGKILL);
      }
    }
  }
  for (auto& [home, rank] : ranks_) {
    if (rank.alive() && rank.kill_at && now_.steady >= *rank.kill_at) {
      Signal(rank, SIGKILL);
    }
  }
}

void Shim::Impl::ExitIfDone() {
  if (!exited_ && ending_ && !AnyRankAlive()) {
    exited_ = true;
    effects_.push_back(Exit{
        false, "no agent for " +
                   std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(config_.agent_grace).count()) +
                   " ms"});
  }
}

}  // namespace rayctl::shim
