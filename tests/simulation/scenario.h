#pragma once

#include <catch2/catch.hpp>
#include <set>
#include <utility>
#include <vector>

#include "tests/simulation/simulation.h"

// For scenarios: one cluster, and questions to it.
namespace rayctl::sim {

inline constexpr std::uint64_t kSeed = 1;
inline constexpr Duration kSoon = std::chrono::seconds(2);

// `nodes` machines with 4 CPUs each, registered, on a network without faults.
class Cluster {
 public:
  explicit Cluster(std::size_t nodes, std::int64_t gpus = 0, std::int64_t cpus = 4)
      : sim(kSeed, {std::vector<NodeShape>(nodes, NodeShape{.cpus = cpus, .gpus = gpus}), {}}) {
    sim.Begin();
  }

  // A gang of `ranks` that are spread over the nodes and run for `runs` each; RUNNING on return.
  JobId Run(std::uint32_t ranks, std::int32_t max_failures, Duration runs = std::chrono::minutes(10)) {
    JobPlan plan = Gang(ranks, max_failures);
    plan.plan.usual.runs = runs;
    return Run(std::move(plan));
  }
  JobId Run(JobPlan plan) {
    const JobId job = sim.SubmitAndWait(std::move(plan));
    REQUIRE(sim.RunUntil([&] { return sim.Job(job).state == JobState::kRunning; }, kSoon));
    return job;
  }
  static JobPlan Gang(std::uint32_t ranks, std::int32_t max_failures) {
    JobPlan plan;
    plan.spec.argv = {"train"};
    plan.spec.num_workers = ranks;
    plan.spec.num_workers_max = ranks;
    plan.spec.placement_strategy = PlacementStrategy::kSpread;
    plan.spec.max_failures = max_failures;
    return plan;
  }

  bool Becomes(JobId job, JobState state, Duration within) {
    return sim.RunUntil([&] { return sim.head_host().running() && sim.Job(job).state == state; }, within);
  }
  bool ReachesAttempt(JobId job, AttemptNumber attempt, Duration within) {
    return sim.RunUntil(
        [&] {
          return sim.head_host().running() && sim.Job(job).attempt.number == attempt &&
                 sim.Job(job).state == JobState::kRunning;
        },
        within);
  }
  std::set<std::int64_t> Pids(JobId job) {
    std::set<std::int64_t> pids;
    for (const head::RankRecord& rank : sim.Job(job).attempt.ranks) {
      // Pids of different machines may be equal.
      pids.insert(static_cast<std::int64_t>(rank.node.value) * 1'000'000 + rank.pid);
    }
    return pids;
  }
  bool AllAlive(JobId job, AttemptNumber attempt) {
    for (Rank rank = 0; rank < sim.Job(job).attempt.ranks.size(); ++rank) {
      const Process* process = sim.ProcessOf(job, attempt, rank);
      if (process == nullptr || !process->alive) {
        return false;
      }
    }
    return true;
  }
  std::size_t LivingOn(std::size_t host) {
    std::size_t living = 0;
    for (const std::uint64_t number : sim.processes().Living()) {
      living += sim.processes().Get(number).host == host ? 1 : 0;
    }
    return living;
  }
  // Where rank `rank` of the present attempt is.
  std::size_t HostOf(JobId job, Rank rank) {
    for (std::size_t i = 0; i < sim.hosts(); ++i) {
      if (sim.host(i).id() == sim.Job(job).attempt.ranks[rank].node) {
        return i;
      }
    }
    FAIL("the rank is nowhere");
    return 0;
  }
  std::string Settles(Duration limit = std::chrono::minutes(30)) {
    sim.HealEverything();
    return sim.SettlesWithin(limit);
  }

  Simulation sim;
};

}  // namespace rayctl::sim
