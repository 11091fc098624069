// A device is lent again only when no process holds it, however its holder was lost and however long that takes to die.
#include <catch2/catch.hpp>
#include <csignal>
#include <string>

#include "tests/simulation/scenario.h"

namespace rayctl::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr Duration kKillTakes = seconds(20);

JobPlan OnGpu(Amount share, std::int32_t max_failures) {
  JobPlan plan = Cluster::Gang(1, max_failures);
  plan.spec.resources_per_worker.Set(kGpu, share);
  plan.plan.usual.runs = minutes(5);
  return plan;
}

// Two machines with one device each. A job that held the one has been moved to the other while its node was cut off;
// the node is back, its old rank has been killed there and takes kKillTakes to die, and another job wants its device.
class StaleHolder {
 public:
  explicit StaleHolder(Amount share = Amount::Units(1)) : c(2, 1) {
    JobPlan plan = OnGpu(share, 1);
    plan.plan.usual.ignores_term = true;
    plan.plan.usual.kill_takes = kKillTakes;
    moved = c.Run(std::move(plan));
    host = c.HostOf(moved, 0);
    c.sim.CutNode(host, true);
    REQUIRE(c.ReachesAttempt(moved, 1, seconds(35)));
    REQUIRE(c.HostOf(moved, 0) != host);
    waiting = c.sim.SubmitAndWait(OnGpu(Amount::Units(1), 0));
    c.sim.RunFor(seconds(5));
    REQUIRE(c.sim.Job(waiting).state == JobState::kQueued);
    c.sim.CutNode(host, false);
    REQUIRE(Returns());
    REQUIRE(Holder().alive);
  }

  const Process& Holder() { return *c.sim.ProcessOf(moved, 0, 0); }
  bool Returns() {
    return c.sim.RunUntil([this] { return c.sim.head_host().running() && c.sim.StateOf(host) == NodeState::kAlive; },
                          seconds(10));
  }
  // The holder lives, and nothing else was started beside it, in all of `duration`.
  void StaysAlone(Duration duration) {
    const bool changed = c.sim.RunUntil([this] { return !Holder().alive || c.LivingOn(host) != 1; }, duration);
    CHECK_FALSE(changed);
  }
  // As soon as the holder is gone, and not before, its device goes to the job that waits.
  void PassesOn() {
    const bool changed = c.sim.RunUntil([this] { return !Holder().alive || c.LivingOn(host) != 1; }, minutes(1));
    REQUIRE(changed);
    REQUIRE_FALSE(Holder().alive);
    CHECK(Holder().signal == SIGKILL);
    REQUIRE(c.Becomes(waiting, JobState::kRunning, kSoon));
    CHECK(c.HostOf(waiting, 0) == host);
    CHECK(Holder().ended <= c.sim.ProcessOf(waiting, 0, 0)->began);
  }

  Cluster c;
  JobId moved;
  JobId waiting;
  std::size_t host = 0;
};

}  // namespace

TEST_CASE("a device is not lent while a stale rank takes its time to die", "[simulation][devices]") {
  StaleHolder s;
  s.StaysAlone(kKillTakes - seconds(3));
  CHECK(s.c.sim.Job(s.waiting).state == JobState::kQueued);
  s.PassesOn();
  CHECK(s.c.Settles() == "");
}

TEST_CASE("half a device is not lent twice while a stale rank holds the other half", "[simulation][devices]") {
  StaleHolder s(Amount{Amount::kUnit / 2});
  s.StaysAlone(kKillTakes - seconds(3));
  s.PassesOn();
  CHECK(s.c.Settles() == "");
}

TEST_CASE("a stale rank keeps its device through what befalls its node meanwhile", "[simulation][devices]") {
  StaleHolder s;
  s.StaysAlone(seconds(2));
  SECTION("the head is restarted") {
    s.c.sim.head_host().Kill();
    s.c.sim.RunFor(seconds(1));
    s.c.sim.head_host().Start();
    REQUIRE(s.Returns());
  }
  SECTION("the agent is restarted") {
    s.c.sim.host(s.host).KillAgent();
    s.c.sim.RunFor(seconds(1));
    s.c.sim.host(s.host).StartAgent();
    REQUIRE(s.Returns());
  }
  SECTION("the node is suspected once more") {
    s.c.sim.CutNode(s.host, true);
    REQUIRE(s.c.sim.RunUntil([&] { return s.c.sim.StateOf(s.host) == NodeState::kSuspect; }, seconds(8)));
    s.c.sim.CutNode(s.host, false);
    REQUIRE(s.Returns());
  }
  SECTION("the node counts as dead once more") {
    s.c.sim.CutNode(s.host, true);
    REQUIRE(s.c.sim.RunUntil([&] { return s.c.sim.StateOf(s.host) == NodeState::kDead; }, seconds(15)));
    s.c.sim.CutNode(s.host, false);
    REQUIRE(s.Returns());
  }
  SECTION("its job is cancelled") {
    s.c.sim.Cancel(s.moved);
    // The other node's device is free when the new attempt has died, which takes longer than the stale one.
    REQUIRE(s.c.Becomes(s.moved, JobState::kStopping, seconds(1)));
  }
  s.StaysAlone(seconds(1));
  s.PassesOn();
  CHECK(s.c.Settles() == "");
}

TEST_CASE("a device is not lent while the rank of an ended attempt takes its time to die", "[simulation][devices]") {
  Cluster c(1, 1);
  JobPlan plan = OnGpu(Amount::Units(1), 0);
  plan.spec.grace_period = seconds(3);
  plan.plan.usual.ignores_term = true;
  plan.plan.usual.kill_takes = kKillTakes;
  const JobId first = c.Run(std::move(plan));
  const JobId second = c.sim.SubmitAndWait(OnGpu(Amount::Units(1), 0));
  c.sim.Cancel(first);
  REQUIRE(c.Becomes(second, JobState::kRunning, seconds(30)));
  const Process& holder = *c.sim.ProcessOf(first, 0, 0);
  REQUIRE_FALSE(holder.alive);
  CHECK(c.sim.Job(first).state == JobState::kCancelled);
  CHECK(holder.ended - holder.began >= kKillTakes);
  CHECK(holder.ended <= c.sim.ProcessOf(second, 0, 0)->began);
  CHECK(c.Settles() == "");
}

TEST_CASE("ranks whose agent was away too long keep their device until they are dead", "[simulation][devices]") {
  Cluster c(2, 1);
  JobPlan plan = OnGpu(Amount::Units(1), 1);
  plan.spec.agent_grace = seconds(5);
  plan.spec.grace_period = seconds(1);
  plan.plan.usual.kill_takes = kKillTakes;
  const JobId moved = c.Run(std::move(plan));
  const std::size_t host = c.HostOf(moved, 0);
  c.sim.host(host).KillAgent();
  // Its shim kills the rank after 5 s; the head moves the job after 6 s, and the rank is dead after 25 s.
  REQUIRE(c.ReachesAttempt(moved, 1, seconds(8)));
  const JobId waiting = c.sim.SubmitAndWait(OnGpu(Amount::Units(1), 0));
  c.sim.host(host).StartAgent();
  REQUIRE(c.sim.RunUntil([&] { return c.sim.StateOf(host) == NodeState::kAlive; }, seconds(3)));
  const Process& holder = *c.sim.ProcessOf(moved, 0, 0);
  CHECK(holder.alive);
  REQUIRE(c.Becomes(waiting, JobState::kRunning, seconds(30)));
  CHECK(c.HostOf(waiting, 0) == host);
  CHECK_FALSE(holder.alive);
  CHECK(holder.ended <= c.sim.ProcessOf(waiting, 0, 0)->began);
  CHECK(c.Settles() == "");
}

}  // namespace rayctl::sim
