#include "tests/daemon/head/head_driver.h"

namespace rayctl::head {
namespace {

JobSpec Spec(std::uint32_t workers, std::int32_t max_failures = 1) {
  JobSpec spec = HeadDriver::Spec(workers);
  spec.max_failures = max_failures;
  return spec;
}

TEST_CASE("a silent node is suspect after 5 s and takes no work until it is heard", "[head][nodes]") {
  HeadDriver driver;
  const NodeId a = driver.AddNode("a");
  driver.Pass(milliseconds(4'999));
  CHECK(driver.StateOf(a) == NodeState::kAlive);
  driver.Pass(milliseconds(1));
  CHECK(driver.StateOf(a) == NodeState::kSuspect);
  const JobId job = driver.Submit(Spec(1));
  CHECK(driver.Job(job).state == JobState::kQueued);
  CHECK(driver.Job(job).reason == Reason::kNone);
  driver.Say(a, link::Heartbeat{});
  CHECK(driver.StateOf(a) == NodeState::kAlive);
  CHECK(driver.Job(job).state == JobState::kStarting);
}

TEST_CASE("a connection that breaks after a silence is a silent node's, not a crashed agent's", "[head][nodes]") {
  HeadDriver driver;
  const NodeId a = driver.AddNode("a");
  const JobId job = driver.Submit(Spec(1));
  driver.RunAll(job);
  const NodeId b = driver.AddNode("b");
  driver.PassWithHeartbeats(seconds(20), {b});
  driver.Disconnect(a);  // As TCP's own time-out does behind a cut.
  driver.PassWithHeartbeats(seconds(9), {b});
  CHECK(driver.StateOf(a) == NodeState::kSuspect);
  driver.PassWithHeartbeats(seconds(1), {b});
  CHECK(driver.StateOf(a) == NodeState::kDead);
  CHECK(driver.NodeOf(job, 0) == b);
}

TEST_CASE("every heartbeat is answered", "[head][nodes]") {
  HeadDriver driver;
  const NodeId a = driver.AddNode("a");
  driver.Say(a, link::Heartbeat{});
  driver.Say(a, link::Heartbeat{});
  CHECK(driver.TakeSent<link::HeartbeatHeard>(a).size() == 2);
}

TEST_CASE("a node that runs nothing is dead 10 s after its last sign", "[head][nodes]") {
  HeadDriver driver;
  const NodeId a = driver.AddNode("a");
  driver.Disconnect(a);
  CHECK(driver.StateOf(a) == NodeState::kSuspect);
  driver.Pass(milliseconds(9'999));
  CHECK(driver.StateOf(a) == NodeState::kSuspect);
  driver.Pass(milliseconds(1));
  CHECK(driver.StateOf(a) == NodeState::kDead);
  driver.Connect(a);
  CHECK(driver.StateOf(a) == NodeState::kAlive);
}

TEST_CASE("a crashed agent's node is dead after agent_grace and grace_period, and its group moves", "[head][nodes]") {
  HeadDriver driver;
  const NodeId a = driver.AddNode("a");
  const JobId job = driver.Submit(Spec(2));
  driver.RunAll(job);
  const NodeId b = driver.AddNode("b");
  driver.Disconnect(a);
  driver.PassWithHeartbeats(seconds(69), {b});
  CHECK(driver.StateOf(a) == NodeState::kSuspect);
  CHECK(driver.Job(job).state == JobState::kRunning);
  driver.PassWithHeartbeats(seconds(1), {b});
  CHECK(driver.StateOf(a) == NodeState::kDead);
  CHECK(driver.Job(job).attempt.number == 1);
  CHECK(driver.NodeOf(job, 0) == b);
  CHECK(driver.Job(job).failures == 1);
  CHECK(driver.Job(job).reason == Reason::kNodeLost);
  CHECK(driver.Job(job).message == "rank 0 on a was lost: its agent has been away for 70 s");

  // When it is back, what still runs there is killed, and until that is known the node takes no work.
  link::RankFacts stale{{job, 0, 0}, WorkerState::kRunning, 7, {}};
  driver.Connect(a, {stale});
  const auto registered = driver.TakeSent<link::Registered>(a);
  REQUIRE(registered.size() == 1);
  CHECK(registered[0].groups.empty());
  const JobId next = driver.Submit(Spec(4));
  CHECK(driver.Job(next).state == JobState::kQueued);
  stale.state = WorkerState::kExited;
  stale.end = HeadDriver::Stopped();
  driver.Say(a, link::RankChanged{stale});
  CHECK(driver.Job(next).state == JobState::kStarting);
  CHECK(driver.TakeSent<link::ForgetJob>(a).size() == 1);
}

TEST_CASE("a crashed agent that is back in time adopts its ranks", "[head][nodes]") {
  HeadDriver driver;
  const NodeId a = driver.AddNode("a");
  const JobId job = driver.Submit(Spec(2));
  driver.RunAll(job);
  driver.AddNode("b");
  driver.Disconnect(a);
  driver.Pass(seconds(60));
  driver.Connect(a, {driver.Running(job, 0), driver.Running(job, 1)});
  CHECK(driver.Job(job).state == JobState::kRunning);
  CHECK(driver.Job(job).attempt.number == 0);
  const auto registered = driver.TakeSent<link::Registered>(a);
  REQUIRE(registered.size() == 1);
  REQUIRE(registered[0].groups.size() == 1);
  CHECK(registered[0].groups[0].ranks.size() == 2);
  CHECK(registered[0].kept_jobs == std::vector<JobId>{job});
}

TEST_CASE("a silent node with its stream open is dead after 30 s", "[head][nodes]") {
  HeadDriver driver;
  const NodeId a = driver.AddNode("a");
  const JobId job = driver.Submit(Spec(1));
  driver.RunAll(job);
  driver.Pass(milliseconds(29'999));
  CHECK(driver.StateOf(a) == NodeState::kSuspect);
  driver.Pass(milliseconds(1));
  CHECK(driver.StateOf(a) == NodeState::kDead);
  CHECK(driver.closed().back().first == driver.StreamOf(a));
  // No room elsewhere: dead does not end the attempt, and the node that returns has its rank back.
  CHECK(driver.Job(job).state == JobState::kRunning);
  driver.Pass(seconds(600));
  driver.Connect(a, {driver.Running(job, 0)});
  CHECK(driver.Job(job).state == JobState::kRunning);
  CHECK(driver.Job(job).attempt.number == 0);
  CHECK(driver.Job(job).failures == 0);
}

TEST_CASE("a lost peer elsewhere shortens the wait for a silent node to 10 s", "[head][nodes]") {
  HeadDriver driver;
  const NodeId a = driver.AddNode("a");
  const NodeId b = driver.AddNode("b");
  JobSpec spec = Spec(2);
  spec.placement_strategy = PlacementStrategy::kStrictSpread;
  const JobId job = driver.Submit(spec);
  driver.RunAll(job);
  driver.Pass(seconds(6));
  link::RankEnd end = HeadDriver::Code(1);
  end.last_output = "RuntimeError: Connection closed by peer [10.0.0.2]:4711\n";
  driver.End(job, 0, end);
  CHECK(driver.Job(job).state == JobState::kRecovering);
  CHECK(driver.StateOf(b) == NodeState::kSuspect);
  driver.Pass(milliseconds(3'999));
  CHECK(driver.StateOf(b) == NodeState::kSuspect);
  driver.Pass(milliseconds(1));
  CHECK(driver.StateOf(b) == NodeState::kDead);
  // The lost node is the cause, not the rank that noticed.
  CHECK(driver.Job(job).failed_rank == 1u);
  CHECK(driver.Job(job).reason == Reason::kNodeLost);
  CHECK(driver.Job(job).failures == 1);
  CHECK(driver.StateOf(a) == NodeState::kAlive);
}

TEST_CASE("a group with no failures left waits agent_grace more for its node, then it is lost", "[head][nodes]") {
  HeadDriver driver;
  const NodeId a = driver.AddNode("a");
  const JobId job = driver.Submit(Spec(1, 0));
  driver.RunAll(job);
  const NodeId b = driver.AddNode("b");
  driver.Disconnect(a);
  driver.PassWithHeartbeats(seconds(70), {b});
  CHECK(driver.StateOf(a) == NodeState::kDead);
  CHECK(driver.Job(job).state == JobState::kRunning);
  driver.PassWithHeartbeats(seconds(59), {b});
  CHECK(driver.Job(job).state == JobState::kRunning);
  SECTION("it comes back") {
    driver.Connect(a, {driver.Running(job, 0)});
    driver.PassWithHeartbeats(seconds(200), {a, b});
    CHECK(driver.Job(job).state == JobState::kRunning);
  }
  SECTION("it does not") {
    driver.PassWithHeartbeats(seconds(1), {b});
    CHECK(driver.Job(job).state == JobState::kFailed);
    CHECK(driver.Job(job).reason == Reason::kNodeLost);
    CHECK(driver.Job(job).exit_code == 1);
  }
}

TEST_CASE("a reboot loses the ranks of before at once", "[head][nodes]") {
  HeadDriver driver;
  const NodeId a = driver.AddNode("a");
  const JobId job = driver.Submit(Spec(1));
  driver.RunAll(job);
  driver.Disconnect(a);
  driver.Pass(seconds(3));
  driver.Registration(a).boot_id = "boot-2";
  driver.Connect(a);
  CHECK(driver.StateOf(a) == NodeState::kAlive);
  CHECK(driver.Job(job).attempt.number == 1);
  CHECK(driver.Job(job).failures == 1);
  CHECK(driver.Job(job).message == "rank 0 on a was lost: the machine was restarted");
}

TEST_CASE("a goodbye moves the groups and counts as no failure", "[head][nodes]") {
  HeadDriver driver;
  const NodeId a = driver.AddNode("a");
  const JobId job = driver.Submit(Spec(1, 0));
  driver.RunAll(job);
  const NodeId b = driver.AddNode("b");
  driver.Say(a, link::Goodbye{});
  CHECK(driver.StateOf(a) == NodeState::kDead);
  CHECK(driver.Job(job).state == JobState::kRecovering);
  CHECK(driver.NodeOf(job, 0) == b);
  CHECK(driver.Job(job).failures == 0);
  driver.Say(a, link::Heartbeat{});
  CHECK(driver.StateOf(a) == NodeState::kDead);
}

TEST_CASE("a stall of the head's own begins every count again", "[head][nodes]") {
  HeadDriver driver;
  const NodeId a = driver.AddNode("a");
  const JobId job = driver.Submit(Spec(1));
  driver.RunAll(job);
  const bool stalled = GENERATE(true, false);
  CAPTURE(stalled);
  if (stalled) {
    driver.Jump(seconds(100));
    driver.On(Tick{});
    CHECK(driver.StateOf(a) == NodeState::kAlive);
    driver.Pass(milliseconds(4'999));
    CHECK(driver.StateOf(a) == NodeState::kAlive);
  } else {
    driver.Jump(seconds(6));  // A second late is within what counts as running.
    driver.On(Tick{});
    CHECK(driver.StateOf(a) == NodeState::kSuspect);
  }
}

TEST_CASE("after a restart of the head nodes are suspect with fresh counts and jobs go on", "[head][nodes]") {
  HeadDriver driver;
  const NodeId a = driver.AddNode("a");
  const JobId running = driver.Submit(Spec(2));
  driver.RunAll(running);
  const JobId starting = driver.Submit(Spec(2));
  const JobId queued = driver.Submit(Spec(4));
  driver.Restart();
  CHECK(driver.StateOf(a) == NodeState::kSuspect);
  CHECK(driver.Job(running).state == JobState::kRunning);
  driver.Pass(seconds(30));
  CHECK(driver.StateOf(a) == NodeState::kSuspect);
  driver.Connect(a, {driver.Running(running, 0), driver.Running(running, 1)});
  CHECK(driver.Job(running).state == JobState::kRunning);
  const auto registered = driver.TakeSent<link::Registered>(a);
  REQUIRE(registered.size() == 1);
  REQUIRE(registered[0].groups.size() == 2);
  CHECK(registered[0].groups[1].job == starting);  // Never confirmed: told again.
  CHECK(registered[0].groups[1].ranks.size() == 2);
  CHECK(driver.Job(queued).state == JobState::kQueued);
}

TEST_CASE("a running rank that its agent does not know any more is lost", "[head][nodes]") {
  HeadDriver driver;
  const NodeId a = driver.AddNode("a");
  const JobId job = driver.Submit(Spec(2));
  driver.RunAll(job);
  driver.Disconnect(a);
  driver.Connect(a, {driver.Running(job, 0)});
  CHECK(driver.Job(job).state == JobState::kRecovering);
  CHECK(driver.TakeSent<link::StopGroup>(a).size() == 1);
  driver.End(job, 0, HeadDriver::Stopped());
  CHECK(driver.Job(job).attempt.number == 1);
  CHECK(driver.Job(job).reason == Reason::kNodeLost);
}

TEST_CASE("streams: repeats are ignored, gaps and strangers are closed", "[head][nodes]") {
  HeadDriver driver;
  const NodeId a = driver.AddNode("a");
  const StreamId stream = driver.StreamOf(a);
  const Incarnation incarnation = driver.IncarnationOf(a);
  driver.On(AgentMessage{stream, a, {incarnation, 1, link::Goodbye{}}});  // Sequence 1 was Register.
  CHECK(driver.StateOf(a) == NodeState::kAlive);
  CHECK(driver.closed().empty());
  SECTION("a gap") {
    driver.On(AgentMessage{stream, a, {incarnation, 3, link::Heartbeat{}}});
    REQUIRE(driver.closed().size() == 1);
    CHECK(driver.StateOf(a) == NodeState::kSuspect);
  }
  SECTION("another incarnation") {
    driver.On(AgentMessage{stream, a, {incarnation + 1, 2, link::Heartbeat{}}});
    CHECK(driver.closed().size() == 1);
  }
  SECTION("no registration") {
    driver.On(AgentMessage{StreamId{99}, a, {incarnation, 1, link::Heartbeat{}}});
    REQUIRE(driver.closed().size() == 1);
    CHECK(driver.closed()[0].first == StreamId{99});
  }
  SECTION("another protocol") {
    link::Register registration = driver.Registration(a);
    registration.protocol = 9;
    registration.version = "7.0";
    driver.On(AgentMessage{StreamId{99}, a, {0, 1, registration}});
    REQUIRE(driver.closed().size() == 1);
    CHECK(driver.closed()[0].second.code() == absl::StatusCode::kFailedPrecondition);
    CHECK(std::string(driver.closed()[0].second.message()).find("7.0") != std::string::npos);
    CHECK(std::string(driver.closed()[0].second.message()).find("0.1.0") != std::string::npos);
  }
  SECTION("a newer stream closes the older") {
    driver.Connect(a);
    REQUIRE(driver.closed().size() == 1);
    CHECK(driver.closed()[0].first == stream);
    CHECK(driver.IncarnationOf(a) == incarnation + 1);
    driver.On(AgentClosed{stream});
    CHECK(driver.StateOf(a) == NodeState::kAlive);
  }
}

TEST_CASE("names of nodes are unique and kept", "[head][nodes]") {
  HeadDriver driver;
  const NodeId first = driver.AddNode("box");
  const auto second = driver.Ask<JoinAnswer>(JoinNode{.node_name = "box"});
  CHECK(second->node_name == "box-2");
  const auto again = driver.Ask<JoinAnswer>(JoinNode{.node_name = "other", .known = first});
  CHECK(again->node == first);
  CHECK(again->node_name == "box");
}

TEST_CASE("the name of a node that left is free, and who comes back to a taken one gets another", "[head][nodes]") {
  HeadDriver driver;
  const NodeId left = driver.AddNode("box");
  driver.Say(left, link::Goodbye{"stopped"});
  REQUIRE(driver.StateOf(left) == NodeState::kDead);
  const NodeId fresh = driver.AddNode("box");
  CHECK(fresh != left);
  CHECK(driver.head().NodeName(fresh) == "box");
  // It has joined and is only about to register: its name is taken.
  CHECK(driver.Ask<JoinAnswer>(JoinNode{.node_name = "box"})->node_name == "box-2");
  driver.Connect(left);
  CHECK(driver.head().NodeName(left) == "box-3");
  CHECK(driver.head().NodeName(fresh) == "box");
  driver.Restart();
  CHECK(driver.head().NodeName(left) == "box-3");
}

}  // namespace
}  // namespace rayctl::head
