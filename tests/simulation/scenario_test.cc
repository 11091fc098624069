// What is promised of single misfortunes, each alone and to the second.
#include "tests/simulation/scenario.h"

#include <catch2/catch.hpp>
#include <csignal>
#include <set>

namespace rayctl::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

}  // namespace

TEST_CASE("kill -9 of a rank begins the next attempt of the whole gang", "[simulation]") {
  Cluster c(4);
  const JobId job = c.Run(4, 1, minutes(2));
  const std::set<std::int64_t> before = c.Pids(job);
  c.sim.KillRank(job, 0, 2);
  REQUIRE(c.Becomes(job, JobState::kRecovering, kSoon));
  CHECK(c.sim.Job(job).failures == 1);
  REQUIRE(c.ReachesAttempt(job, 1, kSoon));
  CHECK(c.sim.Job(job).failures == 1);
  for (const std::int64_t pid : c.Pids(job)) {
    CHECK(before.count(pid) == 0);
  }
  REQUIRE(c.Becomes(job, JobState::kSucceeded, minutes(3)));
  CHECK(c.sim.Job(job).exit_code == 0);
  CHECK(c.sim.Job(job).attempt.number == 1);
  CHECK(c.Settles() == "");
}

TEST_CASE("kill -9 of a rank with no failures left ends the job by that rank's signal", "[simulation]") {
  Cluster c(4);
  const JobId job = c.Run(4, 0);
  c.sim.KillRank(job, 0, 2);
  REQUIRE(c.Becomes(job, JobState::kFailed, kSoon));
  CHECK(c.sim.Job(job).reason == Reason::kSignaled);
  CHECK(c.sim.Job(job).exit_code == 128 + SIGKILL);
  CHECK(c.sim.Job(job).failed_rank == Rank{2});
  CHECK(c.sim.Job(job).attempt.number == 0);
  CHECK(c.Settles() == "");
}

TEST_CASE("ranks go on without their agent, which adopts them when it is back in time", "[simulation]") {
  const Duration away = GENERATE(Duration(seconds(1)), Duration(seconds(30)), Duration(seconds(59)));
  CAPTURE(away.count());
  Cluster c(4);
  const JobId job = c.Run(4, 3, minutes(2));
  const std::set<std::int64_t> before = c.Pids(job);
  c.sim.host(1).KillAgent();
  REQUIRE(c.sim.RunUntil([&] { return c.sim.StateOf(1) == NodeState::kSuspect; }, milliseconds(100)));
  c.sim.RunFor(away - milliseconds(100));
  CHECK(c.AllAlive(job, 0));
  c.sim.host(1).StartAgent();
  REQUIRE(c.sim.RunUntil([&] { return c.sim.StateOf(1) == NodeState::kAlive; }, kSoon));
  c.sim.RunFor(seconds(30));
  CHECK(c.sim.Job(job).state == JobState::kRunning);
  CHECK(c.sim.Job(job).attempt.number == 0);
  CHECK(c.sim.Job(job).failures == 0);
  CHECK(c.Pids(job) == before);
  CHECK(c.AllAlive(job, 0));
  REQUIRE(c.Becomes(job, JobState::kSucceeded, minutes(3)));
  CHECK(c.sim.Job(job).attempt.number == 0);
  CHECK(c.Settles() == "");
}

TEST_CASE("an agent away for longer than agent_grace costs an attempt after 70 s", "[simulation]") {
  Cluster c(5);
  const JobId job = c.Run(4, 1, minutes(5));
  const std::size_t host = c.HostOf(job, 1);
  c.sim.host(host).KillAgent();
  c.sim.RunFor(seconds(59));
  CHECK(c.LivingOn(host) == 1);
  c.sim.RunFor(seconds(2));
  CHECK(c.LivingOn(host) == 0);
  CHECK(c.sim.Job(job).attempt.number == 0);
  c.sim.RunFor(milliseconds(8500));
  CHECK(c.sim.Job(job).state == JobState::kRunning);
  CHECK(c.sim.Job(job).attempt.number == 0);
  CHECK(c.sim.StateOf(host) == NodeState::kSuspect);
  REQUIRE(c.ReachesAttempt(job, 1, kSoon));
  CHECK(c.sim.StateOf(host) == NodeState::kDead);
  CHECK(c.sim.Job(job).failures == 1);
  CHECK(c.Settles() == "");
  CHECK(c.sim.Job(job).state == JobState::kSucceeded);
}

TEST_CASE("ranks go on without the head, and a restarted one knows them", "[simulation]") {
  const Duration away = GENERATE(Duration(milliseconds(200)), Duration(seconds(20)), Duration(minutes(5)));
  CAPTURE(away.count());
  Cluster c(4);
  const JobId job = c.Run(4, 3, minutes(8));
  const std::set<std::int64_t> before = c.Pids(job);
  c.sim.head_host().Kill();
  c.sim.RunFor(away);
  CHECK(c.sim.processes().Living().size() == 4);
  c.sim.head_host().Start();
  REQUIRE(c.sim.RunUntil(
      [&] {
        for (std::size_t i = 0; i < c.sim.hosts(); ++i) {
          if (c.sim.StateOf(i) != NodeState::kAlive) {
            return false;
          }
        }
        return true;
      },
      kSoon));
  CHECK(c.sim.Job(job).state == JobState::kRunning);
  CHECK(c.sim.Job(job).attempt.number == 0);
  CHECK(c.Pids(job) == before);
  REQUIRE(c.Becomes(job, JobState::kSucceeded, minutes(9)));
  CHECK(c.sim.Job(job).attempt.number == 0);
  CHECK(c.sim.Job(job).failures == 0);
  CHECK(c.Settles() == "");
}

TEST_CASE("what ended while the head was away is told when it is back", "[simulation]") {
  Cluster c(4);
  JobPlan plan = Cluster::Gang(4, 0);
  plan.plan.usual.runs = seconds(20);
  plan.plan.of_rank[3] = Script{.runs = seconds(10), .exit_code = 3};
  const JobId job = c.Run(std::move(plan));
  c.sim.head_host().Kill();
  c.sim.RunFor(minutes(1));
  c.sim.head_host().Start();
  REQUIRE(c.Becomes(job, JobState::kFailed, kSoon));
  CHECK(c.sim.Job(job).reason == Reason::kExited);
  CHECK(c.sim.Job(job).exit_code == 3);
  CHECK(c.sim.Job(job).failed_rank == Rank{3});
  CHECK(c.Settles() == "");
}

TEST_CASE("a head that dies in the middle of a start ends with every rank once", "[simulation]") {
  // From before the submission is committed until after all ranks have exec'd.
  for (int step = 0; step < 60; ++step) {
    Cluster c(4);
    JobPlan plan = Cluster::Gang(4, 0);
    plan.plan.usual.runs = seconds(30);
    const std::uint64_t request = c.sim.Submit(std::move(plan));
    c.sim.RunFor(std::chrono::microseconds(500) * step);
    c.sim.head_host().Kill();
    c.sim.RunFor(seconds(1));
    c.sim.head_host().Start();
    REQUIRE(c.sim.RunUntil([&] { return c.sim.JobOf(request).has_value(); }, seconds(10)));
    const JobId job = *c.sim.JobOf(request);
    CAPTURE(step);
    REQUIRE(c.Becomes(job, JobState::kSucceeded, minutes(1)));
    CHECK(c.sim.Job(job).attempt.number == 0);
    CHECK(c.sim.processes().all().size() == 4);
    CHECK(c.Settles() == "");
  }
}

TEST_CASE("a stalled agent is suspected only, while it stalls for less than 30 s", "[simulation]") {
  Cluster c(5);
  const JobId job = c.Run(4, 1, minutes(2));
  const std::size_t host = c.HostOf(job, 0);
  const std::set<std::int64_t> before = c.Pids(job);
  c.sim.host(host).FreezeAgent();
  c.sim.RunFor(seconds(8));
  CHECK(c.sim.StateOf(host) == NodeState::kSuspect);
  c.sim.RunFor(seconds(19));
  CHECK(c.sim.StateOf(host) == NodeState::kSuspect);
  c.sim.host(host).ThawAgent();
  REQUIRE(c.sim.RunUntil([&] { return c.sim.StateOf(host) == NodeState::kAlive; }, seconds(3)));
  CHECK(c.sim.Job(job).attempt.number == 0);
  CHECK(c.Pids(job) == before);
  CHECK(c.Settles() == "");
  CHECK(c.sim.Job(job).attempt.number == 0);
  CHECK(c.sim.Job(job).state == JobState::kSucceeded);
}

TEST_CASE("a gang with a longer stalled agent moves when there is room, and its stale rank is killed", "[simulation]") {
  Cluster c(5);
  const JobId job = c.Run(4, 1, minutes(2));
  const std::size_t host = c.HostOf(job, 0);
  c.sim.host(host).FreezeAgent();
  c.sim.RunFor(seconds(28));
  CHECK(c.sim.Job(job).attempt.number == 0);
  REQUIRE(c.ReachesAttempt(job, 1, seconds(5)));
  CHECK(c.sim.StateOf(host) == NodeState::kDead);
  CHECK(c.LivingOn(host) == 1);  // The stale one: nobody there could be told.
  c.sim.host(host).ThawAgent();
  REQUIRE(c.sim.RunUntil([&] { return c.LivingOn(host) == 0; }, seconds(3)));
  CHECK(c.sim.Job(job).state == JobState::kRunning);
  CHECK(c.Settles() == "");
  CHECK(c.sim.Job(job).attempt.number == 1);
  CHECK(c.sim.Job(job).failures == 1);
  CHECK(c.sim.Job(job).state == JobState::kSucceeded);
}

TEST_CASE("without room elsewhere a gang gets its ranks back from a longer stalled agent", "[simulation]") {
  Cluster c(4, 0, 1);
  const JobId job = c.Run(4, 1, minutes(3));
  const std::set<std::int64_t> before = c.Pids(job);
  c.sim.host(2).FreezeAgent();
  c.sim.RunFor(seconds(60));
  CHECK(c.sim.StateOf(2) == NodeState::kDead);
  CHECK(c.sim.Job(job).attempt.number == 0);
  c.sim.host(2).ThawAgent();
  REQUIRE(c.sim.RunUntil([&] { return c.sim.StateOf(2) == NodeState::kAlive; }, seconds(3)));
  CHECK(c.sim.Job(job).attempt.number == 0);
  CHECK(c.Pids(job) == before);
  CHECK(c.AllAlive(job, 0));
  CHECK(c.Settles() == "");
  CHECK(c.sim.Job(job).attempt.number == 0);
  CHECK(c.sim.Job(job).failures == 0);
  CHECK(c.sim.Job(job).state == JobState::kSucceeded);
}

TEST_CASE("a pulled cable costs an attempt after 30 s, and the stale copy is killed on return", "[simulation]") {
  Cluster c(5);
  const JobId job = c.Run(4, 1, minutes(3));
  const std::size_t host = c.HostOf(job, 3);
  c.sim.CutNode(host, true);
  c.sim.RunFor(seconds(27));
  CHECK(c.sim.StateOf(host) == NodeState::kSuspect);
  CHECK(c.sim.Job(job).attempt.number == 0);
  REQUIRE(c.ReachesAttempt(job, 1, seconds(5)));
  CHECK(c.LivingOn(host) == 1);
  c.sim.RunFor(seconds(30));
  CHECK(c.LivingOn(host) == 1);  // A node cut off runs its ranks on.
  c.sim.CutNode(host, false);
  REQUIRE(c.sim.RunUntil([&] { return c.LivingOn(host) == 0; }, seconds(5)));
  CHECK(c.Settles() == "");
  CHECK(c.sim.Job(job).attempt.number == 1);
  CHECK(c.sim.Job(job).state == JobState::kSucceeded);
}

TEST_CASE("a cable that is back before 30 s costs nothing", "[simulation]") {
  Cluster c(5);
  const JobId job = c.Run(4, 0, minutes(2));
  const std::set<std::int64_t> before = c.Pids(job);
  c.sim.CutNode(c.HostOf(job, 3), true);
  c.sim.RunFor(seconds(26));
  c.sim.CutNode(c.HostOf(job, 3), false);
  c.sim.RunFor(seconds(10));
  CHECK(c.sim.StateOf(c.HostOf(job, 3)) == NodeState::kAlive);
  CHECK(c.Pids(job) == before);
  CHECK(c.Settles() == "");
  CHECK(c.sim.Job(job).attempt.number == 0);
  CHECK(c.sim.Job(job).state == JobState::kSucceeded);
}

TEST_CASE("a group with no failures left waits agent_grace more for a lost node, then fails", "[simulation]") {
  Cluster c(5);
  const JobId job = c.Run(4, 0, minutes(10));
  const std::size_t host = c.HostOf(job, 3);
  SECTION("the node stays away") {
    c.sim.CutNode(host, true);
    c.sim.RunFor(seconds(86));
    CHECK(c.sim.Job(job).state == JobState::kRunning);
    REQUIRE(c.Becomes(job, JobState::kFailed, seconds(18)));
    CHECK(c.sim.Job(job).reason == Reason::kNodeLost);
    CHECK(c.sim.Job(job).exit_code == 1);
    c.sim.CutNode(host, false);
    REQUIRE(c.sim.RunUntil([&] { return c.LivingOn(host) == 0; }, seconds(5)));
  }
  SECTION("the node comes back in time and has its ranks back") {
    c.sim.CutNode(host, true);
    c.sim.RunFor(seconds(80));
    CHECK(c.sim.StateOf(host) == NodeState::kDead);
    c.sim.CutNode(host, false);
    c.sim.RunFor(seconds(60));
    CHECK(c.sim.Job(job).state == JobState::kRunning);
    CHECK(c.sim.Job(job).attempt.number == 0);
    CHECK(c.AllAlive(job, 0));
  }
  CHECK(c.Settles() == "");
}

TEST_CASE("a reboot costs an attempt when the agent registers again", "[simulation]") {
  const bool loses_state = GENERATE(false, true);
  const bool says_goodbye = GENERATE(false, true);
  Cluster c(4);
  const JobId job = c.Run(4, 1, minutes(2));
  const std::size_t host = c.HostOf(job, 1);
  c.sim.host(host).PowerOff(says_goodbye, loses_state);
  c.sim.RunFor(seconds(20));
  CHECK(c.sim.Job(job).attempt.number == 0);
  CHECK(c.sim.Job(job).state == JobState::kRunning);
  c.sim.host(host).PowerOn();
  REQUIRE(c.ReachesAttempt(job, 1, seconds(3)));
  CHECK(c.sim.Job(job).failures == 1);
  CHECK(c.Settles() == "");
  CHECK(c.sim.Job(job).state == JobState::kSucceeded);
}

TEST_CASE("a machine without power costs an attempt after 10 s, where a rank elsewhere lost its peer", "[simulation]") {
  Cluster c(5);
  JobPlan plan = Cluster::Gang(4, 1);
  plan.plan.usual.runs = minutes(2);
  plan.plan.usual.leaves_with_peers = true;
  const JobId job = c.Run(std::move(plan));
  const std::size_t host = c.HostOf(job, 1);
  c.sim.host(host).PowerOff(/*says_goodbye=*/false, /*loses_state=*/true);
  REQUIRE(c.Becomes(job, JobState::kRecovering, kSoon));
  c.sim.RunFor(seconds(6));
  CHECK(c.sim.StateOf(host) == NodeState::kSuspect);
  CHECK(c.sim.Job(job).attempt.number == 0);
  REQUIRE(c.ReachesAttempt(job, 1, seconds(4)));
  CHECK(c.sim.StateOf(host) == NodeState::kDead);
  CHECK(c.sim.Job(job).failures == 1);
  CHECK(c.Settles() == "");
  CHECK(c.sim.Job(job).state == JobState::kSucceeded);
  CHECK(c.sim.Job(job).attempt.number == 1);
}

TEST_CASE("a stalled shim changes nothing", "[simulation]") {
  Cluster c(4);
  const JobId job = c.Run(4, 0, seconds(30));
  c.sim.host(c.HostOf(job, 2)).FreezeShim(job);
  c.sim.RunFor(minutes(2));
  // Its rank has ended meanwhile, and only it can tell.
  CHECK(c.sim.Job(job).state == JobState::kRunning);
  c.sim.host(c.HostOf(job, 2)).ThawShim(job);
  REQUIRE(c.Becomes(job, JobState::kSucceeded, kSoon));
  CHECK(c.sim.Job(job).attempt.number == 0);
  CHECK(c.Settles() == "");
}

TEST_CASE("a stalled head changes nothing", "[simulation]") {
  const Duration stall = GENERATE(Duration(seconds(3)), Duration(seconds(45)), Duration(minutes(3)));
  CAPTURE(stall.count());
  Cluster c(5);
  const JobId job = c.Run(4, 0, minutes(5));
  const std::set<std::int64_t> before = c.Pids(job);
  c.sim.head_host().Stall();
  c.sim.RunFor(stall);
  c.sim.head_host().Resume();
  for (int i = 0; i < 60; ++i) {
    c.sim.RunFor(seconds(1));
    for (std::size_t host = 0; host < c.sim.hosts(); ++host) {
      CHECK(c.sim.StateOf(host) != NodeState::kDead);
    }
  }
  CHECK(c.sim.Job(job).state == JobState::kRunning);
  CHECK(c.sim.Job(job).attempt.number == 0);
  CHECK(c.Pids(job) == before);
  CHECK(c.Settles() == "");
  CHECK(c.sim.Job(job).attempt.number == 0);
}

TEST_CASE("the death of a shim ends its ranks and begins the next attempt", "[simulation]") {
  Cluster c(4);
  const JobId job = c.Run(4, 1, minutes(2));
  const std::size_t host = c.HostOf(job, 1);
  SECTION("while its agent lives") { c.sim.host(host).KillShim(job); }
  SECTION("while no agent is there") {
    c.sim.host(host).KillAgent();
    c.sim.RunFor(seconds(1));
    c.sim.host(host).KillShim(job);
    c.sim.RunFor(seconds(1));
    CHECK(c.sim.Job(job).attempt.number == 0);
    c.sim.host(host).StartAgent();
  }
  CHECK(c.LivingOn(host) == 0);
  REQUIRE(c.ReachesAttempt(job, 1, seconds(3)));
  CHECK(c.sim.Job(job).failures == 1);
  CHECK(c.Settles() == "");
  CHECK(c.sim.Job(job).state == JobState::kSucceeded);
}

TEST_CASE("a node that is stopped moves its groups, which counts as no failure", "[simulation]") {
  Cluster c(5);
  const JobId job = c.Run(4, 0, minutes(2));
  const std::size_t host = c.HostOf(job, 1);
  c.sim.host(host).StopAgent("stopped by a person");
  REQUIRE(c.ReachesAttempt(job, 1, seconds(15)));
  CHECK(c.sim.Job(job).failures == 0);
  CHECK(c.sim.host(host).exit_code() == 0);
  CHECK(c.LivingOn(host) == 0);
  CHECK(c.sim.host(host).LivingShims().empty());
  CHECK(c.Settles() == "");
  CHECK(c.sim.Job(job).state == JobState::kSucceeded);
}

TEST_CASE("jobs end as their ranks do", "[simulation]") {
  Cluster c(3);
  JobPlan plan = Cluster::Gang(3, 0);
  plan.plan.usual.runs = seconds(20);
  SECTION("all succeed") {
    const JobId job = c.Run(std::move(plan));
    REQUIRE(c.Becomes(job, JobState::kSucceeded, minutes(1)));
    CHECK(c.sim.Job(job).exit_code == 0);
    CHECK(c.sim.Job(job).reason == Reason::kNone);
  }
  SECTION("one exits with 3") {
    plan.plan.of_rank[1] = Script{.runs = seconds(5), .exit_code = 3};
    plan.plan.usual.leaves_with_peers = true;
    const JobId job = c.Run(std::move(plan));
    REQUIRE(c.Becomes(job, JobState::kFailed, seconds(20)));
    CHECK(c.sim.Job(job).reason == Reason::kExited);
    CHECK(c.sim.Job(job).exit_code == 3);
    CHECK(c.sim.Job(job).failed_rank == Rank{1});
    CHECK(c.sim.Job(job).failures == 1);
  }
  SECTION("one fails twice and then does not") {
    plan.spec.max_failures = 2;
    plan.plan.of_rank[1] = Script{.runs = seconds(5), .exit_code = 3};
    plan.plan.failing_attempts = 2;
    const JobId job = c.Run(std::move(plan));
    REQUIRE(c.Becomes(job, JobState::kSucceeded, minutes(2)));
    CHECK(c.sim.Job(job).failures == 2);
    CHECK(c.sim.Job(job).attempt.number == 2);
  }
  SECTION("one cannot be executed") {
    plan.plan.of_rank[1].cannot_exec = true;
    const JobId job = c.sim.SubmitAndWait(std::move(plan));
    REQUIRE(c.Becomes(job, JobState::kFailed, seconds(20)));
    CHECK(c.sim.Job(job).reason == Reason::kStartFailed);
    CHECK(c.sim.Job(job).exit_code == 127);
  }
  SECTION("time is up") {
    plan.spec.timeout = seconds(10);
    plan.plan.usual.ignores_term = true;
    plan.spec.grace_period = seconds(3);
    const JobId job = c.Run(std::move(plan));
    c.sim.RunFor(seconds(9));
    CHECK(c.sim.Job(job).state == JobState::kRunning);
    REQUIRE(c.Becomes(job, JobState::kStopping, kSoon));
    REQUIRE(c.Becomes(job, JobState::kFailed, seconds(4)));
    CHECK(c.sim.Job(job).reason == Reason::kTimeout);
    CHECK(c.sim.Job(job).exit_code == 124);
  }
  SECTION("somebody cancels it") {
    plan.plan.usual.ignores_term = true;
    const JobId job = c.Run(std::move(plan));
    c.sim.Cancel(job);
    REQUIRE(c.Becomes(job, JobState::kStopping, seconds(1)));
    c.sim.RunFor(seconds(8));
    CHECK(c.sim.Job(job).state == JobState::kStopping);  // The grace period is theirs.
    REQUIRE(c.Becomes(job, JobState::kCancelled, seconds(3)));
    CHECK(c.sim.Job(job).reason == Reason::kUser);
    CHECK(c.sim.Job(job).exit_code == 130);
  }
  CHECK(c.Settles() == "");
}

TEST_CASE("a gang starts as a whole or not at all", "[simulation]") {
  Cluster c(2, 0, 2);
  const JobId first = c.Run(3, 0, minutes(1));
  JobPlan plan = Cluster::Gang(4, 0);
  plan.plan.usual.runs = seconds(10);
  const JobId second = c.sim.SubmitAndWait(std::move(plan));
  c.sim.RunFor(seconds(30));
  CHECK(c.sim.Job(first).state == JobState::kRunning);
  CHECK(c.sim.Job(second).state == JobState::kQueued);
  CHECK(c.sim.Job(second).reason == Reason::kNone);
  CHECK(c.sim.processes().all().size() == 3);
  REQUIRE(c.Becomes(second, JobState::kSucceeded, minutes(2)));
  CHECK(c.Settles() == "");
}

TEST_CASE("a port that is taken costs an attempt and no failure", "[simulation]") {
  Cluster c(2);
  for (std::size_t host = 0; host < c.sim.hosts(); ++host) {
    c.sim.host(host).SetPortTaken(1);
  }
  JobPlan plan = Cluster::Gang(2, 0);
  plan.plan.usual.runs = seconds(10);
  const JobId job = c.sim.SubmitAndWait(std::move(plan));
  REQUIRE(c.sim.RunUntil([&] { return c.sim.Job(job).attempt.number == 3; }, kSoon));
  CHECK(c.sim.Job(job).failures == 0);
  for (std::size_t host = 0; host < c.sim.hosts(); ++host) {
    c.sim.host(host).SetPortTaken(0);
  }
  REQUIRE(c.Becomes(job, JobState::kSucceeded, seconds(20)));
  CHECK(c.sim.Job(job).failures == 0);
  CHECK(c.Settles() == "");
}

TEST_CASE("a stopped cluster ends what runs and keeps what waits", "[simulation]") {
  Cluster c(2, 0, 2);
  const JobId running = c.Run(4, 0);
  const JobId waiting = c.sim.SubmitAndWait(Cluster::Gang(2, 0));
  c.sim.StopCluster();
  REQUIRE(c.sim.RunUntil(
      [&] { return c.sim.head_host().stopped_cluster() && !c.sim.host(0).agent_runs() && !c.sim.host(1).agent_runs(); },
      seconds(20)));
  CHECK(c.sim.processes().Living().empty());
  for (std::size_t i = 0; i < c.sim.hosts(); ++i) {
    CHECK(c.sim.host(i).exit_code() == 0);
    CHECK(c.sim.host(i).LivingShims().empty());
    CHECK_FALSE(c.sim.host(i).AnyStateFile());
  }
  const head::Head restarted = c.sim.head_host().FromJournal();
  CHECK(restarted.FindJob(running)->state == JobState::kCancelled);
  CHECK(restarted.FindJob(running)->reason == Reason::kClusterStopped);
  CHECK(restarted.FindJob(running)->exit_code == 130);
  CHECK(restarted.FindJob(waiting)->state == JobState::kQueued);
}

TEST_CASE("head_grace ends the ranks of a node that is cut off", "[simulation]") {
  Cluster c(2);
  JobPlan plan = Cluster::Gang(2, 0);
  plan.spec.head_grace = seconds(5);
  plan.plan.usual.hangs = true;
  const JobId job = c.Run(std::move(plan));
  c.sim.head_host().Kill();
  c.sim.RunFor(seconds(4));
  CHECK(c.sim.processes().Living().size() == 2);
  c.sim.RunFor(seconds(2));
  CHECK(c.sim.processes().Living().empty());
  c.sim.head_host().Start();
  REQUIRE(c.Becomes(job, JobState::kFailed, seconds(5)));
  CHECK(c.Settles() == "");
}

}  // namespace rayctl::sim
