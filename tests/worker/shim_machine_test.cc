#include <catch2/catch.hpp>
#include <csignal>
#include <limits>

#include "tests/worker/shim_driver.h"

namespace rayctl::shim {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a rank is written down before it is spawned and before its news is told", "[shim]") {
  Driver d;
  CHECK(d.Hello() == Words{"agent hello"});
  CHECK(d.Start({0, 1}) == Words{"write starting #0", "spawn 0", "write starting #0", "spawn 1"});
  for (const Effect& effect : d.effects) {
    if (const auto* write = std::get_if<WriteState>(&effect)) {
      CHECK(write->record.starting().argv().empty());
      CHECK(write->record.starting().env().empty());
      CHECK(write->record.starting().log_path() == "/logs/rank.log");
    }
  }
  CHECK(d.Last<Spawn>().start.env(0) == "SECRET=1");
  CHECK(d.On(Spawned{{0, 0, 0}, 100, 5}) == Words{"write started #1", "agent started 0 #1"});
  CHECK(d.Last<SendAgent>().message.started().pid() == 100);
  CHECK(d.On(SpawnFailed{{0, 0, 1}, 127, "exec train: no"}) == Words{"write exited #2", "agent exited 1 #2"});
  const local::RankExited& failed = d.Last<SendAgent>().message.exited();
  CHECK(failed.start_failed());
  CHECK(failed.exit_code() == 127);
  CHECK(failed.start_error() == "exec train: no");
  CHECK(d.shim.AnyRankAlive());
  CHECK(d.On(Exited{{0, 0, 0}, 0, 11, "tail", 42, 4096}) == Words{"write exited #3", "agent exited 0 #3"});
  const local::RankExited& exited = d.Last<SendAgent>().message.exited();
  CHECK(exited.signal() == 11);
  CHECK(exited.last_output() == "tail");
  CHECK(exited.log_bytes() == 42);
  CHECK(exited.memory_peak_bytes() == 4096);
  CHECK_FALSE(exited.stop_requested());
  CHECK_FALSE(d.shim.AnyRankAlive());
  // Late and repeated events are harmless.
  CHECK(d.On(Exited{{0, 0, 0}, 1}).empty());
  CHECK(d.On(Spawned{{0, 0, 1}, 1, 1}).empty());
  CHECK(d.On(Exited{{0, 0, 9}, 1}).empty());
}

TEST_CASE("a start is taken once an attempt, an older attempt is refused, a newer one is fine", "[shim]") {
  Driver d;
  d.Hello();
  d.Start({0}, 1);
  CHECK(d.Start({0}, 1).empty());
  CHECK(d.Start({0, 2}, 1) == Words{"write starting #0", "spawn 2/1"});
  CHECK(d.Start({0}, 0) == Words{"agent refused 1"});
  CHECK(d.Start({0}, 2) == Words{"write starting #0", "spawn 0/2"});
  d.On(Exited{{0, 2, 0}, 0});
  CHECK(d.Start({0}, 2).empty());                                      // An ended rank is not started again.
  CHECK(d.Start({0}, 0, 1) == Words{"write starting #0", "spawn 0"});  // Another group counts its own attempts.
}

TEST_CASE("messages that make no sense are refused", "[shim]") {
  Driver d;
  d.Hello();
  local::AgentToShim other;
  other.mutable_id()->set_job_id(8);
  other.mutable_release();
  CHECK(d.On(AgentSaid{other}) == Words{"agent refused 3"});
  CHECK(d.Agent([](auto&) {}) == Words{"agent refused 2"});
  CHECK(d.Agent([](auto& m) { m.mutable_hold(); }) == Words{"agent refused 2"});
  d.Start({0});
  CHECK(d.Agent([](auto&) {}) == Words{"agent refused 3"});
  d.On(AgentConnected{});
  CHECK(d.Agent([](auto& m) { m.mutable_hello(); }) == Words{"agent refused 3"});
}

TEST_CASE("stop asks with SIGTERM and takes with SIGKILL after the grace", "[shim]") {
  Driver d;
  d.Hello();
  d.Start({0, 1});
  d.On(Spawned{{0, 0, 0}, 100, 5});
  const auto stop = [&](std::uint64_t grace, std::vector<std::uint32_t> ranks = {}) {
    return d.Agent([&](auto& m) {
      m.mutable_stop()->set_grace_millis(grace);
      for (const auto rank : ranks) {
        m.mutable_stop()->add_ranks(rank);
      }
    });
  };
  CHECK(stop(2'000, {0}) == Words{"kill 0 15"});
  CHECK(d.shim.NextDeadline() == d.Time().steady + 2s);
  CHECK(stop(5'000, {0}).empty());  // Repeated: no second signal, and no later deadline.
  CHECK(d.shim.NextDeadline() == d.Time().steady + 2s);
  CHECK(stop(1'000, {0}).empty());  // A shorter grace counts.
  CHECK(d.After(999ms).empty());
  CHECK(d.After(1ms) == Words{"kill 0 9"});
  CHECK(stop(1'000, {0}).empty());
  CHECK(d.After(5s) == Words{"kill 0 9"});  // It is stuck in the kernel: again.
  d.On(Exited{{0, 0, 0}, 0, SIGKILL});
  CHECK(d.Last<SendAgent>().message.exited().stop_requested());
  // One that has not been spawned yet is killed as soon as it has.
  CHECK(stop(0) == Words{"kill 1 9"});
  CHECK(d.On(Spawned{{0, 0, 1}, 101, 5}) == Words{"write started #3", "agent started 1 #3", "kill 1 9"});
  d.On(Exited{{0, 0, 1}, 0, SIGKILL});
  CHECK(stop(0).empty());  // Nothing runs: harmless.
  CHECK(d.shim.NextDeadline() == std::nullopt);
}

TEST_CASE("a grace that no clock can count is one that does not end", "[shim]") {
  Driver d;
  d.Hello();
  d.Start({0});
  d.On(Spawned{{0, 0, 0}, 100, 5});
  const std::uint64_t for_ever = std::numeric_limits<std::uint64_t>::max();
  CHECK(d.Agent([&](auto& m) { m.mutable_stop()->set_grace_millis(for_ever); }) == Words{"kill 0 15"});
  CHECK(d.shim.NextDeadline() > d.Time().steady + std::chrono::hours(24 * 365));
  d.Agent([&](auto& m) {
    m.mutable_hello()->set_protocol(1);
    m.mutable_hello()->set_agent_grace_millis(for_ever);
  });
  d.On(AgentClosed{});
  CHECK(d.After(24h).empty());  // Neither killed nor ended.
  CHECK(d.shim.AnyRankAlive());
}

TEST_CASE("ranks of an older attempt can still be stopped", "[shim]") {
  Driver d;
  d.Hello();
  d.Start({0}, 0);
  d.Start({0}, 1);
  CHECK(d.Agent([](auto& m) { m.mutable_stop(); }, 0) == Words{"kill 0 9"});
}

TEST_CASE("events are kept until they are acknowledged and replayed to a new agent", "[shim]") {
  Driver d;
  d.Hello();
  d.Start({0, 1});
  d.On(Spawned{{0, 0, 0}, 100, 5});
  d.On(Spawned{{0, 0, 1}, 101, 6});
  CHECK(d.On(AgentClosed{}).empty());
  CHECK(d.On(Exited{{0, 0, 0}, 4}) == Words{"write exited #3"});  // Nobody to tell, still written.
  CHECK(d.Hello(0) == Words{"agent hello", "agent started 0 #1", "agent started 1 #2", "agent exited 0 #3"});
  const local::ShimHello& hello = std::get<SendAgent>(d.effects[0]).message.hello();
  CHECK(hello.protocol() == 1);
  CHECK(hello.shim_pid() == 99);
  CHECK(hello.job_id() == 7);
  CHECK(hello.last_sequence() == 3);
  REQUIRE(hello.ranks_size() == 2);
  CHECK(hello.ranks(0).phase() == local::RANK_PHASE_EXITED);
  CHECK(hello.ranks(0).exit().exit_code() == 4);
  CHECK(hello.ranks(1).phase() == local::RANK_PHASE_RUNNING);
  CHECK(hello.ranks(1).pid() == 101);
  CHECK(hello.ranks(1).pid_start_ticks() == 6);
  CHECK(d.Hello(1) == Words{"agent hello", "agent started 1 #2", "agent exited 0 #3"});
  CHECK(d.Agent([](auto& m) { m.mutable_ack()->set_sequence(2); }).empty());
  CHECK(d.Hello(0) == Words{"agent hello", "agent exited 0 #3"});
  // A connection that has not said hello is told nothing, and what happens meanwhile comes by the replay.
  d.On(AgentConnected{});
  CHECK(d.On(Exited{{0, 0, 1}, 0}) == Words{"write exited #4"});
  CHECK(d.Agent([](auto& m) { m.mutable_hello()->set_protocol(9); }) ==
        Words{"agent hello", "agent exited 0 #3", "agent exited 1 #4"});
  CHECK(std::get<SendAgent>(d.effects[0]).message.hello().protocol() == 1);
}

TEST_CASE("without an agent for agent_grace every rank is killed, then the shim exits", "[shim]") {
  Driver d({.job = JobId{7}, .agent_grace = 10s});
  CHECK(d.shim.NextDeadline() == d.Time().steady + 10s);
  d.Hello();
  CHECK(d.shim.NextDeadline() == std::nullopt);
  d.Run({0, 1});
  d.On(AgentClosed{});
  CHECK(d.After(9s).empty());
  d.Hello();
  d.On(AgentClosed{});  // Counts again.
  CHECK(d.After(9s).empty());
  CHECK(d.After(1s) == Words{"kill 0 9", "kill 1 9"});
  CHECK(d.On(Exited{{0, 0, 0}, 0, 9}) == Words{"write exited #3", "close 0"});
  CHECK(d.Hello(100) == Words{"agent hello", "agent attached 1"});  // Too late to be saved, not to be told.
  CHECK(d.Start({5}) == Words{"agent refused 2"});
  CHECK(d.On(Exited{{0, 0, 1}, 0, 9}) == Words{"write exited #4", "agent exited 1 #4", "close 1", "exit keep"});
  CHECK(d.Last<SendAgent>().message.exited().stop_requested());
  CHECK(d.On(Tick{}).empty());
  CHECK(d.shim.NextDeadline() == std::nullopt);
}

TEST_CASE("no agent ever: the shim leaves after agent_grace, which a hello may change", "[shim]") {
  Driver d({.job = JobId{7}, .agent_grace = 10s});
  CHECK(d.After(10s) == Words{"exit keep"});
  Driver other({.job = JobId{7}, .agent_grace = 10s});
  other.On(AgentConnected{});
  other.Agent([](auto& m) {
    m.mutable_hello()->set_protocol(1);
    m.mutable_hello()->set_agent_grace_millis(500);
  });
  other.On(AgentClosed{});
  CHECK(other.After(499ms).empty());
  CHECK(other.After(1ms) == Words{"exit keep"});
}

TEST_CASE("release removes the state, but not while ranks run", "[shim]") {
  Driver d;
  d.Hello();
  d.Start({0});
  const auto release = [&] { return d.Agent([](auto& m) { m.mutable_release(); }); };
  CHECK(release() == Words{"agent refused 3"});
  d.On(SpawnFailed{{0, 0, 0}, 126, "no"});
  CHECK(release() == Words{"exit remove"});
  CHECK(d.Start({1}).empty());
}

}  // namespace
}  // namespace rayctl::shim
