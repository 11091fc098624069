// What the agent does with the ranks and shims of jobs.
#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "tests/daemon/agent/agent_bench.h"

namespace rayctl::agent {
namespace {

using namespace std::chrono_literals;
using test::Bench;
using test::Group;
using test::kJob;
using test::Status;

TEST_CASE("a living shim is greeted and its ranks are adopted", "[agent]") {
  Bench bench(false);
  bench.On(ShimFound{kJob, true, {}});
  REQUIRE(bench.ToShim(local::AgentToShim::kHello).size() == 1);
  CHECK(bench.ToShim(local::AgentToShim::kHello)[0].hello().agent_grace_millis() == 0);
  bench.ShimHello({Status(0, local::RANK_PHASE_RUNNING)});
  bench.On(ShimsScanned{});
  bench.On(HeadConnected{});
  REQUIRE(bench.ToHead<link::Register>().at(0).ranks.size() == 1);
  CHECK(bench.ToHead<link::Register>()[0].ranks[0].state == WorkerState::kRunning);

  ++bench.incarnation;
  link::StartGroup group = Group(0, {0});
  group.spec.agent_grace = 10min;
  bench.Head(link::Registered{2s, {group}, {kJob}});
  CHECK_FALSE(bench.Has<SpawnShim>());
  CHECK(bench.ToShim(local::AgentToShim::kStart).empty());
  CHECK(bench.ToShim(local::AgentToShim::kStop).empty());
  REQUIRE(bench.ToShim(local::AgentToShim::kHello).size() == 1);
  CHECK(bench.ToShim(local::AgentToShim::kHello)[0].hello().agent_grace_millis() == 600'000);
}

TEST_CASE("a group's ranks go to its shim in one message after its hello", "[agent]") {
  Bench bench;
  bench.Head(Group(0, {0, 1}));
  REQUIRE(bench.All<SpawnShim>().size() == 1);
  CHECK(bench.ToShim(local::AgentToShim::kStart).empty());
  bench.ShimHello();
  const auto starts = bench.ToShim(local::AgentToShim::kStart);
  REQUIRE(starts.size() == 1);
  CHECK(starts[0].start().ranks_size() == 2);
  CHECK(starts[0].id().job_id() == kJob.value);

  SECTION("and a repeated order starts nothing") {
    bench.Head(Group(0, {0, 1}));
    CHECK(bench.effects.empty());
  }
  SECTION("and what happens to them is told") {
    bench.Started(0, 1);
    REQUIRE(bench.ToHead<link::RankChanged>().size() == 1);
    CHECK(bench.ToHead<link::RankChanged>()[0].facts.state == WorkerState::kRunning);
    CHECK(bench.ToHead<link::RankChanged>()[0].facts.pid == 101);
    bench.Exited(0, 1, 4);
    REQUIRE(bench.ToHead<link::RankChanged>().size() == 1);
    CHECK(bench.ToHead<link::RankChanged>()[0].facts.end.exit_code == 4);
    REQUIRE(bench.All<OutputEnded>().size() == 1);
    CHECK(bench.All<OutputEnded>()[0].log_bytes == 9);
    CHECK(bench.ToShim(local::AgentToShim::kAck).empty());
  }
  SECTION("and an order of an older attempt is refused") {
    bench.Head(Group(2, {0}));
    bench.Head(Group(1, {0, 1}));
    CHECK(bench.effects.empty());
  }
}

TEST_CASE("a taken port ends the group here as a free retry", "[agent]") {
  Bench bench;
  bench.Head(Group(0, {0, 1}, true));
  REQUIRE(bench.All<CheckPort>().size() == 1);
  CHECK_FALSE(bench.Has<SpawnShim>());
  bench.On(PortChecked{bench.All<CheckPort>()[0].key, false});
  CHECK_FALSE(bench.Has<SpawnShim>());
  const auto changes = bench.ToHead<link::RankChanged>();
  REQUIRE(changes.size() == 2);
  for (const link::RankChanged& change : changes) {
    CHECK(change.facts.end.start_failed);
    CHECK(change.facts.end.port_in_use);
  }
}

link::StartGroup GroupWithFolder(AttemptNumber attempt, std::vector<Rank> ranks, bool checks_port = false) {
  link::StartGroup group = Group(attempt, std::move(ranks), checks_port);
  group.spec.working_dir = std::string(64, 'd');
  return group;
}

TEST_CASE("ranks wait for their folder, and only then for their port", "[agent]") {
  Bench bench;
  bench.Head(GroupWithFolder(0, {0, 1}, true));
  REQUIRE(bench.All<PrepareWorkDir>().size() == 1);
  CHECK(bench.All<PrepareWorkDir>()[0].job == kJob);
  CHECK(bench.All<PrepareWorkDir>()[0].digest == std::string(64, 'd'));
  CHECK_FALSE(bench.Has<CheckPort>());
  CHECK_FALSE(bench.Has<SpawnShim>());
  SECTION("it comes") {
    bench.On(WorkDirPrepared{kJob, absl::OkStatus()});
    REQUIRE(bench.All<CheckPort>().size() == 1);
    CHECK(bench.All<CheckPort>()[0].port == 20000);
    CHECK_FALSE(bench.Has<SpawnShim>());
    bench.On(PortChecked{bench.All<CheckPort>()[0].key, true});
    CHECK(bench.Has<SpawnShim>());
    bench.ShimHello();
    REQUIRE(bench.ToShim(local::AgentToShim::kStart).size() == 1);
    CHECK(bench.ToShim(local::AgentToShim::kStart)[0].start().ranks_size() == 2);
    // The next attempt goes on in the same folder.
    bench.Head(GroupWithFolder(1, {0, 1}));
    CHECK_FALSE(bench.Has<PrepareWorkDir>());
    CHECK(bench.ToShim(local::AgentToShim::kStart).size() == 1);
  }
  SECTION("it cannot be had") {
    bench.On(WorkDirPrepared{kJob, absl::NotFoundError("the head does not have it")});
    CHECK_FALSE(bench.Has<SpawnShim>());
    CHECK_FALSE(bench.Has<CheckPort>());
    const auto changes = bench.ToHead<link::RankChanged>();
    REQUIRE(changes.size() == 2);
    for (const link::RankChanged& change : changes) {
      CHECK(change.facts.end.start_failed);
      CHECK(change.facts.end.start_error == "the working directory: the head does not have it");
    }
    // The next attempt asks again.
    bench.Head(GroupWithFolder(1, {0, 1}));
    CHECK(bench.All<PrepareWorkDir>().size() == 1);
  }
  SECTION("the job is stopped meanwhile") {
    bench.Head(link::StopGroup{kJob, 0, Duration(0), "cancelled"});
    CHECK(bench.ToHead<link::RankChanged>().size() == 2);
    bench.On(WorkDirPrepared{kJob, absl::OkStatus()});
    CHECK_FALSE(bench.Has<SpawnShim>());
  }
  SECTION("the job is forgotten meanwhile") {
    bench.Head(link::StopGroup{kJob, 0, Duration(0), "cancelled"});
    bench.Head(link::ForgetRanks{kJob, 0});
    bench.Head(link::ForgetJob{kJob});
    bench.On(WorkDirPrepared{kJob, absl::OkStatus()});
    CHECK(bench.effects.empty());
  }
  SECTION("another attempt comes meanwhile") {
    bench.Head(GroupWithFolder(1, {2}));
    CHECK_FALSE(bench.Has<PrepareWorkDir>());
    bench.On(WorkDirPrepared{kJob, absl::OkStatus()});
    CHECK(bench.All<CheckPort>().size() == 1);
    CHECK(bench.Has<SpawnShim>());
  }
}

TEST_CASE("a shim that cannot be spawned fails the start with its sentence", "[agent]") {
  Bench bench;
  bench.Head(Group(0, {0}));
  bench.On(ShimClosed{kJob, {}, "no such file"});
  REQUIRE(bench.ToHead<link::RankChanged>().size() == 1);
  CHECK(bench.ToHead<link::RankChanged>()[0].facts.end.start_failed);
  CHECK(bench.ToHead<link::RankChanged>()[0].facts.end.start_error == "no such file");
}

TEST_CASE("ranks of a dead shim are lost, unless it wrote down their end", "[agent]") {
  Bench bench;
  bench.Run(0, {0, 1});
  bench.On(ShimClosed{kJob, {Status(0, local::RANK_PHASE_EXITED, 3), Status(1, local::RANK_PHASE_RUNNING)}, "killed"});
  const auto changes = bench.ToHead<link::RankChanged>();
  REQUIRE(changes.size() == 2);
  CHECK_FALSE(changes[0].facts.end.lost);
  CHECK(changes[0].facts.end.exit_code == 3);
  CHECK(changes[1].facts.end.lost);

  bench.Head(Group(1, {0, 1}));
  CHECK(bench.Has<RemoveShim>());
  CHECK(bench.Has<SpawnShim>());
}

TEST_CASE("stop reaches older attempts, waiting ranks, and nobody twice by mistake", "[agent]") {
  Bench bench;
  bench.Head(link::StopGroup{kJob, 3, 1s, "unknown job"});
  CHECK(bench.effects.empty());
  bench.Run(0, {0});
  bench.Head(Group(1, {0}, true));
  bench.Head(link::StopGroup{kJob, 1, 1s, "cancelled"});
  const auto stops = bench.ToShim(local::AgentToShim::kStop);
  REQUIRE(stops.size() == 1);
  CHECK(stops[0].id().attempt() == 0);
  CHECK(stops[0].stop().grace_millis() == 1000);
  const auto changes = bench.ToHead<link::RankChanged>();
  REQUIRE(changes.size() == 1);
  CHECK(changes[0].facts.key.attempt == 1);
  CHECK(changes[0].facts.end.stop_requested);
  CHECK_FALSE(changes[0].facts.end.Clean());
  bench.On(PortChecked{{kJob, 1, 0}, true});
  CHECK(bench.effects.empty());
}

TEST_CASE("events are acknowledged to the shim when the head has recorded them, not before", "[agent]") {
  Bench bench;
  bench.Run(0, {0, 1});
  bench.Exited(0, 0);
  bench.Exited(0, 1);
  bench.Run(1, {0});
  bench.Head(link::ForgetRanks{kJob, 0});
  REQUIRE(bench.ToShim(local::AgentToShim::kAck).size() == 1);
  CHECK(bench.ToShim(local::AgentToShim::kAck)[0].ack().sequence() == 4);
  REQUIRE(bench.agent.Ranks().size() == 1);
  CHECK(bench.agent.Ranks()[0].key.attempt == 1);
}

TEST_CASE("a forgotten job's shim goes after its ranks", "[agent]") {
  Bench bench;
  bench.Run(0, {0});
  bench.Head(link::ForgetJob{kJob});
  CHECK(bench.ToShim(local::AgentToShim::kRelease).empty());
  bench.Exited(0, 0);
  CHECK(bench.ToShim(local::AgentToShim::kRelease).size() == 1);
  bench.On(ShimClosed{kJob, {}, "released"});
  CHECK(bench.Has<RemoveShim>());
  CHECK(bench.agent.Ranks().empty());
  bench.Head(link::ForgetJob{kJob});
  CHECK(bench.effects.empty());
}

TEST_CASE("a job that comes back while its shim is leaving gets a new one", "[agent]") {
  Bench bench;
  bench.Run(0, {0});
  bench.Exited(0, 0);
  bench.Head(link::ForgetJob{kJob});
  bench.Head(Group(1, {0}));
  CHECK_FALSE(bench.Has<SpawnShim>());
  bench.On(ShimClosed{kJob, {}, "released"});
  CHECK(bench.Has<RemoveShim>());
  CHECK(bench.Has<SpawnShim>());
  bench.ShimHello();
  CHECK(bench.ToShim(local::AgentToShim::kStart).size() == 1);
}

}  // namespace
}  // namespace rayctl::agent
