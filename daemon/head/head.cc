#include "daemon/head/head.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/invariant.h"
#include "base/units.h"
#include "daemon/head/head_impl.h"

namespace rayctl::head {
namespace {

// A loop that is later than this was stalled: what it did not hear says nothing about the nodes.
constexpr Duration kStall = std::chrono::seconds(1);

}  // namespace

Head::Head(HeadConfig config, std::vector<Record> records, std::string new_cluster_id, Now now)
    : impl_(std::make_unique<Impl>(std::move(config), std::move(records), std::move(new_cluster_id), now)) {}
Head::~Head() = default;
Head::Head(Head&&) noexcept = default;
Head& Head::operator=(Head&&) noexcept = default;

std::vector<Effect> Head::On(const Event& event, Now now) { return impl_->On(event, now); }
std::optional<SteadyTime> Head::NextDeadline() const { return impl_->NextDeadline(); }
const ClusterRecord& Head::cluster() const { return impl_->cluster(); }
void Head::ShowRecorded(std::optional<std::map<JobId, JobRecord>> jobs) { recorded_ = std::move(jobs); }
const JobRecord* Head::FindJob(JobId id) const {
  const auto it = jobs().find(id);
  return it == jobs().end() ? nullptr : &it->second;
}
const JobRecord* Head::FindJobByName(std::string_view name) const {
  if (!recorded_) {
    return impl_->FindJobByName(name);
  }
  const auto newest = std::find_if(recorded_->rbegin(), recorded_->rend(),
                                   [name](const auto& job) { return job.second.spec.name == name; });
  return newest == recorded_->rend() ? nullptr : &newest->second;
}
const std::map<JobId, JobRecord>& Head::jobs() const { return recorded_ ? *recorded_ : impl_->jobs(); }
std::vector<Head::NodeStatus> Head::Nodes() const { return impl_->Nodes(); }
std::string Head::NodeName(NodeId id) const { return impl_->NodeName(id); }
const std::map<TokenId, TokenRecord>& Head::tokens() const { return impl_->tokens(); }
std::string Head::WaitingReason(JobId id) const { return impl_->WaitingReason(id); }
void Head::CheckInvariants() const { impl_->CheckInvariants(); }

Head::Impl::Impl(HeadConfig config, std::vector<Record> records, std::string new_cluster_id, Now now)
    : config_(std::move(config)), now_(now) {
  Load(std::move(records), std::move(new_cluster_id));
}

void Head::Impl::Load(std::vector<Record> records, std::string new_cluster_id) {
  cluster_.cluster_id = std::move(new_cluster_id);
  cluster_touched_ = true;
  for (Record& record : records) {
    if (auto* cluster = std::get_if<ClusterRecord>(&record)) {
      cluster_ = std::move(*cluster);
      cluster_touched_ = false;
    } else if (auto* job = std::get_if<JobRecord>(&record)) {
      jobs_.emplace(job->id, std::move(*job));
    } else if (auto* node = std::get_if<NodeRecord>(&record)) {
      nodes_.emplace(node->id, std::move(*node));
    } else if (auto* token = std::get_if<TokenRecord>(&record)) {
      TokenId& newest = newest_token_by_name_[token->name];
      newest = std::max(newest, token->id);
      tokens_.emplace(token->id, std::move(*token));
    }
  }
  for (const auto& [id, node] : nodes_) {
    NodeRuntime& runtime = runtimes_[id];
    runtime.last_sign = now_.steady;
    runtime.stream_ended_at = now_.steady;
    runtime.heartbeat_interval = config_.heartbeat_interval;
    runtime.suspect = node.state != NodeState::kDead;
    runtime.suspect_why = "the head was started; the agent has not come back yet";
    ledger_.SetNode(id, node.name, node.resources, node.gpu_count, node.labels);
    RefreshPresence(id);
  }
  RebuildJobs();
  for (const auto& [id, node] : nodes_) {
    Reschedule(id);
  }
}

void Head::Impl::RebuildJobs() {
  std::vector<std::pair<WallTime, JobId>> finished;
  for (auto& [id, job] : jobs_) {
    by_name_[job.spec.name].insert(id);
    if (!job.request_id.empty()) {
      by_request_[job.request_id] = id;
    }
    if (IsFinal(job.state)) {
      finished.emplace_back(job.ended_at, id);
      continue;
    }
    Tally tally;
    bool on_dead_node = false;
    for (const RankRecord& rank : job.attempt.ranks) {
      if (rank.HoldsLease()) {
        ledger_.Take(rank.node, job.spec.resources_per_worker, rank.devices);
        ++runtimes_[rank.node].leases[id];
        ++(rank.state == WorkerState::kStarting ? tally.starting : tally.running);
        on_dead_node = on_dead_node || StateOf(rank.node) == NodeState::kDead;
      } else {
        ++(rank.state == WorkerState::kExited && rank.end.Clean() ? tally.clean : tally.unclean);
      }
    }
    if (!job.attempt.ranks.empty()) {
      tallies_[id] = tally;
    }
    if (tally.leases() > 0) {
      runtimes_[job.attempt.ranks.front().node].ports.emplace(job.attempt.master_port, id);
    } else {
      Enqueue(job);
    }
    if (on_dead_node && !job.attempt.ended) {
      BeginMoving(job);
    }
    if (job.spec.timeout > Duration{0} && job.started_at != WallTime{}) {
      // The steady clock does not outlive the head; what has passed is read off the wall, within bounds.
      const Duration passed = std::clamp(now_.wall - job.started_at, Duration{0}, job.spec.timeout);
      timers_.Set({TimerKind::kJobTimeout, id.value}, now_.steady + (job.spec.timeout - passed));
    }
  }
  std::sort(finished.begin(), finished.end());
  for (const auto& [ended_at, id] : finished) {
    finished_.push_back(id);
  }
}

std::vector<Effect> Head::Impl::On(const Event& event, Now now) {
  const auto named = timers_.Next();
  now_ = now;
  if (named && now.steady - *named > kStall) {
    RestartCounts();
  }
  std::visit([this](const auto& what) { Handle(what); }, event);
  RunTimers();
  PlaceLine();
  AdvanceStop();
  EvictFinished();
  return TakeEffects();
}

void Head::Impl::Handle(const Tick&) {}

void Head::Impl::RunTimers() {
  while (const auto due = timers_.TakeDue(now_.steady)) {
    switch (due->kind) {
      case TimerKind::kNode:
        OnNodeTimer(NodeId{due->id});
        break;
      case TimerKind::kJobTimeout: {
        JobRecord& job = jobs_.at(JobId{due->id});
        StopJob(job, JobState::kFailed, Reason::kTimeout,
                fmt::format("timed out after {}", FormatDuration(job.spec.timeout)));
        break;
      }
      case TimerKind::kNodeLostGrace: {
        JobRecord& job = jobs_.at(JobId{due->id});
        StopMoving(job.id);
        LoseRanksOnDeadNodes(job, /*stop_requested=*/false);
        Evaluate(job.id);
        break;
      }
      case TimerKind::kStopBound:
        stop_bound_passed_ = true;
        break;
    }
  }
}

void Head::Impl::Handle(const AgentMessage& event) {
  const auto found = streams_.find(event.stream);
  if (found == streams_.end()) {
    if (const auto refusal = RefuseRegister(event.stream, event.node, event)) {
      out_.push_back(CloseStream{event.stream, *refusal});
      return;
    }
    OnRegister(event.stream, event.node, std::get<link::Register>(event.message.body));
    return;
  }
  Stream& stream = found->second;
  const NodeId node = stream.node;
  const auto verdict = stream.incoming.Take(event.message.sequence);
  if (verdict == link::SequenceCheck::Verdict::kDuplicate) {
    return;
  }
  if (verdict == link::SequenceCheck::Verdict::kGap) {
    CloseStreamOf(node, absl::AbortedError("a message is missing on this stream; register again"));
    return;
  }
  if (event.node != node || event.message.incarnation != stream.incarnation ||
      std::holds_alternative<link::Register>(event.message.body)) {
    CloseStreamOf(node, absl::AbortedError("a message of another incarnation; register again"));
    return;
  }
  OnSign(node);
  if (const auto* changed = std::get_if<link::RankChanged>(&event.message.body)) {
    if (const auto job = ApplyFacts(node, changed->facts)) {
      Evaluate(*job);
    }
  } else if (const auto* devices = std::get_if<link::DevicesChanged>(&event.message.body)) {
    OnDevicesChanged(node, *devices);
  } else if (const auto* goodbye = std::get_if<link::Goodbye>(&event.message.body)) {
    OnGoodbye(node, goodbye->why);
  } else if (std::holds_alternative<link::Heartbeat>(event.message.body)) {
    SendTo(node, link::HeartbeatHeard{});
  }
}

void Head::Impl::Handle(const AgentClosed& closed) {
  const auto found = streams_.find(closed.stream);
  if (found == streams_.end()) {
    return;
  }
  const NodeId node = found->second.node;
  streams_.erase(found);
  NodeRuntime& runtime = runtimes_[node];
  runtime.stream = StreamId{};
  // A crashed agent's system closes its connections at once. One that breaks after a silence was given up by our own
  // system's time-out: the node may be cut off.
  runtime.stream_state = runtime.suspect ? StreamState::kEndedByHead : StreamState::kEndedByAgent;
  runtime.stream_ended_at = now_.steady;
  if (nodes_.at(node).state != NodeState::kDead) {
    MarkSuspect(node, "its agent's connection ended");
  }
}

void Head::Impl::Handle(const RelayOutput& relay) {
  std::visit([&](const auto& what) { SendTo(relay.node, what); }, relay.what);
}

void Head::Impl::SendTo(NodeId node, decltype(link::HeadToAgent::body) body) {
  const auto runtime = runtimes_.find(node);
  if (runtime == runtimes_.end() || !runtime->second.stream) {
    return;  // Its registration will settle what is missing.
  }
  const StreamId id = runtime->second.stream;
  Stream& stream = streams_.at(id);
  out_.push_back(Send{id, {stream.incarnation, ++stream.last_sent, std::move(body)}});
}

void Head::Impl::Touch(JobId id) { touched_jobs_.insert(id); }

std::vector<Effect> Head::Impl::TakeEffects() {
  std::vector<Effect> effects;
  effects.reserve(out_.size() + 2 * touched_jobs_.size() + touched_nodes_.size() + touched_tokens_.size() +
                  erased_.size() + 1);
  if (std::exchange(cluster_touched_, false)) {
    effects.push_back(Put{cluster_});
  }
  for (const TokenId id : touched_tokens_) {
    effects.push_back(Put{tokens_.at(id)});
  }
  for (const NodeId id : touched_nodes_) {
    effects.push_back(Put{nodes_.at(id)});
  }
  for (const JobId id : touched_jobs_) {
    if (const auto job = jobs_.find(id); job != jobs_.end()) {
      effects.push_back(Put{job->second});
    }
  }
  for (const RecordKey& key : erased_) {
    effects.push_back(Erase{key});
  }
  std::move(out_.begin(), out_.end(), std::back_inserter(effects));
  for (const JobId id : touched_jobs_) {
    effects.push_back(JobChanged{id});
  }
  // Last, so that whoever stops on it has carried out the rest.
  if (const auto end =
          std::find_if(effects.begin(), effects.end(),
                       [](const Effect& effect) { return std::holds_alternative<ClusterStopped>(effect); });
      end != effects.end()) {
    std::rotate(end, end + 1, effects.end());
  }
  out_.clear();
  touched_jobs_.clear();
  touched_nodes_.clear();
  touched_tokens_.clear();
  erased_.clear();
  return effects;
}

}  // namespace rayctl::head
