#include "tests/simulation/invariants.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "fmt/format.h"

namespace rayctl::sim {
namespace {

constexpr std::int32_t kSignalBase = 128;

[[noreturn]] void Broken(const std::string& what) { throw Violation(what); }

}  // namespace

void Invariants::OnEffects(const head::Head& head, const std::vector<head::Effect>& effects) {
  head.CheckInvariants();
  for (const head::Effect& effect : effects) {
    if (const auto* put = std::get_if<head::Put>(&effect)) {
      if (const auto* job = std::get_if<head::JobRecord>(&put->record)) {
        CheckJob(head, *job);
      }
    }
  }
}

void Invariants::CheckJob(const head::Head& head, const head::JobRecord& job) {
  const auto found = known_.find(job.id);
  if (found == known_.end() && job.state != JobState::kQueued && job.state != JobState::kStarting) {
    Broken(fmt::format("job {} begins as {}", job.id.value, Name(job.state)));
  }
  Known& known = known_[job.id];
  if (known.state != job.state && !IsEdge(known.state, job.state)) {
    Broken(fmt::format("job {} went from {} to {}", job.id.value, Name(known.state), Name(job.state)));
  }
  CheckGivenUp(head, job);
  const bool placed = !job.attempt.ranks.empty();
  const bool newly_placed = placed && (!known.placed || known.attempt != job.attempt.number);
  if (job.attempt.number < known.attempt) {
    Broken(fmt::format("job {} went back from attempt {} to {}", job.id.value, known.attempt, job.attempt.number));
  }
  if (newly_placed) {
    CheckNoneLives(head, job, fmt::format("attempt {} was placed", job.attempt.number));
    assignments_[{job.id, job.attempt.number}] = {job.attempt.ranks, job.spec.resources_per_worker};
    if (job.attempt.ranks.size() != job.spec.num_workers) {
      Broken(fmt::format("job {} wants {} ranks and has {}", job.id.value, job.spec.num_workers,
                         job.attempt.ranks.size()));
    }
  }
  if (job.state == JobState::kRunning && known.state != JobState::kRunning) {
    CheckRunning(job);
  }
  if (IsFinal(job.state) && !IsFinal(known.state)) {
    CheckNoneLives(head, job, "it ended");
    CheckEnd(job);
  }
  known = {job.state, job.attempt.number, job.attempt.ended, placed};
}

void Invariants::CheckGivenUp(const head::Head& head, const head::JobRecord& job) {
  for (Rank rank = 0; rank < job.attempt.ranks.size(); ++rank) {
    const head::RankRecord& record = job.attempt.ranks[rank];
    const link::RankKey key{job.id, job.attempt.number, rank};
    if (record.state != WorkerState::kLost || given_up_.contains(key)) {
      continue;
    }
    const Process* process = ProcessOf(job, rank);
    const bool lives = process != nullptr && process->alive;
    for (const head::Head::NodeStatus& node : head.Nodes()) {
      if (node.record.id != record.node) {
        continue;
      }
      if (node.state == NodeState::kDead) {
        given_up_.insert(key);
      } else if (lives) {
        Broken(fmt::format("job {}: rank {} of attempt {} was given up while it lives on node {}, which counts as {}",
                           job.id.value, rank, job.attempt.number, record.node.value, Name(node.state)));
      }
    }
  }
}

void Invariants::CheckNoneLives(const head::Head& head, const head::JobRecord& job, const std::string& when) {
  std::map<NodeId, NodeState> states;
  for (const std::uint64_t number : processes_.Living()) {
    Process& process = processes_.Get(number);
    if (process.job != job.id || process.stale) {
      continue;
    }
    if (given_up_.contains({process.job, process.attempt, process.rank})) {
      process.stale = true;
      continue;
    }
    if (states.empty()) {
      for (const head::Head::NodeStatus& node : head.Nodes()) {
        states[node.record.id] = node.state;
      }
    }
    const NodeId node = hosts_[process.host]->id();
    if (states[node] != NodeState::kDead) {
      Broken(fmt::format("job {}: {} while rank {} of attempt {} lives on node {}, which counts as {}", job.id.value,
                         when, process.rank, process.attempt, node.value, Name(states[node])));
    }
    process.stale = true;
  }
}

const Process* Invariants::ProcessOf(const head::JobRecord& job, Rank rank) const {
  return processes_.Find(job.id, job.attempt.number, rank);
}

void Invariants::CheckRunning(const head::JobRecord& job) const {
  for (Rank rank = 0; rank < job.attempt.ranks.size(); ++rank) {
    const Process* process = ProcessOf(job, rank);
    if (process == nullptr || !process->ran) {
      Broken(fmt::format("job {} runs, and rank {} of attempt {} has never been started", job.id.value, rank,
                         job.attempt.number));
    }
  }
}

void Invariants::CheckEnd(const head::JobRecord& job) const {
  if (!job.exit_code) {
    Broken(fmt::format("job {} ended without an exit code", job.id.value));
  }
  for (Rank rank = 0; rank < job.attempt.ranks.size(); ++rank) {
    const head::RankRecord& record = job.attempt.ranks[rank];
    const Process* process = ProcessOf(job, rank);
    if (record.HoldsLease()) {
      Broken(fmt::format("job {} ended, and rank {} still holds its lease", job.id.value, rank));
    }
    const bool known_end = record.state == WorkerState::kExited && !record.end.lost && !record.end.start_failed;
    if (known_end && process != nullptr && process->ran && !process->by_fault &&
        (process->alive || process->exit_code != record.end.exit_code || process->signal != record.end.signal)) {
      Broken(fmt::format("job {} rank {} ended with {} signal {}, and is recorded with {} signal {}", job.id.value,
                         rank, process->exit_code, process->signal, record.end.exit_code, record.end.signal));
    }
    if (job.state == JobState::kSucceeded &&
        (process == nullptr || process->alive || process->exit_code != 0 || process->signal != 0)) {
      Broken(fmt::format("job {} succeeded, and rank {} did not", job.id.value, rank));
    }
  }
  if (job.state == JobState::kSucceeded && (job.exit_code != 0 || job.attempt.ranks.empty())) {
    Broken(fmt::format("job {} succeeded with exit code {}", job.id.value, *job.exit_code));
  }
  if (job.state == JobState::kFailed && (job.reason == Reason::kExited || job.reason == Reason::kSignaled)) {
    if (!job.failed_rank) {
      Broken(fmt::format("job {} failed, and nobody knows which rank did", job.id.value));
    }
    const Process* process = ProcessOf(job, *job.failed_rank);
    const std::int32_t code =
        process == nullptr ? 0 : (process->signal != 0 ? kSignalBase + process->signal : process->exit_code);
    if (process == nullptr || process->alive || code == 0 || *job.exit_code != code) {
      Broken(fmt::format("job {} failed by rank {} with {}, which really ended with {}", job.id.value, *job.failed_rank,
                         *job.exit_code, code));
    }
    if (job.spec.max_failures >= 0 && job.failures < static_cast<std::uint32_t>(job.spec.max_failures)) {
      Broken(fmt::format("job {} failed after {} of {} failures", job.id.value, job.failures, job.spec.max_failures));
    }
  }
  if (job.state == JobState::kCancelled && !cluster_stops_ && !cancel_wanted_.contains(job.id)) {
    Broken(fmt::format("job {} was cancelled by nobody", job.id.value));
  }
}

void Invariants::OnCommitted(const std::vector<head::Effect>& effects) {
  for (const head::Effect& effect : effects) {
    if (const auto* put = std::get_if<head::Put>(&effect)) {
      if (const auto* job = std::get_if<head::JobRecord>(&put->record); job != nullptr && IsFinal(job->state)) {
        ends_told_[job->id] = {job->state, job->reason};
      }
    }
  }
}

void Invariants::OnRestart(const head::Head& head) {
  head.CheckInvariants();
  for (const auto& [id, submitted] : acknowledged_) {
    const head::JobRecord* job = head.FindJob(id);
    if (job == nullptr) {
      Broken(fmt::format("job {} was acknowledged and is lost", id.value));
    }
    JobSpec spec = submitted.spec;
    if (spec.name.empty()) {
      spec.name = job->spec.name;
    }
    if (!(job->spec == spec) || job->request_id != submitted.request_id) {
      Broken(fmt::format("job {} is not what was submitted", id.value));
    }
  }
  for (const JobId id : cancel_acknowledged_) {
    const head::JobRecord* job = head.FindJob(id);
    if (job == nullptr || (job->state != JobState::kStopping && !IsFinal(job->state))) {
      Broken(fmt::format("the cancel of job {} was acknowledged and is lost", id.value));
    }
  }
  for (const auto& [id, end] : ends_told_) {
    const head::JobRecord* job = head.FindJob(id);
    if (job == nullptr || std::pair(job->state, job->reason) != end) {
      Broken(fmt::format("job {} had ended, and the restarted head knows better", id.value));
    }
  }
  known_.clear();
  for (const auto& [id, job] : head.jobs()) {
    known_[id] = {job.state, job.attempt.number, job.attempt.ended, !job.attempt.ranks.empty()};
  }
}

void Invariants::OnSubmitted(JobId job, const std::string& request_id, const JobSpec& spec) {
  for (const auto& [id, submitted] : acknowledged_) {
    if ((submitted.request_id == request_id) != (id == job)) {
      Broken(fmt::format("request {} was answered with job {}, and job {} is of request {}", request_id, job.value,
                         id.value, submitted.request_id));
    }
  }
  acknowledged_[job] = {request_id, spec};
  submitted_ids_.insert(job);
}

void Invariants::OnCancelled(JobId job, JobState state) {
  if (state != JobState::kStopping && !IsFinal(state)) {
    Broken(fmt::format("the cancel of job {} was answered with {}", job.value, Name(state)));
  }
  cancel_acknowledged_.insert(job);
}

void Invariants::OnSpawn(const Process& process, const local::RankStart& start) {
  const auto assigned = assignments_.find({process.job, process.attempt});
  if (assigned == assignments_.end() || process.rank >= assigned->second.ranks.size()) {
    Broken(fmt::format("job {} attempt {} rank {} runs, and was never placed", process.job.value, process.attempt,
                       process.rank));
  }
  if (assigned->second.ranks[process.rank].node != hosts_[process.host]->id()) {
    Broken(fmt::format("job {} attempt {} rank {} runs on node {}, and was placed on node {}", process.job.value,
                       process.attempt, process.rank, hosts_[process.host]->id().value,
                       assigned->second.ranks[process.rank].node.value));
  }
  const auto says = [&start](const std::string& variable) {
    return std::find(start.env().begin(), start.env().end(), variable) != start.env().end();
  };
  if (!says(fmt::format("RANK={}", process.rank)) || !says(fmt::format("RAYCTL_ATTEMPT={}", process.attempt)) ||
      !says(fmt::format("WORLD_SIZE={}", assigned->second.ranks.size()))) {
    Broken(fmt::format("job {} rank {} was not told who it is", process.job.value, process.rank));
  }
  CheckDevices(process, start);
  CheckNotHeld(process, process.began);
  CheckRoom(process.host);
}

void Invariants::CheckDevices(const Process& process, const local::RankStart& start) const {
  std::string expected{kDevicesVariable};
  std::string_view separator;
  for (const scheduler::DeviceShare& share :
       assignments_.at({process.job, process.attempt}).ranks[process.rank].devices) {
    expected += fmt::format("{}{}", std::exchange(separator, ","), SimulatedGpuId(share.index));
  }
  const bool says = std::find(start.env().begin(), start.env().end(), expected) != start.env().end();
  if (!says) {
    Broken(fmt::format("job {} attempt {} rank {} was not told {}", process.job.value, process.attempt, process.rank,
                       expected));
  }
}

// Nobody starts on a whole device that something still holds. One that is shared may be held by what the other job left
// there since this one was placed.
void Invariants::CheckNotHeld(const Process& process, SimTime now) const {
  for (const scheduler::DeviceShare& share :
       assignments_.at({process.job, process.attempt}).ranks[process.rank].devices) {
    for (const Processes::Leftover& leftover : processes_.Leftovers(now)) {
      const std::string id = SimulatedGpuId(share.index);
      if (share.share >= Amount::Units(1) && leftover.host == process.host &&
          std::find(leftover.devices.begin(), leftover.devices.end(), id) != leftover.devices.end()) {
        Broken(fmt::format("job {} attempt {} rank {} starts on {}, which is still held", process.job.value,
                           process.attempt, process.rank, id));
      }
    }
  }
}

void Invariants::CheckRoom(std::size_t host) const {
  Resources used;
  std::map<std::uint32_t, Amount> devices;
  std::string who;
  for (const std::uint64_t number : processes_.Living()) {
    const Process& process = processes_.all()[number];
    if (process.host != host) {
      continue;
    }
    const Assignment& assigned = assignments_.at({process.job, process.attempt});
    used.Add(assigned.want);
    for (const scheduler::DeviceShare& share : assigned.ranks[process.rank].devices) {
      devices[share.index] += share.share;
    }
    who += fmt::format(" {}.{}.{}", process.job.value, process.attempt, process.rank);
  }
  const NodeShape& shape = hosts_[host]->shape();
  const Resources total{{std::string(kCpu), Amount::Units(shape.cpus)},
                        {std::string(kGpu), Amount::Units(shape.gpus)},
                        {std::string(kMemory), Amount::Units(shape.memory_bytes)}};
  if (!total.Contains(used)) {
    Broken(fmt::format("host {} has {} and runs ranks for {}:{}", host, total.ToString(), used.ToString(), who));
  }
  for (const auto& [index, share] : devices) {
    if (share > Amount::Units(1)) {
      Broken(fmt::format("host {}: device {} is lent {} times:{}", host, index, share.ToString(), who));
    }
  }
}

std::string Invariants::Unsettled(const head::Head& head) const {
  for (const JobId id : submitted_ids_) {
    const head::JobRecord* job = head.FindJob(id);
    if (job == nullptr) {
      return fmt::format("job {} is gone", id.value);
    }
    const bool waits_for_ever = job->state == JobState::kQueued && job->reason == Reason::kInfeasible;
    if (!IsFinal(job->state) && !waits_for_ever) {
      return fmt::format("job {} is {} {} attempt {} ({})", id.value, Name(job->state), Name(job->reason),
                         job->attempt.number, job->message.empty() ? head.WaitingReason(id) : job->message);
    }
  }
  for (const head::Head::NodeStatus& node : head.Nodes()) {
    if (!node.used.Empty()) {
      return fmt::format("node {} still has {} in use", node.record.id.value, node.used.ToString());
    }
  }
  for (const std::uint64_t number : processes_.Living()) {
    const Process& process = processes_.all()[number];
    return fmt::format("job {} attempt {} rank {} still runs on host {}", process.job.value, process.attempt,
                       process.rank, process.host);
  }
  for (const auto& host : hosts_) {
    if (!host->registered()) {
      return fmt::format("the agent of host {} is not registered", host->index());
    }
    for (const head::Head::NodeStatus& node : head.Nodes()) {
      if (node.record.id == host->id() && node.state != NodeState::kAlive) {
        return fmt::format("node {} is {}", node.record.id.value, Name(node.state));
      }
    }
    if (!host->LivingShims().empty()) {
      return fmt::format("host {} still has the shim of job {}", host->index(), host->LivingShims().front().value);
    }
    if (host->AnyStateFile()) {
      return fmt::format("host {} still has a state file", host->index());
    }
    if (!host->Ranks().empty()) {
      return fmt::format("the agent of host {} still tells of {} ranks", host->index(), host->Ranks().size());
    }
  }
  return "";
}

}  // namespace rayctl::sim
