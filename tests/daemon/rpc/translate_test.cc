#include "daemon/rpc/translate.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>

namespace rayctl::rpc {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Values drawn from a seed, so that a failure names its case.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t Below(std::uint64_t end) { return engine_() % end; }
  bool Coin() { return Below(2) == 0; }
  std::string Word() { return std::string(1 + Below(6), static_cast<char>('a' + Below(26))); }
  Amount Some() { return Amount{static_cast<std::int64_t>(1 + Below(1'000'000))}; }
  std::map<std::string, std::string> Map() {
    std::map<std::string, std::string> map;
    for (std::uint64_t i = Below(4); i > 0; --i) {
      map[Word()] = Word();
    }
    return map;
  }
  JobSpec Spec() {
    JobSpec spec;
    spec.name = Word();
    if (Coin()) {
      spec.entrypoint = Word();
    } else {
      spec.argv = {Word(), Word()};
    }
    spec.env_vars = Map();
    spec.train_loop_config_json = Coin() ? "{}" : R"({"lr":0.1})";
    spec.num_workers = static_cast<std::uint32_t>(1 + Below(8));
    spec.num_workers_max = spec.num_workers + static_cast<std::uint32_t>(Below(3));
    spec.resources_per_worker = {};
    if (Coin()) {
      spec.resources_per_worker.Set(kCpu, Some());
    }
    if (Coin()) {
      spec.resources_per_worker.Set(kGpu, Amount::Units(1));
    }
    spec.resources_per_worker.Set(Word(), Some());
    spec.placement_strategy = static_cast<PlacementStrategy>(1 + Below(4));
    spec.label_selector = Map();
    spec.max_failures = static_cast<std::int32_t>(Below(4)) - 1;
    spec.num_to_keep = static_cast<std::uint32_t>(Below(4));
    spec.checkpoint_score_order = Coin() ? "min" : "";
    spec.working_dir = Coin() ? std::string(64, 'd') : "";
    spec.queue = Word();
    spec.priority = static_cast<std::int32_t>(Below(20)) - 10;
    if (Coin()) {
      spec.seed = static_cast<std::int64_t>(Below(100)) - 50;
    }
    spec.timeout = milliseconds(Below(100'000));
    spec.agent_grace = milliseconds(Below(100'000));
    spec.grace_period = milliseconds(Below(100'000));
    spec.head_grace = milliseconds(Below(100'000));
    spec.kind = static_cast<JobKind>(1 + Below(3));
    return spec;
  }
  link::RankFacts Facts() {
    link::RankFacts facts;
    facts.key = {{1 + Below(9)}, static_cast<AttemptNumber>(Below(3)), static_cast<Rank>(Below(9))};
    facts.state = static_cast<WorkerState>(1 + Below(4));
    facts.pid = static_cast<std::int64_t>(Below(99999));
    if (facts.state == WorkerState::kExited) {
      facts.end = {.exit_code = static_cast<std::int32_t>(Below(256)),
                   .signal = static_cast<std::int32_t>(Below(32)),
                   .stop_requested = Coin(),
                   .start_failed = Coin(),
                   .start_error = Word(),
                   .port_in_use = Coin(),
                   .out_of_memory = Coin(),
                   .peer_lost = Coin(),
                   .last_output = Word(),
                   .at = WallTime(milliseconds(1 + Below(1'000'000))),
                   .lost = Coin(),
                   .memory_peak_bytes = Below(1 << 20),
                   .memory_bytes_max = Below(1 << 20),
                   .pids_max_reached = Below(1 << 20)};
    }
    return facts;
  }
  link::StartGroup Group() {
    link::StartGroup group{.job = {1 + Below(9)},
                           .attempt = static_cast<AttemptNumber>(Below(4)),
                           .spec = Spec(),
                           .world_size = 8,
                           .node_rank = 1,
                           .node_count = 2,
                           .master_addr = Word(),
                           .master_port = 29500,
                           .checks_master_port = Coin()};
    group.ranks.push_back({.rank = static_cast<Rank>(Below(8)), .local_rank = 0, .devices = {{0, Amount{5000}}}});
    return group;
  }

  link::Device Device() {
    link::Device device{.vendor = Word(), .id = Word(), .name = Word(), .memory_bytes = Below(1 << 20)};
    device.parent_id = Word();
    device.pci_address = Word();
    if (Coin()) {
      device.numa_node = static_cast<std::int32_t>(Below(3)) - 1;
    }
    device.problem = Coin() ? Word() : "";
    return device;
  }

 private:
  std::mt19937_64 engine_;
};

// The wire form of what came back must be that of what went, byte for byte.
template <class T>
void CheckRoundTrip(const T& value) {
  const auto wire = ToProto(value);
  const auto back = FromProto(wire);
  INFO(wire.DebugString());
  REQUIRE(back.ok());
  CHECK(ToProto(*back).DebugString() == wire.DebugString());
}

TEST_CASE("every value survives the wire", "[translate]") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    const JobSpec spec = draw.Spec();
    const auto spec_back = FromProto(ToProto(spec));
    REQUIRE(spec_back.ok());
    CHECK(*spec_back == spec);

    link::Register reg{.version = draw.Word(), .boot_id = draw.Word(), .address = draw.Word()};
    reg.resources.Set(kCpu, draw.Some());
    reg.labels = draw.Map();
    reg.devices = {draw.Device(), draw.Device()};
    reg.port_min = 100;
    reg.port_max = 200;
    reg.ranks = {draw.Facts(), draw.Facts()};
    reg.is_head_node = draw.Coin();
    reg.remarks = {draw.Word(), draw.Word()};
    CheckRoundTrip(link::AgentToHead{draw.Below(9), draw.Below(9), reg});
    CheckRoundTrip(link::AgentToHead{draw.Below(9), draw.Below(9), link::Heartbeat{}});
    CheckRoundTrip(link::AgentToHead{draw.Below(9), draw.Below(9), link::RankChanged{draw.Facts()}});
    CheckRoundTrip(link::AgentToHead{draw.Below(9), draw.Below(9), link::Goodbye{draw.Word()}});
    const link::DevicesChanged changed{{draw.Device(), draw.Device(), draw.Device()}};
    CheckRoundTrip(link::AgentToHead{draw.Below(9), draw.Below(9), changed});
    const auto changed_back = FromProto(ToProto(link::AgentToHead{1, 2, changed}));
    REQUIRE(changed_back.ok());
    CHECK(std::get<link::DevicesChanged>(changed_back->body).devices == changed.devices);

    const JobId job{draw.Below(9) + 1};
    const link::Registered registered{seconds(2), {draw.Group(), draw.Group()}, {job}};
    CheckRoundTrip(link::HeadToAgent{1, 1, registered});
    CheckRoundTrip(link::HeadToAgent{1, 2, draw.Group()});
    CheckRoundTrip(link::HeadToAgent{1, 3, link::StopGroup{job, 2, milliseconds(draw.Below(9999)), draw.Word()}});
    CheckRoundTrip(link::HeadToAgent{1, 4, link::ForgetRanks{job, 2}});
    CheckRoundTrip(link::HeadToAgent{1, 5, link::ForgetJob{job}});
    link::OpenOutput open{.transfer = {4}, .job = job, .attempt = 1, .ranks = {0, 2}, .follow = draw.Coin()};
    if (draw.Coin()) {
      open.by_time = true;
      open.since = WallTime(std::chrono::nanoseconds(1'700'000'000'123'456'789));
      open.grep = "loss=.*nan";
      open.streams = {OutputStream::kStderr};
      open.resume = {{0, OutputStream::kStdout, 77}, {2, OutputStream::kStderr, 1ULL << 40}};
    }
    CheckRoundTrip(link::HeadToAgent{1, 6, open});
    CheckRoundTrip(link::HeadToAgent{1, 7, link::CloseOutput{{4}}});
    CheckRoundTrip(link::HeadToAgent{1, 8, link::LeaveCluster{draw.Word()}});
    CheckRoundTrip(link::HeadToAgent{1, 9, link::HeartbeatHeard{}});
    const link::RankFacts facts = draw.Facts();
    const auto facts_back = FromProto(ToProto(facts));
    REQUIRE(facts_back.ok());
    CHECK(facts_back->end == facts.end);
  }
}

v1::JobSpec Command() {
  v1::JobSpec proto;
  proto.add_argv("true");
  return proto;
}

TEST_CASE("a spec gets every default", "[translate]") {
  const auto spec = FromProto(Command());
  REQUIRE(spec.ok());
  CHECK(spec->num_workers == 1);
  CHECK(spec->num_workers_max == 1);
  CHECK(spec->resources_per_worker == Resources{{"CPU", Amount::Units(1)}});
  CHECK(spec->placement_strategy == PlacementStrategy::kPack);
  CHECK(spec->agent_grace == seconds(60));
  CHECK(spec->grace_period == seconds(10));
  CHECK(spec->timeout == Duration{0});
  CHECK(spec->train_loop_config_json == "{}");
  CHECK(spec->kind == JobKind::kCommand);
}

TEST_CASE("CPU and GPU are one a rank unless they are given, zero too", "[translate]") {
  v1::JobSpec proto = Command();
  proto.mutable_scaling_config()->set_use_gpu(true);
  CHECK(FromProto(proto)->resources_per_worker == Resources{{"CPU", Amount::Units(1)}, {"GPU", Amount::Units(1)}});
  CHECK(FromProto(proto)->kind == JobKind::kTrain);
  auto& amounts = *proto.mutable_scaling_config()->mutable_resources_per_worker()->mutable_amounts();
  amounts["CPU"] = 0;
  amounts["GPU"] = 0.5;
  CHECK(FromProto(proto)->resources_per_worker == Resources{{"GPU", Amount{5000}}});
}

TEST_CASE("a wrong spec is refused by the name of its field", "[translate]") {
  const auto refused = [](const v1::JobSpec& proto, const std::string& field) {
    const auto spec = FromProto(proto);
    CAPTURE(field);
    CHECK(absl::IsInvalidArgument(spec.status()));
    CHECK(std::string(spec.status().message()).find(field) == 0);
  };
  refused(v1::JobSpec(), "entrypoint");
  v1::JobSpec both = Command();
  both.set_entrypoint("x");
  refused(both, "entrypoint");
  v1::JobSpec negative = Command();
  (*negative.mutable_scaling_config()->mutable_resources_per_worker()->mutable_amounts())["CPU"] = -1;
  refused(negative, "scaling_config.resources_per_worker");
  v1::JobSpec many = Command();
  many.mutable_scaling_config()->set_num_workers(kRanksMax + 1);
  refused(many, "scaling_config.num_workers");
  v1::JobSpec order = Command();
  order.mutable_scaling_config()->set_num_workers(4);
  order.mutable_scaling_config()->set_num_workers_max(2);
  refused(order, "scaling_config.num_workers");
  v1::JobSpec strategy = Command();
  strategy.mutable_scaling_config()->set_placement_strategy(static_cast<v1::PlacementStrategy>(99));
  refused(strategy, "scaling_config.placement_strategy");
  v1::JobSpec failures = Command();
  failures.mutable_run_config()->mutable_failure_config()->set_max_failures(-2);
  refused(failures, "run_config.failure_config.max_failures");
  v1::JobSpec timeout = Command();
  timeout.mutable_timeout()->set_seconds(-1);
  refused(timeout, "timeout");
  v1::JobSpec variable = Command();
  (*variable.mutable_env_vars())["A=B"] = "c";
  refused(variable, "env_vars");
  v1::JobSpec kind = Command();
  kind.set_kind(static_cast<v1::JobKind>(9));
  refused(kind, "kind");
  v1::JobSpec zero = Command();
  zero.add_argv(std::string("a\0b", 3));
  refused(zero, "argv");
  for (const std::string name : {"../x", "a\nb", "\x1b[31m", "2024"}) {  // The last would be taken for an id.
    v1::JobSpec named = Command();
    named.set_name(name);
    refused(named, "name");
  }
}

TEST_CASE("an order for output names streams that there are", "[translate]") {
  v1::OpenOutput open;
  open.add_streams(v1::OUTPUT_STREAM_STDERR);
  CHECK(FromProto(open).ok());
  v1::OpenOutput third = open;
  third.add_streams(static_cast<v1::OutputStream>(3));
  CHECK_FALSE(FromProto(third).ok());
  open.add_resume();  // Of no stream.
  CHECK_FALSE(FromProto(open).ok());
}

TEST_CASE("messages without a body, a job or a state are refused", "[translate]") {
  CHECK_FALSE(FromProto(v1::AgentToHead()).ok());
  CHECK_FALSE(FromProto(v1::HeadToAgent()).ok());
  v1::RankFacts facts;
  facts.set_state(v1::WORKER_STATE_RUNNING);
  CHECK_FALSE(FromProto(facts).ok());
  facts.set_job_id(1);
  CHECK(FromProto(facts).ok());
  facts.clear_state();
  CHECK_FALSE(FromProto(facts).ok());
}

}  // namespace
}  // namespace rayctl::rpc
