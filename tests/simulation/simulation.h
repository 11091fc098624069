#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/simulation/head_host.h"
#include "tests/simulation/invariants.h"
#include "tests/simulation/network.h"
#include "tests/simulation/node_host.h"
#include "tests/simulation/processes.h"
#include "tests/simulation/world.h"

namespace rayctl::sim {

// What a client asks for, and what its ranks then do.
struct JobPlan {
  JobSpec spec;
  Plan plan;
};

// A cluster of real state machines in one thread under one seed: head, agents and shims under virtual clocks, networks,
// disks and power. Everything that happens follows from the seed and from what the caller asks for.
class Simulation final : public ProcessWatcher {
 public:
  struct Shape {
    std::vector<NodeShape> nodes;
    NetworkFaults network;
  };
  Simulation(std::uint64_t seed, const Shape& shape, bool print_trace = false);
  ~Simulation() override;

  // Boots everything and waits until every agent is registered.
  void Begin();
  // Throws Violation, like all that runs the clock.
  void RunFor(Duration duration);
  // Whether `condition` came true in time; looked at after every event.
  bool RunUntil(const std::function<bool()>& condition, Duration within);

  // ---- What clients do. Answers that get lost are asked for again.
  std::uint64_t Submit(JobPlan plan);  // Returns the number of the request.
  std::optional<JobId> JobOf(std::uint64_t request) const;
  JobId SubmitAndWait(JobPlan plan);
  const JobPlan& PlanOfJob(JobId job) const;
  void Cancel(JobId job);
  void StopCluster();
  void ReadOutput(JobId job);  // Asks for it and loses interest: what it does to the streams is what counts.
  void LoseAnswers(double probability) { lost_answers_ = probability; }

  // ---- Faults.
  void CutNode(std::size_t host, bool cut) {
    network_->SetCut(host, Way::kUp, cut);
    network_->SetCut(host, Way::kDown, cut);
  }
  // Nothing fails any more; all that is down comes up again, and open-ended jobs are cancelled.
  void HealEverything();
  // "" once all has come to rest, and a head restarted from the journal would know the same; else what has not.
  std::string SettlesWithin(Duration limit);

  // ---- What is there.
  World& world() { return *world_; }
  Network& network() { return *network_; }
  HeadHost& head_host() { return *head_; }
  const head::Head& head() const { return *head_->head(); }
  const head::JobRecord& Job(JobId id) const { return *head().FindJob(id); }
  NodeHost& host(std::size_t index) { return *hosts_[index]; }
  std::size_t hosts() const { return hosts_.size(); }
  NodeState StateOf(std::size_t host) const;
  Processes& processes() { return processes_; }
  const Process* ProcessOf(JobId job, AttemptNumber attempt, Rank rank) const {
    return processes_.Find(job, attempt, rank);
  }
  Invariants& invariants() { return *invariants_; }
  // kill -9 of that rank's process.
  void KillRank(JobId job, AttemptNumber attempt, Rank rank);

  // ProcessWatcher.
  void OnSpawn(const Process& process, const local::RankStart& start) override;
  void OnEnd(const Process& process) override;
  const Plan& PlanOf(const std::string& number) override;

 private:
  struct Request {
    JobPlan plan;
    std::optional<JobId> job;
    std::set<JobId> answers;  // Lost ones too: there may be one only.
    std::uint64_t tries = 0;
    bool unwanted = false;  // All was healed before it was answered, and it never ends of itself.
  };

  void TrySubmit(std::uint64_t request);
  void TryCancel(JobId job, std::uint64_t tries);

  std::unique_ptr<World> world_;
  Random random_;
  Processes processes_;
  std::unique_ptr<Network> network_;
  std::vector<std::unique_ptr<NodeHost>> hosts_;
  std::unique_ptr<Invariants> invariants_;
  std::unique_ptr<HeadHost> head_;
  std::map<std::uint64_t, Request> requests_;
  std::set<JobId> cancels_answered_;
  double lost_answers_ = 0;
  bool healed_ = false;
  std::uint64_t next_transfer_ = 1;
};

}  // namespace rayctl::sim
