// What an agent says when it comes, comes back, and goes.
#include <fmt/format.h>

#include <algorithm>

#include "base/invariant.h"
#include "daemon/head/head_impl.h"

namespace rayctl::head {

// A node that was here, is dead and holds nothing: the same machine may come back with a fresh state folder.
bool Head::Impl::GaveUpItsName(const NodeRecord& node) const {
  const auto runtime = runtimes_.find(node.id);
  return node.state == NodeState::kDead && !node.boot_id.empty() &&
         (runtime == runtimes_.end() || runtime->second.leases.empty());
}

std::string Head::Impl::UniqueNodeName(const std::string& wanted, NodeId self) const {
  const std::string base = wanted.empty() ? "node" : wanted;
  const auto taken = [&](const std::string& name) {
    return std::any_of(nodes_.begin(), nodes_.end(), [&](const auto& node) {
      return node.first != self && node.second.name == name && !GaveUpItsName(node.second);
    });
  };
  std::string name = base;
  for (std::uint32_t number = 2; taken(name); ++number) {
    name = fmt::format("{}-{}", base, number);
  }
  return name;
}

// Another may have taken the name while this node was dead.
void Head::Impl::KeepOrChangeName(NodeRecord& node) {
  std::string name = UniqueNodeName(node.name, node.id);
  if (name != node.name) {
    node.name = std::move(name);
    touched_nodes_.insert(node.id);
  }
}

void Head::Impl::Handle(const JoinNode& join) {
  if (stopping_) {
    Fail(join.call, absl::UnavailableError("the cluster is being stopped"));
    return;
  }
  if (const auto known = nodes_.find(join.known); known != nodes_.end()) {
    KeepOrChangeName(known->second);
    Answered(join.call, JoinAnswer{known->first, known->second.name});
    return;
  }
  const NodeId id{cluster_.next_node++};
  cluster_touched_ = true;
  NodeRecord& node = nodes_[id];
  node.id = id;
  node.name = UniqueNodeName(join.node_name, id);
  node.is_head_node = join.is_head_node;
  node.state = NodeState::kDead;
  node.reason = "it has joined and not yet registered";
  touched_nodes_.insert(id);
  runtimes_[id].heartbeat_interval = config_.heartbeat_interval;
  Answered(join.call, JoinAnswer{id, node.name});
}

// Why this first message of a stream is not taken; nullopt: it is.
std::optional<absl::Status> Head::Impl::RefuseRegister(StreamId stream, NodeId node, const AgentMessage& event) const {
  const auto* message = std::get_if<link::Register>(&event.message.body);
  if (message == nullptr || event.message.sequence != 1 || event.message.incarnation != 0) {
    return absl::AbortedError("the first message of a stream registers the agent");
  }
  if (message->protocol != link::kProtocol) {
    return absl::FailedPreconditionError(
        fmt::format("this agent ({}) speaks protocol {}, the head ({}) protocol {}; run the same version of rayctl on "
                    "every node",
                    message->version, message->protocol, config_.version, link::kProtocol));
  }
  if (!nodes_.contains(node)) {
    return absl::NotFoundError(
        fmt::format("node {} is not known to this cluster; join again with a fresh state directory", node.value));
  }
  if (stream <= runtimes_.at(node).newest_stream) {
    return absl::AbortedError("a newer connection of this node is there");
  }
  return std::nullopt;
}

void Head::Impl::CloseStreamOf(NodeId node, absl::Status why) {
  NodeRuntime& runtime = runtimes_[node];
  if (!runtime.stream) {
    return;
  }
  streams_.erase(runtime.stream);
  const StreamId stream = std::exchange(runtime.stream, StreamId{});
  runtime.stream_state = StreamState::kEndedByHead;
  runtime.stream_ended_at = now_.steady;
  if (nodes_.at(node).state != NodeState::kDead) {
    MarkSuspect(node, std::string(why.message()));
  }
  out_.push_back(CloseStream{stream, std::move(why)});
}

void Head::Impl::OnRegister(StreamId stream, NodeId node, const link::Register& message) {
  CloseStreamOf(node, absl::AbortedError("a newer connection of this node is there"));
  NodeRecord& record = nodes_.at(node);
  NodeRuntime& runtime = runtimes_[node];
  std::set<JobId> to_evaluate;

  const bool restarted = !record.boot_id.empty() && record.boot_id != message.boot_id;
  if (restarted) {
    const auto leases = runtime.leases;
    for (const auto& [id, count] : leases) {
      JobRecord& job = jobs_.at(id);
      LoseRanksOn(job, node, "the machine was restarted", /*stop_requested=*/job.attempt.ended);
      StopMoving(id);
      to_evaluate.insert(id);
    }
  }
  const auto gpus = message.resources.Get(kGpu);
  KeepOrChangeName(record);
  record.version = message.version;
  record.boot_id = message.boot_id;
  record.address = message.address;
  record.interface_name = message.interface_name;
  record.resources = message.resources;
  record.labels = message.labels;
  record.gpu_count = static_cast<std::uint32_t>(std::max<std::int64_t>(0, gpus.raw / Amount::kUnit));
  record.port_min = message.port_min;
  record.port_max = message.port_max;
  record.is_head_node = record.is_head_node || message.is_head_node;
  record.said_goodbye = false;
  record.state = NodeState::kAlive;
  record.reason.clear();
  touched_nodes_.insert(node);
  const auto living = static_cast<std::size_t>(std::count_if(
      nodes_.begin(), nodes_.end(), [](const auto& other) { return other.second.state != NodeState::kDead; }));
  runtime.heartbeat_interval = config_.heartbeat_interval * (living > config_.many_nodes ? 2 : 1);
  runtime.remarks = message.remarks;
  runtime.newest_stream = stream;
  runtime.stale.clear();
  ledger_.SetNode(node, record.name, record.resources, record.gpu_count, record.labels);
  SetDevices(node, message.devices);

  // Nothing is sent before Registered: until then the node has no stream.
  std::set<link::RankKey> reported;
  std::set<JobId> ended;
  for (const link::RankFacts& facts : message.ranks) {
    reported.insert(facts.key);
    if (const auto job = ApplyFacts(node, facts)) {
      to_evaluate.insert(*job);
    }
    if (facts.state == WorkerState::kExited || facts.state == WorkerState::kLost) {
      ended.insert(facts.key.job);
    }
  }
  const auto leases = runtime.leases;
  for (const auto& [id, count] : leases) {
    JobRecord& job = jobs_.at(id);
    for (Rank rank = 0; rank < job.attempt.ranks.size(); ++rank) {
      const RankRecord& known = job.attempt.ranks[rank];
      if (known.node != node || !known.HoldsLease() || reported.contains({id, job.attempt.number, rank})) {
        continue;
      }
      // Told to start and not heard of: it is told again. Any other that the agent does not know is gone.
      if (job.attempt.ended || known.state == WorkerState::kRunning) {
        Lose(job, rank, "its agent does not know it any more", /*stop_requested=*/job.attempt.ended);
        to_evaluate.insert(id);
      }
    }
  }
  ReturnFromMoving(node);

  const Incarnation incarnation = cluster_.next_incarnation++;
  cluster_touched_ = true;
  runtime.stream = stream;
  runtime.stream_state = StreamState::kOpen;
  Stream& opened = streams_[stream];
  opened.node = node;
  opened.incarnation = incarnation;
  opened.incoming.Take(1);
  link::Registered registered;
  registered.heartbeat_interval = runtime.heartbeat_interval;
  std::set<JobId> kept;
  for (const auto& [id, count] : runtime.leases) {
    registered.groups.push_back(MakeStartGroup(jobs_.at(id), node));
  }
  for (const auto& [id, demand] : in_line_) {
    if (RunsOn(jobs_.at(id), node)) {
      kept.insert(id);
    }
  }
  for (const auto& [id, tally] : tallies_) {
    if (RunsOn(jobs_.at(id), node)) {
      kept.insert(id);
    }
  }
  for (const link::RankKey& key : runtime.stale) {
    kept.insert(key.job);  // Until their ends were reported: only then are their devices known to be free.
  }
  registered.kept_jobs.assign(kept.begin(), kept.end());
  SendTo(node, std::move(registered));
  for (const JobId id : ended) {
    if (const auto job = jobs_.find(id); job != jobs_.end() && RunsOn(job->second, node)) {
      Forget(node, id, LastSettled(job->second));
    }
  }
  for (const auto& [id, count] : runtime.leases) {
    const JobRecord& job = jobs_.at(id);
    if (job.attempt.ended) {
      SendTo(node, link::StopGroup{id, job.attempt.number, job.spec.grace_period, job.message});
    }
  }
  OnSign(node);
  MarkAlive(node);
  for (const JobId id : to_evaluate) {
    Evaluate(id);
  }
  if (stopped_) {
    SendTo(node, link::LeaveCluster{stop_why_});
  }
}

void Head::Impl::SetDevices(NodeId node, const std::vector<link::Device>& devices) {
  std::set<std::uint32_t> fenced;
  for (std::uint32_t i = 0; i < devices.size(); ++i) {
    if (!devices[i].problem.empty()) {
      fenced.insert(i);
    }
  }
  runtimes_[node].devices = devices;
  ledger_.SetFenced(node, std::move(fenced));
}

void Head::Impl::OnDevicesChanged(NodeId node, const link::DevicesChanged& changed) {
  if (changed.devices.size() != runtimes_[node].devices.size()) {
    CloseStreamOf(node, absl::AbortedError("the node has other devices than it registered; register again"));
    return;
  }
  SetDevices(node, changed.devices);
}

// The node is being stopped and its ranks end with it: their groups move, and it counts as no failure.
void Head::Impl::OnGoodbye(NodeId node, const std::string& why) {
  NodeRecord& record = nodes_.at(node);
  if (record.said_goodbye) {
    return;
  }
  record.said_goodbye = true;
  MarkDead(node, why.empty() ? "it said goodbye" : fmt::format("it said goodbye: {}", why));
}

}  // namespace rayctl::head
