// Who is placed next: high priority first, then the older job. A job that must wait does not hold up smaller ones
// behind it. Jobs that ask for the same are one demand: what one of them is told holds for all until the ledger
// changes, so a long line costs no more than its number of different demands.
#include <fmt/format.h>

#include <algorithm>

#include "base/invariant.h"
#include "daemon/head/head_impl.h"

namespace rayctl::head {
namespace {

constexpr std::string_view kLoopback = "127.0.0.1";
constexpr std::string_view kAcceleratorLabel = "accelerator_type";
// For nodes that named no range: below Linux's ephemeral ports.
constexpr std::uint32_t kDefaultPortMin = 20'000;
constexpr std::uint32_t kDefaultPortMax = 29'999;

}  // namespace

Head::Impl::DemandKey Head::Impl::DemandOf(const JobSpec& spec) {
  DemandKey key;
  key.num_workers = spec.num_workers;
  key.strategy = spec.placement_strategy;
  key.want = spec.resources_per_worker.amounts();
  key.labels = spec.label_selector;
  if (!spec.accelerator_type.empty()) {
    key.labels[std::string(kAcceleratorLabel)] = spec.accelerator_type;
  }
  return key;
}

scheduler::PlacementGroup Head::Impl::GroupOf(const JobSpec& spec) {
  const DemandKey key = DemandOf(spec);
  scheduler::PlacementGroup group;
  group.strategy = spec.placement_strategy;
  group.bundles.assign(spec.num_workers, scheduler::Bundle{spec.resources_per_worker, key.labels});
  return group;
}

void Head::Impl::Enqueue(JobRecord& job) {
  const auto [it, added] = demands_.try_emplace(DemandOf(job.spec));
  Demand& demand = it->second;
  if (added) {
    demand.group = GroupOf(job.spec);
  }
  demand.waiting.insert({-static_cast<std::int64_t>(job.spec.priority), job.id});
  in_line_[job.id] = &demand;
  if (job.state == JobState::kQueued) {
    ++queued_;
    ShowVerdict(job, demand);
  }
}

void Head::Impl::LeaveLine(JobId id) {
  const auto found = in_line_.find(id);
  if (found == in_line_.end()) {
    return;
  }
  const JobRecord& job = jobs_.at(id);
  Demand& demand = *found->second;
  demand.waiting.erase({-static_cast<std::int64_t>(job.spec.priority), id});
  in_line_.erase(found);
  if (job.state == JobState::kQueued) {
    --queued_;
  }
  if (demand.waiting.empty()) {
    demands_.erase(DemandOf(job.spec));
  }
}

void Head::Impl::ShowVerdict(JobRecord& job, const Demand& demand) {
  if (job.state != JobState::kQueued || demand.verdict == Verdict::kUntried) {
    return;
  }
  const Reason reason = demand.verdict == Verdict::kInfeasible ? Reason::kInfeasible : Reason::kNone;
  if (job.reason != reason) {
    job.reason = reason;
    job.message = reason == Reason::kInfeasible ? demand.reason : "";
    Touch(job.id);
  }
}

void Head::Impl::SetVerdict(Demand& demand, Verdict verdict, std::string reason) {
  const bool changed = demand.verdict != verdict;
  demand.verdict = verdict;
  demand.reason = std::move(reason);
  demand.tried_at = ledger_.generation();
  if (!changed) {
    return;
  }
  for (const auto& [priority, id] : demand.waiting) {
    ShowVerdict(jobs_.at(id), demand);
  }
}

// Whether the whole gang fits if what it holds on living nodes is given back first.
bool Head::Impl::HasRoomToMove(const JobRecord& job) const {
  scheduler::ClusterView view = ledger_.view();
  for (const RankRecord& rank : job.attempt.ranks) {
    if (!rank.HoldsLease()) {
      continue;
    }
    const auto node = std::lower_bound(view.nodes.begin(), view.nodes.end(), rank.node,
                                       [](const scheduler::NodeView& a, NodeId b) { return a.id < b; });
    if (node == view.nodes.end() || node->id != rank.node) {
      continue;
    }
    node->free.Add(job.spec.resources_per_worker);
    for (const scheduler::DeviceShare& device : rank.devices) {
      if (ledger_.IsFenced(rank.node, device.index)) {
        node->free.Set(kGpu, node->free.Get(kGpu) - device.share);  // Given back, it would not be free.
      } else if (device.index < node->gpu_free.size()) {
        node->gpu_free[device.index] += device.share;
      }
    }
  }
  return std::holds_alternative<scheduler::Placed>(scheduler::Place(view, GroupOf(job.spec)));
}

void Head::Impl::PlaceLine() {
  if (stopping_) {
    return;
  }
  while (true) {
    // The first in line among those for whom something may have changed.
    std::optional<LinePlace> first;
    Demand* demand = nullptr;
    for (auto& [key, candidate] : demands_) {
      if (candidate.tried_at != ledger_.generation() && (!first || *candidate.waiting.begin() < *first)) {
        first = *candidate.waiting.begin();
        demand = &candidate;
      }
    }
    for (const auto& [id, tried_at] : moving_) {
      const JobRecord& job = jobs_.at(id);
      const LinePlace place{-static_cast<std::int64_t>(job.spec.priority), id};
      if (tried_at != ledger_.generation() && HasFailuresLeft(job) && (!first || place < *first)) {
        first = place;
        demand = nullptr;
      }
    }
    if (!first) {
      return;
    }
    JobRecord& job = jobs_.at(first->second);
    if (demand == nullptr) {
      moving_[job.id] = ledger_.generation();
      if (HasRoomToMove(job)) {
        LoseRanksOnDeadNodes(job, /*stop_requested=*/false);
        Evaluate(job.id);
      }
      continue;
    }
    scheduler::Decision decision = scheduler::Place(ledger_.view(), demand->group);
    if (const auto* placed = std::get_if<scheduler::Placed>(&decision)) {
      StartAttempt(job, *placed);
    } else if (auto* waiting = std::get_if<scheduler::Waiting>(&decision)) {
      SetVerdict(*demand, Verdict::kWaiting, std::move(waiting->reason));
    } else {
      SetVerdict(*demand, Verdict::kInfeasible, std::move(std::get<scheduler::Infeasible>(decision).reason));
    }
  }
}

std::uint32_t Head::Impl::ChoosePort(NodeId node, JobId job) {
  const NodeRecord& record = nodes_.at(node);
  const bool named = record.port_max >= record.port_min && record.port_min > 0;
  const std::uint32_t low = named ? record.port_min : kDefaultPortMin;
  const std::uint32_t count = (named ? record.port_max : kDefaultPortMax) - low + 1;
  auto& ports = runtimes_[node].ports;
  std::uint32_t port = low + cluster_.next_port_offset++ % count;
  for (std::uint32_t tries = 1; tries < count && ports.contains(port); ++tries) {
    port = low + cluster_.next_port_offset++ % count;
  }
  cluster_touched_ = true;
  ports.emplace(port, job);
  return port;
}

void Head::Impl::FreePort(const JobRecord& job) {
  if (job.attempt.ranks.empty()) {
    return;
  }
  auto& ports = runtimes_[job.attempt.ranks.front().node].ports;
  if (const auto port = ports.find(job.attempt.master_port); port != ports.end() && port->second == job.id) {
    ports.erase(port);
  }
}

// One event: the leases are taken, the attempt is recorded, and the nodes are told once that is committed.
void Head::Impl::StartAttempt(JobRecord& job, const scheduler::Placed& placed) {
  LeaveLine(job.id);
  const std::vector<NodeId> before = NodesOf(job.attempt);
  AttemptRecord attempt;
  attempt.number = job.attempt.ranks.empty() ? 0 : job.attempt.number + 1;
  attempt.ranks.reserve(placed.bundles.size());
  std::map<NodeId, std::uint32_t> local_ranks;
  for (const scheduler::BundlePlacement& bundle : placed.bundles) {
    RankRecord rank;
    rank.node = bundle.node;
    rank.local_rank = local_ranks[bundle.node]++;
    rank.devices = bundle.devices;
    ledger_.Take(bundle.node, job.spec.resources_per_worker, bundle.devices);
    ++runtimes_[bundle.node].leases[job.id];
    attempt.ranks.push_back(std::move(rank));
  }
  const NodeId first = attempt.ranks.front().node;
  attempt.master_addr = local_ranks.size() == 1 ? std::string(kLoopback) : nodes_.at(first).address;
  attempt.master_port = ChoosePort(first, job.id);
  job.attempt = std::move(attempt);
  tallies_[job.id] = Tally{.starting = static_cast<std::uint32_t>(job.attempt.ranks.size())};
  if (job.state == JobState::kQueued) {
    job.reason = Reason::kNone;
    job.message.clear();
    SetState(job, JobState::kStarting);
  }
  if (job.started_at == WallTime{}) {
    job.started_at = now_.wall;
    if (job.spec.timeout > Duration{0}) {
      timers_.Set({TimerKind::kJobTimeout, job.id.value}, now_.steady + job.spec.timeout);
    }
  }
  Touch(job.id);
  for (const NodeId node : before) {
    if (!local_ranks.contains(node)) {
      Forget(node, job.id, std::nullopt);
    }
  }
  for (const NodeId node : NodesOf(job.attempt)) {
    Reschedule(node);
    SendTo(node, MakeStartGroup(job, node));
  }
}

link::StartGroup Head::Impl::MakeStartGroup(const JobRecord& job, NodeId node) const {
  const std::vector<NodeId> nodes = NodesOf(job.attempt);
  link::StartGroup group;
  group.job = job.id;
  group.attempt = job.attempt.number;
  group.spec = job.spec;
  group.world_size = static_cast<std::uint32_t>(job.attempt.ranks.size());
  group.node_rank = static_cast<std::uint32_t>(std::find(nodes.begin(), nodes.end(), node) - nodes.begin());
  group.node_count = static_cast<std::uint32_t>(nodes.size());
  group.master_addr = job.attempt.master_addr;
  group.master_port = job.attempt.master_port;
  for (Rank rank = 0; rank < job.attempt.ranks.size(); ++rank) {
    const RankRecord& record = job.attempt.ranks[rank];
    if (record.node == node && record.HoldsLease()) {
      group.ranks.push_back({rank, record.local_rank, record.devices});
      group.checks_master_port = group.checks_master_port || rank == 0;
    }
  }
  return group;
}

}  // namespace rayctl::head
