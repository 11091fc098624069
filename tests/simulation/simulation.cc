#include "tests/simulation/simulation.h"

#include <csignal>
#include <cstdlib>
#include <utility>

#include "fmt/format.h"

namespace rayctl::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr std::string_view kPlanVariable = "SIM_PLAN";
constexpr std::string_view kUser = "somebody";
constexpr Duration kClientRetry = seconds(2);
constexpr Duration kBeginLimit = minutes(1);
constexpr Duration kAnswerLimit = minutes(1);
// What Gloo has a rank say whose peer went away.
constexpr std::string_view kPeerLostOutput = "RuntimeError: Connection closed by peer\n";
// How often devices are held for a while when their process has ended, and how long.
constexpr double kDevicesStayHeld = 0.2;
constexpr Duration kHeldMin = milliseconds(1);
constexpr Duration kHeldMax = seconds(4);
constexpr Duration kPeerNoticeMin = milliseconds(5);
constexpr Duration kPeerNoticeMax = milliseconds(500);

}  // namespace

Simulation::Simulation(std::uint64_t seed, const Shape& shape, bool print_trace)
    : world_(std::make_unique<World>(seed, print_trace)), random_(world_->random.Fork()) {
  network_ = std::make_unique<Network>(*world_, shape.network);
  invariants_ = std::make_unique<Invariants>(processes_, hosts_);
  head_ = std::make_unique<HeadHost>(*world_, *network_, *invariants_);
  for (std::size_t i = 0; i < shape.nodes.size(); ++i) {
    hosts_.push_back(std::make_unique<NodeHost>(
        NodeHost::Deps{
            .world = *world_,
            .network = *network_,
            .processes = processes_,
            .watcher = *this,
            .join =
                [this](const std::string& name, NodeId known, std::function<void(NodeId)> answer) {
                  head_->Call(
                      [&](CallId call) { return head::JoinNode{.call = call, .node_name = name, .known = known}; },
                      [answer = std::move(answer)](const absl::StatusOr<head::Answer>& reply) {
                        if (!reply.ok()) {
                          throw Violation(fmt::format("a node may not join: {}", reply.status().ToString()));
                        }
                        answer(std::get<head::JoinAnswer>(*reply).node);
                      });
                },
        },
        i, shape.nodes[i]));
    network_->AddHost(hosts_.back().get());
  }
}

Simulation::~Simulation() = default;

void Simulation::Begin() {
  head_->Start();
  for (const auto& host : hosts_) {
    host->PowerOn();
  }
  const bool registered = RunUntil(
      [this] {
        for (const auto& host : hosts_) {
          if (!host->registered()) {
            return false;
          }
        }
        return true;
      },
      kBeginLimit);
  if (!registered) {
    throw Violation("the agents do not register");
  }
}

void Simulation::RunFor(Duration duration) {
  const SimTime until = world_->queue.now() + duration;
  while (world_->queue.RunOne(until)) {
  }
}

bool Simulation::RunUntil(const std::function<bool()>& condition, Duration within) {
  const SimTime until = world_->queue.now() + within;
  while (!condition()) {
    if (!world_->queue.RunOne(until)) {
      return condition();
    }
  }
  return true;
}

// ---- Clients.

std::uint64_t Simulation::Submit(JobPlan plan) {
  const std::uint64_t number = requests_.size() + 1;
  plan.spec.env_vars[std::string(kPlanVariable)] = std::to_string(number);
  requests_[number].plan = std::move(plan);
  TrySubmit(number);
  return number;
}

void Simulation::TrySubmit(std::uint64_t number) {
  Request& request = requests_[number];
  if (request.job) {
    return;
  }
  ++request.tries;
  const std::string request_id = fmt::format("request-{}", number);
  const bool lost = !healed_ && random_.Chance(lost_answers_);
  head_->Call(
      [&](CallId call) {
        return head::SubmitJob{
            .call = call, .request_id = request_id, .spec = request.plan.spec, .user = std::string(kUser)};
      },
      [this, number, request_id, lost](const absl::StatusOr<head::Answer>& reply) {
        if (!reply.ok()) {
          throw Violation(fmt::format("{} is refused: {}", request_id, reply.status().ToString()));
        }
        const JobId job = std::get<head::SubmitAnswer>(*reply).job;
        Request& answered = requests_[number];
        answered.answers.insert(job);
        if (answered.answers.size() != 1) {
          throw Violation(fmt::format("{} became two jobs", request_id));
        }
        if (lost) {
          world_->Count("answer lost");
          return;
        }
        answered.job = job;
        invariants_->OnSubmitted(job, request_id, answered.plan.spec);
        if (answered.unwanted) {
          Cancel(job);
        }
      });
  world_->queue.After(kClientRetry, [this, number] { TrySubmit(number); });
}

std::optional<JobId> Simulation::JobOf(std::uint64_t request) const {
  const auto found = requests_.find(request);
  return found == requests_.end() ? std::nullopt : found->second.job;
}

JobId Simulation::SubmitAndWait(JobPlan plan) {
  const std::uint64_t request = Submit(std::move(plan));
  if (!RunUntil([&] { return JobOf(request).has_value(); }, kAnswerLimit)) {
    throw Violation("a submission is not answered");
  }
  return *JobOf(request);
}

const JobPlan& Simulation::PlanOfJob(JobId job) const {
  for (const auto& [number, request] : requests_) {
    if (request.job == job) {
      return request.plan;
    }
  }
  throw Violation(fmt::format("job {} was submitted by nobody", job.value));
}

void Simulation::Cancel(JobId job) {
  invariants_->OnCancelWanted(job);
  TryCancel(job, 0);
}

void Simulation::TryCancel(JobId job, std::uint64_t tries) {
  if (cancels_answered_.contains(job)) {
    return;
  }
  head_->Call(
      [&](CallId call) { return head::CancelJob{.call = call, .job = job, .user = std::string(kUser)}; },
      [this, job](const absl::StatusOr<head::Answer>& reply) {
        if (!reply.ok()) {
          throw Violation(fmt::format("the cancel of job {} is refused: {}", job.value, reply.status().ToString()));
        }
        cancels_answered_.insert(job);
        invariants_->OnCancelled(job, std::get<head::CancelAnswer>(*reply).state);
      });
  world_->queue.After(kClientRetry, [this, job, tries] { TryCancel(job, tries + 1); });
}

void Simulation::StopCluster() {
  invariants_->OnStopCluster();
  head_->Deliver(head::StopCluster{"stopped by a person"});
}

void Simulation::ReadOutput(JobId job) {
  const head::Head* head = head_->head();
  const head::JobRecord* record = head == nullptr ? nullptr : head->FindJob(job);
  if (record == nullptr || record->attempt.ranks.empty()) {
    return;
  }
  const NodeId node = record->attempt.ranks.front().node;
  const TransferId transfer{next_transfer_++};
  head_->Deliver(head::RelayOutput{
      node, link::OpenOutput{.transfer = transfer, .job = job, .attempt = record->attempt.number, .ranks = {0}}});
  world_->queue.After(seconds(1), [this, node, transfer] {
    head_->Deliver(head::RelayOutput{node, link::CloseOutput{transfer}});
  });
}

// ---- Faults and what comes after.

void Simulation::HealEverything() {
  world_->Say("all is healed");
  healed_ = true;
  network_->SetFaults(NetworkFaults{});
  head_->KillInNextCommit(nullptr);
  head_->Resume();
  head_->SlowDisk(false);
  head_->Start();
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    CutNode(i, false);
    hosts_[i]->ThawAgent();
    for (const JobId job : hosts_[i]->LivingShims()) {
      hosts_[i]->ThawShim(job);
    }
    hosts_[i]->SetPortTaken(0);
    hosts_[i]->PowerOn();
    hosts_[i]->StartAgent();
  }
  for (auto& [number, request] : requests_) {
    const bool endless = request.plan.plan.usual.hangs && request.plan.spec.timeout == Duration(0);
    if (endless && request.job) {
      Cancel(*request.job);
    } else if (endless) {
      request.unwanted = true;
    }
  }
}

std::string Simulation::SettlesWithin(Duration limit) {
  const SimTime until = world_->queue.now() + limit;
  std::string what = "nothing was looked at";
  while (world_->queue.now() < until) {
    RunFor(seconds(1));
    what = head_->head() == nullptr ? "the head is not there" : invariants_->Unsettled(*head_->head());
    for (const auto& [number, request] : requests_) {
      if (what.empty() && !request.job) {
        what = fmt::format("request {} is not answered", number);
      }
    }
    if (what.empty()) {
      break;
    }
  }
  if (!what.empty()) {
    return what;
  }
  // Let the last commit land.
  RunFor(seconds(1));
  const head::Head restarted = head_->FromJournal();
  for (const auto& [id, job] : head().jobs()) {
    const head::JobRecord* again = restarted.FindJob(id);
    if (again == nullptr || again->state != job.state || again->reason != job.reason ||
        again->exit_code != job.exit_code || again->attempt.number != job.attempt.number ||
        again->failures != job.failures || !(again->spec == job.spec)) {
      return fmt::format("the journal tells another story of job {}", id.value);
    }
  }
  if (restarted.jobs().size() != head().jobs().size()) {
    return "the journal holds another number of jobs";
  }
  return "";
}

void Simulation::KillRank(JobId job, AttemptNumber attempt, Rank rank) {
  const Process* process = processes_.Find(job, attempt, rank);
  if (process == nullptr || !process->alive) {
    throw Violation("there is no such process to kill");
  }
  hosts_[process->host]->SignalRank(process->number, SIGKILL);
}

NodeState Simulation::StateOf(std::size_t host) const {
  for (const head::Head::NodeStatus& node : head().Nodes()) {
    if (node.record.id == hosts_[host]->id()) {
      return node.state;
    }
  }
  throw Violation(fmt::format("the head does not know host {}", host));
}

// ---- Processes.

void Simulation::OnSpawn(const Process& process, const local::RankStart& start) {
  world_->Count("ranks spawned");
  world_->Say(
      fmt::format("host {} rank {}.{}.{} spawned", process.host, process.job.value, process.attempt, process.rank));
  invariants_->OnSpawn(process, start);
}

void Simulation::OnEnd(const Process& process) {
  world_->Say(fmt::format("host {} rank {}.{}.{} ended code {} signal {}", process.host, process.job.value,
                          process.attempt, process.rank, process.exit_code, process.signal));
  if (process.ran && !process.devices.empty() && hosts_[process.host]->powered() && random_.Chance(kDevicesStayHeld)) {
    world_->Count("devices held after their rank");
    processes_.Leave({process.host, process.devices, world_->queue.now() + random_.Between(kHeldMin, kHeldMax)});
  }
  if (process.exit_code == 0 && process.signal == 0) {
    return;
  }
  for (const std::uint64_t number : processes_.Living()) {
    const Process& peer = processes_.Get(number);
    if (peer.job == process.job && peer.attempt == process.attempt && peer.script.leaves_with_peers && peer.ran) {
      world_->queue.After(random_.Between(kPeerNoticeMin, kPeerNoticeMax), [this, number, host = peer.host] {
        hosts_[host]->EndRank(number, 1, std::string(kPeerLostOutput));
      });
    }
  }
}

const Plan& Simulation::PlanOf(const std::string& number) {
  return requests_.at(std::strtoull(number.c_str(), nullptr, 10)).plan.plan;
}

}  // namespace rayctl::sim
