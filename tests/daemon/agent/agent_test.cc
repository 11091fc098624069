#include "daemon/agent/agent.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "daemon/agent/rank_env.h"

namespace rayctl::agent {
namespace {

using namespace std::chrono_literals;

constexpr JobId kJob{5};

link::StartGroup Group(AttemptNumber attempt, std::vector<Rank> ranks, bool checks_port = false) {
  link::StartGroup group;
  group.job = kJob;
  group.attempt = attempt;
  group.spec.argv = {"true"};
  group.world_size = 4;
  group.master_port = 20000;
  group.checks_master_port = checks_port;
  for (const Rank rank : ranks) {
    group.ranks.push_back({rank, rank, {}});
  }
  return group;
}

// The machine between a head and shims that the test plays.
class Bench {
 public:
  explicit Bench(bool register_now = true) : agent(Config(), now) {
    if (register_now) {
      On(ShimsScanned{});
      Register();
    }
  }

  static AgentConfig Config() {
    AgentConfig config;
    config.state_dir = "/state";
    config.seed = 1;
    return config;
  }

  void On(const Event& event) {
    effects = agent.On(event, now);
    for (const Effect& effect : effects) {
      if (const auto* send = std::get_if<SendHead>(&effect)) {
        sent.push_back(send->message);
      }
    }
  }

  void Register(link::Registered registered = {}) {
    On(HeadConnected{});
    head_sequence = 0;
    ++incarnation;
    registered.heartbeat_interval = 2s;
    Head(std::move(registered));
  }

  template <class Body>
  void Head(Body body) {
    On(HeadMessage{{incarnation, ++head_sequence, std::move(body)}});
  }

  void ShimHello(std::vector<local::RankStatus> ranks = {}) {
    local::ShimToAgent message;
    for (local::RankStatus& status : ranks) {
      *message.mutable_hello()->add_ranks() = std::move(status);
    }
    message.mutable_hello()->set_protocol(1);
    On(ShimMessage{kJob, message});
  }

  void Started(AttemptNumber attempt, Rank rank) {
    local::ShimToAgent message = About(attempt, rank);
    message.mutable_started()->set_pid(100 + rank);
    On(ShimMessage{kJob, message});
  }

  void Exited(AttemptNumber attempt, Rank rank, int code = 0) {
    local::ShimToAgent message = About(attempt, rank);
    message.mutable_exited()->set_exit_code(code);
    message.mutable_exited()->set_log_bytes(9);
    On(ShimMessage{kJob, message});
  }

  // A group that runs, with its shim.
  void Run(AttemptNumber attempt, const std::vector<Rank>& ranks) {
    Head(Group(attempt, ranks));
    if (Has<SpawnShim>()) {
      ShimHello();
    }
    for (const Rank rank : ranks) {
      Started(attempt, rank);
    }
  }

  void Advance(Duration by) {
    now.steady += by;
    now.wall += by;
    On(Tick{});
  }

  // ---- What the last event led to.
  template <class Kind>
  std::vector<Kind> All() const {
    std::vector<Kind> found;
    for (const Effect& effect : effects) {
      if (const auto* kind = std::get_if<Kind>(&effect)) {
        found.push_back(*kind);
      }
    }
    return found;
  }
  template <class Kind>
  bool Has() const {
    return !All<Kind>().empty();
  }
  std::vector<local::AgentToShim> ToShim(local::AgentToShim::BodyCase body) const {
    std::vector<local::AgentToShim> found;
    for (const SendShim& send : All<SendShim>()) {
      if (send.message.body_case() == body) {
        found.push_back(send.message);
      }
    }
    return found;
  }
  template <class Body>
  std::vector<Body> ToHead() const {
    std::vector<Body> found;
    for (const SendHead& send : All<SendHead>()) {
      if (const auto* body = std::get_if<Body>(&send.message.body)) {
        found.push_back(*body);
      }
    }
    return found;
  }

  Now now{SteadyTime(1h), WallTime(1h)};
  Agent agent;
  std::vector<Effect> effects;
  std::vector<link::AgentToHead> sent;
  Incarnation incarnation = 0;
  std::uint64_t head_sequence = 0;
  std::uint64_t shim_sequence = 0;

 private:
  local::ShimToAgent About(AttemptNumber attempt, Rank rank) {
    local::ShimToAgent message;
    message.mutable_id()->set_job_id(kJob.value);
    message.mutable_id()->set_attempt(attempt);
    message.mutable_id()->set_rank(rank);
    message.mutable_id()->set_sequence(++shim_sequence);
    return message;
  }
};

local::RankStatus Status(Rank rank, local::RankPhase phase, int code = 0) {
  local::RankStatus status;
  status.set_rank(rank);
  status.set_phase(phase);
  status.set_pid(100 + rank);
  status.mutable_exit()->set_exit_code(code);
  return status;
}

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
