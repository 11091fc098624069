// The agent's link to its head, and its end.
#include <catch2/catch.hpp>
#include <chrono>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "daemon/agent/rank_env.h"
#include "tests/daemon/agent/agent_bench.h"

namespace rayctl::agent {
namespace {

using namespace std::chrono_literals;
using test::Bench;
using test::Group;
using test::kJob;
using test::Status;

TEST_CASE("the head is called only after every shim was found", "[agent]") {
  Bench bench(false);
  bench.On(ShimFound{kJob, false, {Status(0, local::RANK_PHASE_EXITED, 3), Status(1, local::RANK_PHASE_RUNNING)}});
  CHECK_FALSE(bench.Has<ConnectHead>());
  bench.On(ShimsScanned{});
  CHECK(bench.Has<ConnectHead>());
  bench.On(HeadConnected{});
  const auto registrations = bench.ToHead<link::Register>();
  REQUIRE(registrations.size() == 1);
  REQUIRE(registrations[0].ranks.size() == 2);
  CHECK(registrations[0].ranks[0].end.exit_code == 3);
  CHECK_FALSE(registrations[0].ranks[0].end.lost);
  CHECK(registrations[0].ranks[1].end.lost);
  CHECK(bench.sent.back().sequence == 1);
  CHECK(bench.sent.back().incarnation == 0);
}

TEST_CASE("registration stops at once what the head does not name", "[agent]") {
  Bench bench;
  bench.Run(0, {0, 1});
  bench.On(HeadClosed{absl::UnavailableError("gone")});
  CHECK(bench.ToShim(local::AgentToShim::kStop).empty());
  link::Registered registered;
  SECTION("one rank of a kept job") {
    registered.groups = {Group(0, {1})};
    registered.kept_jobs = {kJob};
    bench.Register(registered);
    const auto stops = bench.ToShim(local::AgentToShim::kStop);
    REQUIRE(stops.size() == 1);
    CHECK(stops[0].stop().grace_millis() == 0);
    CHECK(std::vector<std::uint32_t>(stops[0].stop().ranks().begin(), stops[0].stop().ranks().end()) ==
          std::vector<std::uint32_t>{0});
  }
  SECTION("a whole job, whose shim then goes") {
    bench.Register(registered);
    CHECK(bench.ToShim(local::AgentToShim::kStop).size() == 1);
    bench.Exited(0, 0);
    bench.Exited(0, 1);
    CHECK(bench.ToShim(local::AgentToShim::kRelease).size() == 1);
  }
  SECTION("and starts what is missing") {
    registered.groups = {Group(0, {0, 1, 2})};
    bench.Register(registered);
    const auto starts = bench.ToShim(local::AgentToShim::kStart);
    REQUIRE(starts.size() == 1);
    REQUIRE(starts[0].start().ranks_size() == 1);
    CHECK(starts[0].start().ranks(0).rank() == 2);
  }
}

TEST_CASE("what happens while the head is away is told in the registration", "[agent]") {
  Bench bench;
  bench.Run(0, {0});
  bench.On(HeadClosed{absl::UnavailableError("gone")});
  bench.Exited(0, 0, 7);
  CHECK_FALSE(bench.Has<SendHead>());
  bench.On(HeadConnected{});
  REQUIRE(bench.ToHead<link::Register>().at(0).ranks.size() == 1);
  CHECK(bench.ToHead<link::Register>()[0].ranks[0].end.exit_code == 7);

  SECTION("and what happens before the answer, after it") {
    bench.Started(1, 0);
    CHECK_FALSE(bench.Has<SendHead>());
    ++bench.incarnation;
    bench.head_sequence = 0;
    bench.Head(link::Registered{2s, {}, {kJob}});
    REQUIRE(bench.ToHead<link::RankChanged>().size() == 1);
    CHECK(bench.ToHead<link::RankChanged>()[0].facts.key.attempt == 1);
    CHECK(bench.sent.back().incarnation == bench.incarnation);
  }
}

TEST_CASE("messages out of turn", "[agent]") {
  Bench bench;
  SECTION("of another incarnation are ignored") {
    bench.On(HeadMessage{{bench.incarnation + 1, bench.head_sequence + 1, Group(0, {0})}});
    CHECK(bench.effects.empty());
  }
  SECTION("repeated are ignored") {
    bench.On(HeadMessage{{bench.incarnation, bench.head_sequence, Group(0, {0})}});
    CHECK(bench.effects.empty());
  }
  SECTION("after a gap close the stream, and the agent comes back") {
    bench.On(HeadMessage{{bench.incarnation, bench.head_sequence + 2, Group(0, {0})}});
    CHECK(bench.Has<CloseHead>());
    CHECK_FALSE(bench.Has<SpawnShim>());
    CHECK_FALSE(bench.agent.registered());
    bench.On(HeadClosed{absl::CancelledError("closed here")});
    bench.Advance(1s);
    CHECK(bench.Has<ConnectHead>());
  }
}

TEST_CASE("tries to reach the head double up to the longest, spread by the seed", "[agent]") {
  Bench bench(false);
  bench.On(ShimsScanned{});
  const AgentConfig config = Bench::Config();
  Duration longest{0};
  for (int i = 0; i < 12; ++i) {
    bench.On(HeadClosed{absl::UnavailableError("refused")});
    const Duration delay = *bench.agent.NextDeadline() - bench.now.steady;
    CHECK(delay >= config.reconnect_min / 2);
    CHECK(delay <= config.reconnect_max);
    longest = std::max(longest, delay);
    bench.Advance(delay);
    CHECK(bench.Has<ConnectHead>());
  }
  CHECK(longest >= config.reconnect_max / 2);
}

TEST_CASE("an unanswered registration is given up", "[agent]") {
  Bench bench(false);
  bench.On(ShimsScanned{});
  bench.On(HeadConnected{});
  bench.Advance(Bench::Config().register_timeout);
  CHECK(bench.Has<CloseHead>());
  bench.Advance(1s);
  CHECK(bench.Has<ConnectHead>());
}

TEST_CASE("heartbeats come at the interval that the head named", "[agent]") {
  Bench bench;
  REQUIRE(bench.agent.NextDeadline() == bench.now.steady + 2s);
  bench.Advance(2s - 1ns);
  CHECK(bench.ToHead<link::Heartbeat>().empty());
  bench.Advance(1ns);
  CHECK(bench.ToHead<link::Heartbeat>().size() == 1);
}

TEST_CASE("a link on which the head says nothing is opened anew", "[agent]") {
  Bench bench;
  const std::uint32_t most = Bench::Config().unheard_heartbeats_max;
  SECTION("after so many heartbeats without a word, not before") {
    for (std::uint32_t beat = 0; beat < most; ++beat) {
      bench.Advance(2s);
      CHECK(bench.ToHead<link::Heartbeat>().size() == 1);
    }
    bench.Advance(2s);
    CHECK(bench.Has<CloseHead>());
    CHECK(bench.ToHead<link::Heartbeat>().empty());
    CHECK_FALSE(bench.agent.registered());
    bench.Advance(1s);
    CHECK(bench.Has<ConnectHead>());
    bench.Register();
    bench.Advance(2s);
    CHECK_FALSE(bench.Has<CloseHead>());  // The count began again.
  }
  SECTION("any word of the head begins the count again") {
    for (std::uint32_t beat = 0; beat < 3 * most; ++beat) {
      bench.Advance(2s);
      CHECK_FALSE(bench.Has<CloseHead>());
      bench.Head(link::HeartbeatHeard{});
    }
  }
  SECTION("a stall of the agent itself is one heartbeat, however long") {
    bench.Advance(1h);
    CHECK_FALSE(bench.Has<CloseHead>());
    CHECK(bench.ToHead<link::Heartbeat>().size() == 1);
  }
}

TEST_CASE("head_grace alone lets an absent head end ranks", "[agent]") {
  Bench bench;
  link::StartGroup group = Group(0, {0});
  const bool graced = GENERATE(true, false);
  group.spec.head_grace = graced ? Duration(30s) : Duration(0);
  bench.Head(group);
  bench.ShimHello();
  bench.Started(0, 0);
  bench.On(HeadClosed{absl::UnavailableError("gone")});
  std::size_t stops = 0;
  for (int i = 0; i < 60; ++i) {
    bench.Advance(1s);
    stops += bench.ToShim(local::AgentToShim::kStop).size();
    bench.On(HeadClosed{absl::UnavailableError("still gone")});
  }
  CHECK(stops == (graced ? 1 : 0));
}

TEST_CASE("a stopped node says goodbye, ends its ranks, releases its shims and exits", "[agent]") {
  Bench bench;
  bench.Run(0, {0});
  const bool by_head = GENERATE(true, false);
  if (by_head) {
    bench.Head(link::LeaveCluster{"the head stops"});
    CHECK(bench.ToHead<link::Goodbye>().empty());
  } else {
    bench.On(Stop{"stop"});
    CHECK(bench.ToHead<link::Goodbye>().size() == 1);
  }
  REQUIRE(bench.ToShim(local::AgentToShim::kStop).size() == 1);
  CHECK(bench.ToShim(local::AgentToShim::kStop)[0].stop().grace_millis() == 2000);
  bench.Head(Group(1, {0}));
  CHECK(bench.effects.empty());
  SECTION("in order") {
    bench.Exited(0, 0);
    CHECK(bench.ToShim(local::AgentToShim::kRelease).size() == 1);
    CHECK_FALSE(bench.Has<Exit>());
    bench.On(ShimClosed{kJob, {}, "released"});
    CHECK(bench.Has<RemoveShim>());
    REQUIRE(bench.All<Exit>().size() == 1);
    CHECK(bench.All<Exit>()[0].code == 0);
  }
  SECTION("or at the deadline") {
    bench.Advance(5s);
    REQUIRE(bench.All<Exit>().size() == 1);
    CHECK(bench.All<Exit>()[0].code != 0);
  }
}

TEST_CASE("a node whose client is gone gives no grace, also when it was stopping with some", "[agent]") {
  Bench bench;
  bench.Run(0, {0});
  if (GENERATE(false, true)) {
    bench.On(Stop{"stop"});
    REQUIRE(bench.ToShim(local::AgentToShim::kStop).size() == 1);
    CHECK(bench.ToShim(local::AgentToShim::kStop)[0].stop().grace_millis() > 0);
  }
  bench.On(Stop{"its client is gone", /*at_once=*/true});
  REQUIRE(bench.ToShim(local::AgentToShim::kStop).size() == 1);
  CHECK(bench.ToShim(local::AgentToShim::kStop)[0].stop().grace_millis() == 0);
  bench.On(Stop{"stop"});  // Too late to be polite.
  CHECK(bench.ToShim(local::AgentToShim::kStop).empty());
}

TEST_CASE("a node that runs nothing stops at once", "[agent]") {
  Bench bench;
  bench.On(Stop{"stop"});
  CHECK(bench.Has<Exit>());
}

TEST_CASE("a long configuration is written before the ranks that read it", "[agent]") {
  Bench bench;
  link::StartGroup group = Group(0, {0});
  group.spec.train_loop_config_json = std::string(kConfigBytesInEnv + 1, ' ');
  bench.Head(group);
  REQUIRE(bench.effects.size() >= 2);
  CHECK(std::holds_alternative<WriteFile>(bench.effects[0]));
}

TEST_CASE("output orders are passed on", "[agent]") {
  Bench bench;
  bench.Head(link::OpenOutput{TransferId{3}, kJob, 0, {0}, true});
  CHECK(bench.Has<OutputWanted>());
  bench.Head(link::CloseOutput{TransferId{3}});
  CHECK(bench.Has<OutputUnwanted>());
}

// Whatever the links do, every rank that was started is, in the end, told to the head as ended, once for each
// registration at most and until the head has recorded it.
TEST_CASE("every end reaches the head through closes, repeats and losses", "[agent]") {
  const std::uint32_t seed = GENERATE(range(1U, 201U));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto one_in = [&random](std::uint32_t n) { return random() % n == 0; };
  Bench bench;
  constexpr Rank kRanks = 4;
  std::map<Rank, bool> ended;  // As the head knows.
  std::size_t read = 0;
  bool connected = true;
  const auto head_reads = [&] {
    for (; read < bench.sent.size(); ++read) {
      const link::AgentToHead& message = bench.sent[read];
      const auto note = [&ended](const link::RankFacts& facts) {
        ended[facts.key.rank] = ended[facts.key.rank] || facts.state == WorkerState::kExited;
      };
      if (const auto* registration = std::get_if<link::Register>(&message.body)) {
        std::for_each(registration->ranks.begin(), registration->ranks.end(), note);
      } else if (const auto* change = std::get_if<link::RankChanged>(&message.body); change && !one_in(3)) {
        note(change->facts);  // Else lost with its stream, which closes below.
      }
    }
  };
  const auto reconnect = [&] {
    bench.On(HeadClosed{absl::UnavailableError("cut")});
    bench.Advance(2s);
    head_reads();
    link::Registered registered;
    registered.kept_jobs = {kJob};
    link::StartGroup group = Group(0, {});
    for (Rank rank = 0; rank < kRanks; ++rank) {
      if (!ended[rank]) {
        group.ranks.push_back({rank, rank, {}});
      }
    }
    if (!group.ranks.empty()) {
      registered.groups = {group};
    }
    bench.On(HeadConnected{});
    head_reads();
    if (one_in(4)) {
      connected = false;
      return;  // The answer never comes.
    }
    connected = true;
    bench.head_sequence = 0;
    ++bench.incarnation;
    registered.heartbeat_interval = 2s;
    bench.Head(registered);
  };
  bench.Run(0, {0, 1, 2, 3});
  for (Rank rank = 0; rank < kRanks; ++rank) {
    for (int i = 0; i < 3; ++i) {
      if (one_in(2)) {
        reconnect();
      }
      if (connected && one_in(2)) {
        bench.Head(Group(0, {0, 1, 2, 3}));
        CHECK(bench.ToShim(local::AgentToShim::kStart).empty());
      }
    }
    if (rank == 2 && one_in(2)) {
      bench.On(ShimClosed{kJob, {Status(3, local::RANK_PHASE_EXITED)}, "killed"});
      break;
    }
    bench.Exited(0, rank);
    if (one_in(2)) {
      --bench.shim_sequence;
      bench.Exited(0, rank, 99);  // A repeat says nothing new.
    }
  }
  bench.On(HeadClosed{absl::UnavailableError("cut")});
  bench.Advance(2s);
  bench.On(HeadConnected{});
  head_reads();
  for (Rank rank = 0; rank < kRanks; ++rank) {
    CAPTURE(rank);
    CHECK(ended[rank]);
  }
  for (const link::RankFacts& facts : bench.agent.Ranks()) {
    CHECK(facts.end.exit_code != 99);
  }
}

}  // namespace
}  // namespace rayctl::agent
