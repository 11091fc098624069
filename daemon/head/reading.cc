// What is known, and whether it is sound.
#include <fmt/format.h>

#include "base/invariant.h"
#include "daemon/head/head_impl.h"

namespace rayctl::head {

const JobRecord* Head::Impl::FindJobByName(std::string_view name) const {
  const auto named = by_name_.find(name);
  return named == by_name_.end() ? nullptr : &jobs_.at(*named->second.rbegin());
}

namespace {

void AddHolder(JobId job, NodeId node, const RankRecord& rank, std::vector<std::vector<JobId>>& holders) {
  for (const scheduler::DeviceShare& device : rank.devices) {
    if (rank.node == node && rank.HoldsLease() && device.index < holders.size() &&
        (holders[device.index].empty() || holders[device.index].back() != job)) {
      holders[device.index].push_back(job);
    }
  }
}

}  // namespace

std::vector<Head::NodeStatus> Head::Impl::Nodes() const {
  std::vector<NodeStatus> all;
  all.reserve(nodes_.size());
  for (const auto& [id, record] : nodes_) {
    NodeStatus status;
    status.record = record;
    status.state = StateOf(id);
    const NodeRuntime& runtime = runtimes_.at(id);
    if (status.state == NodeState::kSuspect) {
      status.record.reason = runtime.suspect_why;
    }
    if (const auto node = ledger_.nodes().find(id); node != ledger_.nodes().end()) {
      status.used = node->second.used;
      status.gpu_used = node->second.gpu_used;
    }
    status.last_seen = runtime.last_seen;
    status.remarks = runtime.remarks;
    status.devices = runtime.devices;
    status.device_jobs.resize(status.devices.size());
    for (const auto& [job, count] : status.devices.empty() ? decltype(runtime.leases){} : runtime.leases) {
      for (const RankRecord& rank : jobs_.at(job).attempt.ranks) {
        AddHolder(job, id, rank, status.device_jobs);
      }
    }
    status.connected = static_cast<bool>(runtime.stream);
    all.push_back(std::move(status));
  }
  return all;
}

std::string Head::Impl::NodeName(NodeId id) const {
  const auto node = nodes_.find(id);
  return node == nodes_.end() ? fmt::format("node {}", id.value) : node->second.name;
}

std::string Head::Impl::WaitingReason(JobId id) const {
  if (const auto waiting = in_line_.find(id); waiting != in_line_.end()) {
    if (stopping_) {
      return "the cluster is being stopped";
    }
    return waiting->second->reason;
  }
  if (moving_.contains(id)) {
    const JobRecord& job = jobs_.at(id);
    for (const RankRecord& rank : job.attempt.ranks) {
      if (rank.HoldsLease() && StateOf(rank.node) == NodeState::kDead) {
        return fmt::format("node {} is dead; {}", NodeName(rank.node),
                           HasFailuresLeft(job) ? "waits for room elsewhere or for its return"
                                                : "waits for its return, for there are no failures left");
      }
    }
  }
  return "";
}

void Head::Impl::CheckInvariants() const {
  std::map<NodeId, Resources> used;
  std::map<NodeId, std::map<std::uint32_t, Amount>> gpu_used;
  std::map<NodeId, std::map<JobId, std::uint32_t>> leases;
  std::size_t queued = 0;
  for (const auto& [id, job] : jobs_) {
    const AttemptRecord& attempt = job.attempt;
    Invariant(attempt.ranks.empty() || attempt.ranks.size() == job.spec.num_workers, "a gang is placed whole or not");
    Tally tally;
    for (const RankRecord& rank : attempt.ranks) {
      if (!rank.HoldsLease()) {
        ++(rank.state == WorkerState::kExited && rank.end.Clean() ? tally.clean : tally.unclean);
        continue;
      }
      ++(rank.state == WorkerState::kStarting ? tally.starting : tally.running);
      used[rank.node].Add(job.spec.resources_per_worker);
      ++leases[rank.node][id];
      Amount gpus;
      for (const scheduler::DeviceShare& device : rank.devices) {
        gpu_used[rank.node][device.index] += device.share;
        gpus += device.share;
      }
      Invariant(gpus == job.spec.resources_per_worker.Get(kGpu), "a rank has the devices that it asked for");
    }
    queued += job.state == JobState::kQueued ? 1 : 0;
    if (IsFinal(job.state)) {
      Invariant(tally.leases() == 0 && !in_line_.contains(id) && !moving_.contains(id), "a final job holds nothing");
      Invariant(job.exit_code.has_value(), "a final job has an exit code");
      continue;
    }
    Invariant(!job.exit_code.has_value(), "a living job has no exit code");
    const bool waits = job.state == JobState::kQueued || (job.state == JobState::kRecovering && tally.leases() == 0);
    Invariant(in_line_.contains(id) == waits, "who holds nothing and is not final waits in line");
    Invariant(!waits || attempt.ranks.empty() || attempt.ended, "who waits has no living attempt");
    Invariant(job.state != JobState::kStopping || (attempt.ended && tally.leases() > 0),
              "a job is STOPPING only while ranks are there");
    if (!attempt.ranks.empty()) {
      const Tally& kept = tallies_.at(id);
      Invariant(kept.starting == tally.starting && kept.running == tally.running && kept.clean == tally.clean &&
                    kept.unclean == tally.unclean,
                "the tally of an attempt is that of its ranks");
    }
    if (tally.leases() > 0) {
      Invariant(runtimes_.at(attempt.ranks.front().node).ports.contains(attempt.master_port),
                "the port of a living attempt is not given again");
    }
  }
  Invariant(queued == queued_, "the count of queued jobs is that of the records");
  for (const auto& [id, node] : ledger_.nodes()) {
    Invariant(node.used == used[id], "the sum of leases is what is used");
    for (std::uint32_t i = 0; i < node.gpu_used.size(); ++i) {
      Invariant(node.gpu_used[i] == gpu_used[id][i], "the sum of device shares is what is used");
      Invariant(node.gpu_used[i] <= Amount::Units(1), "a device is lent once");
    }
    Invariant(runtimes_.at(id).leases == leases[id], "the leases of a node are those of the records");
    used.erase(id);
  }
  for (const auto& [id, left] : used) {
    Invariant(left.Empty(), "nothing is leased on an unknown node");
  }
}

}  // namespace rayctl::head
