#include "daemon/rpc/translate.h"

#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "base/status_text.h"
#include "daemon/rpc/checked.h"
#include "fmt/format.h"
#include "google/protobuf/util/time_util.h"

namespace rayctl::rpc {
namespace {

using google::protobuf::util::TimeUtil;
// The functions below would hide those of the header otherwise.
using rpc::FromProto;
using rpc::ToProto;

// Equal numbers, so that a cast translates.
template <class Ours, class Theirs>
constexpr bool Same(Ours ours, Theirs theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}
static_assert(Same(JobKind::kCommand, v1::JOB_KIND_COMMAND) && Same(JobKind::kTrain, v1::JOB_KIND_TRAIN) &&
              Same(JobKind::kTune, v1::JOB_KIND_TUNE) && v1::JobKind_MAX == v1::JOB_KIND_TUNE);
static_assert(Same(JobState::kQueued, v1::JOB_STATE_QUEUED) && Same(JobState::kStarting, v1::JOB_STATE_STARTING) &&
              Same(JobState::kRunning, v1::JOB_STATE_RUNNING) &&
              Same(JobState::kRecovering, v1::JOB_STATE_RECOVERING) &&
              Same(JobState::kPreempted, v1::JOB_STATE_PREEMPTED) &&
              Same(JobState::kStopping, v1::JOB_STATE_STOPPING) &&
              Same(JobState::kSucceeded, v1::JOB_STATE_SUCCEEDED) && Same(JobState::kFailed, v1::JOB_STATE_FAILED) &&
              Same(JobState::kCancelled, v1::JOB_STATE_CANCELLED) && v1::JobState_MAX == v1::JOB_STATE_CANCELLED);
static_assert(Same(Reason::kNone, v1::REASON_UNSPECIFIED) && Same(Reason::kExited, v1::REASON_EXITED) &&
              Same(Reason::kSignaled, v1::REASON_SIGNALED) && Same(Reason::kOutOfMemory, v1::REASON_OUT_OF_MEMORY) &&
              Same(Reason::kTimeout, v1::REASON_TIMEOUT) && Same(Reason::kNodeLost, v1::REASON_NODE_LOST) &&
              Same(Reason::kStartFailed, v1::REASON_START_FAILED) && Same(Reason::kInfeasible, v1::REASON_INFEASIBLE) &&
              Same(Reason::kDriverLost, v1::REASON_DRIVER_LOST) &&
              Same(Reason::kClusterStopped, v1::REASON_CLUSTER_STOPPED) && Same(Reason::kUser, v1::REASON_USER) &&
              v1::Reason_MAX == v1::REASON_USER);
static_assert(Same(NodeState::kAlive, v1::NODE_STATE_ALIVE) && Same(NodeState::kSuspect, v1::NODE_STATE_SUSPECT) &&
              Same(NodeState::kDraining, v1::NODE_STATE_DRAINING) && Same(NodeState::kDead, v1::NODE_STATE_DEAD) &&
              v1::NodeState_MAX == v1::NODE_STATE_DEAD);
static_assert(Same(WorkerState::kStarting, v1::WORKER_STATE_STARTING) &&
              Same(WorkerState::kRunning, v1::WORKER_STATE_RUNNING) &&
              Same(WorkerState::kExited, v1::WORKER_STATE_EXITED) && Same(WorkerState::kLost, v1::WORKER_STATE_LOST) &&
              v1::WorkerState_MAX == v1::WORKER_STATE_LOST);
static_assert(Same(PlacementStrategy::kPack, v1::PLACEMENT_STRATEGY_PACK) &&
              Same(PlacementStrategy::kSpread, v1::PLACEMENT_STRATEGY_SPREAD) &&
              Same(PlacementStrategy::kStrictPack, v1::PLACEMENT_STRATEGY_STRICT_PACK) &&
              Same(PlacementStrategy::kStrictSpread, v1::PLACEMENT_STRATEGY_STRICT_SPREAD) &&
              v1::PlacementStrategy_MAX == v1::PLACEMENT_STRATEGY_STRICT_SPREAD);
static_assert(Same(OutputStream::kStdout, v1::OUTPUT_STREAM_STDOUT) &&
              Same(OutputStream::kStderr, v1::OUTPUT_STREAM_STDERR) &&
              v1::OutputStream_MAX == v1::OUTPUT_STREAM_STDERR);
static_assert(Same(Role::kAdmin, v1::ROLE_ADMIN) && Same(Role::kUser, v1::ROLE_USER) &&
              Same(Role::kViewer, v1::ROLE_VIEWER) && Same(Role::kJoin, v1::ROLE_JOIN) &&
              v1::Role_MAX == v1::ROLE_JOIN);

// Durations beyond this are mistakes, and nanoseconds of them would overflow.
constexpr std::int64_t kDurationSecondsMax = 10LL * 366 * 24 * 3600;
// Times outside nanoseconds since the epoch in 64 bits.
constexpr std::int64_t kTimeSecondsMax = 9'000'000'000;
constexpr std::int32_t kNanosPerSecond = 1'000'000'000;
constexpr std::uint32_t kPortMax = 65535;

absl::StatusOr<WorkerState> FromProto(v1::WorkerState state) {
  if (state <= v1::WORKER_STATE_UNSPECIFIED || state > v1::WorkerState_MAX) {
    return absl::InvalidArgumentError(fmt::format("{} is no worker state", static_cast<int>(state)));
  }
  return static_cast<WorkerState>(state);
}

absl::StatusOr<link::RankEnd> FromProto(const v1::RankEnd& proto) {
  Checked check;
  link::RankEnd end;
  end.exit_code = proto.exit_code();
  end.signal = proto.signal();
  end.stop_requested = proto.stop_requested();
  end.start_failed = proto.start_failed();
  end.start_error = proto.start_error();
  end.port_in_use = proto.port_in_use();
  end.out_of_memory = proto.out_of_memory();
  end.peer_lost = proto.peer_lost();
  end.last_output = proto.last_output();
  if (proto.has_at()) {
    check.Set(end.at, FromProto(proto.at()), "at");
  }
  end.lost = proto.lost();
  end.memory_peak_bytes = proto.memory_peak_bytes();
  end.memory_bytes_max = proto.memory_bytes_max();
  end.pids_max_reached = proto.pids_max_reached();
  return Result(check, std::move(end));
}

v1::RankEnd ToProto(const link::RankEnd& end) {
  v1::RankEnd proto;
  proto.set_exit_code(end.exit_code);
  proto.set_signal(end.signal);
  proto.set_stop_requested(end.stop_requested);
  proto.set_start_failed(end.start_failed);
  proto.set_start_error(end.start_error);
  proto.set_port_in_use(end.port_in_use);
  proto.set_out_of_memory(end.out_of_memory);
  proto.set_peer_lost(end.peer_lost);
  proto.set_last_output(end.last_output);
  if (end.at != WallTime{}) {
    *proto.mutable_at() = ToProto(end.at);
  }
  proto.set_lost(end.lost);
  proto.set_memory_peak_bytes(end.memory_peak_bytes);
  proto.set_memory_bytes_max(end.memory_bytes_max);
  proto.set_pids_max_reached(end.pids_max_reached);
  return proto;
}

link::Device FromProto(const v1::Device& proto) {
  link::Device device;
  device.vendor = proto.vendor();
  device.id = proto.id();
  device.name = proto.name();
  device.memory_bytes = proto.memory_bytes();
  device.parent_id = proto.parent_id();
  device.pci_address = proto.pci_address();
  if (proto.has_numa_node()) {
    device.numa_node = proto.numa_node();
  }
  device.problem = proto.problem();
  return device;
}

v1::Device ToProto(const link::Device& device) {
  v1::Device proto;
  proto.set_vendor(device.vendor);
  proto.set_id(device.id);
  proto.set_name(device.name);
  proto.set_memory_bytes(device.memory_bytes);
  proto.set_parent_id(device.parent_id);
  proto.set_pci_address(device.pci_address);
  if (device.numa_node) {
    proto.set_numa_node(*device.numa_node);
  }
  proto.set_problem(device.problem);
  return proto;
}

absl::StatusOr<link::Register> FromProto(const v1::Register& proto) {
  Checked check;
  link::Register reg;
  reg.protocol = proto.protocol();
  reg.version = proto.version();
  reg.boot_id = proto.boot_id();
  reg.address = proto.address();
  reg.interface_name = proto.interface_name();
  check.Set(reg.resources, FromProto(proto.resources()), "resources");
  reg.labels = ToMap(proto.labels());
  for (const v1::Device& device : proto.devices()) {
    reg.devices.push_back(FromProto(device));
  }
  reg.port_min = proto.port_min();
  reg.port_max = proto.port_max();
  check.Require(proto.port_min() <= proto.port_max() && proto.port_max() <= kPortMax, "port_max",
                "the range of ports is not one");
  for (const v1::RankFacts& facts : proto.ranks()) {
    link::RankFacts rank;
    check.Set(rank, FromProto(facts), "ranks");
    reg.ranks.push_back(std::move(rank));
  }
  reg.is_head_node = proto.is_head_node();
  reg.remarks.assign(proto.remarks().begin(), proto.remarks().end());
  return Result(check, std::move(reg));
}

v1::Register ToProto(const link::Register& reg) {
  v1::Register proto;
  proto.set_protocol(reg.protocol);
  proto.set_version(reg.version);
  proto.set_boot_id(reg.boot_id);
  proto.set_address(reg.address);
  proto.set_interface_name(reg.interface_name);
  *proto.mutable_resources() = ToProto(reg.resources);
  proto.mutable_labels()->insert(reg.labels.begin(), reg.labels.end());
  for (const link::Device& device : reg.devices) {
    *proto.add_devices() = ToProto(device);
  }
  proto.set_port_min(reg.port_min);
  proto.set_port_max(reg.port_max);
  for (const link::RankFacts& facts : reg.ranks) {
    *proto.add_ranks() = ToProto(facts);
  }
  proto.set_is_head_node(reg.is_head_node);
  proto.mutable_remarks()->Assign(reg.remarks.begin(), reg.remarks.end());
  return proto;
}

absl::StatusOr<link::StartGroup> FromProto(const v1::StartGroup& proto) {
  Checked check;
  link::StartGroup group;
  group.job = {proto.job_id()};
  group.attempt = proto.attempt();
  check.Require(proto.job_id() != 0, "job_id", "missing");
  check.Set(group.spec, FromProto(proto.spec()), "spec");
  for (const v1::RankAssignment& assignment : proto.ranks()) {
    link::RankAssignment rank;
    rank.rank = assignment.rank();
    rank.local_rank = assignment.local_rank();
    for (const v1::DeviceShare& device : assignment.devices()) {
      scheduler::DeviceShare share{.index = device.index()};
      check.Set(share.share, Amount::FromDouble(device.share()), "devices");
      rank.devices.push_back(share);
    }
    check.Require(rank.rank < proto.world_size(), "ranks", "a rank is not below world_size");
    group.ranks.push_back(std::move(rank));
  }
  group.world_size = proto.world_size();
  group.node_rank = proto.node_rank();
  group.node_count = proto.node_count();
  group.master_addr = proto.master_addr();
  group.master_port = proto.master_port();
  check.Require(proto.master_port() <= kPortMax, "master_port", "no port");
  group.checks_master_port = proto.checks_master_port();
  return Result(check, std::move(group));
}

v1::StartGroup ToProto(const link::StartGroup& group) {
  v1::StartGroup proto;
  proto.set_job_id(group.job.value);
  proto.set_attempt(group.attempt);
  *proto.mutable_spec() = ToProto(group.spec);
  for (const link::RankAssignment& assignment : group.ranks) {
    v1::RankAssignment& rank = *proto.add_ranks();
    rank.set_rank(assignment.rank);
    rank.set_local_rank(assignment.local_rank);
    for (const scheduler::DeviceShare& share : assignment.devices) {
      v1::DeviceShare& device = *rank.add_devices();
      device.set_index(share.index);
      device.set_share(share.share.ToDouble());
    }
    *rank.mutable_resources() = ToProto(group.spec.resources_per_worker);
  }
  proto.set_world_size(group.world_size);
  proto.set_local_world_size(static_cast<std::uint32_t>(group.ranks.size()));
  proto.set_node_rank(group.node_rank);
  proto.set_node_count(group.node_count);
  proto.set_master_addr(group.master_addr);
  proto.set_master_port(group.master_port);
  proto.set_checks_master_port(group.checks_master_port);
  proto.set_max_failures(group.spec.max_failures);
  return proto;
}

}  // namespace

absl::StatusOr<link::RankFacts> FromProto(const v1::RankFacts& proto) {
  Checked check;
  link::RankFacts facts;
  facts.key = {.job = {proto.job_id()}, .attempt = proto.attempt(), .rank = proto.rank()};
  check.Require(proto.job_id() != 0, "job_id", "missing");
  check.Set(facts.state, FromProto(proto.state()), "state");
  facts.pid = proto.pid();
  if (proto.has_end()) {
    check.Set(facts.end, FromProto(proto.end()), "end");
  }
  return Result(check, std::move(facts));
}

v1::RankFacts ToProto(const link::RankFacts& facts) {
  v1::RankFacts proto;
  proto.set_job_id(facts.key.job.value);
  proto.set_attempt(facts.key.attempt);
  proto.set_rank(facts.key.rank);
  proto.set_state(ToProto(facts.state));
  proto.set_pid(facts.pid);
  if (facts.state == WorkerState::kExited || facts.state == WorkerState::kLost) {
    *proto.mutable_end() = ToProto(facts.end);
  }
  return proto;
}

absl::StatusOr<link::AgentToHead> FromProto(const v1::AgentToHead& proto) {
  Checked check;
  link::AgentToHead message;
  message.incarnation = proto.incarnation();
  message.sequence = proto.sequence();
  switch (proto.body_case()) {
    case v1::AgentToHead::kRegister: {
      check.Set(message.body, FromProto(proto.register_()), "register");
      break;
    }
    case v1::AgentToHead::kHeartbeat:
      message.body = link::Heartbeat{};
      break;
    case v1::AgentToHead::kRankChanged: {
      link::RankChanged changed;
      check.Set(changed.facts, FromProto(proto.rank_changed().facts()), "rank_changed");
      message.body = std::move(changed);
      break;
    }
    case v1::AgentToHead::kGoodbye:
      message.body = link::Goodbye{proto.goodbye().why()};
      break;
    case v1::AgentToHead::kDevicesChanged: {
      link::DevicesChanged changed;
      for (const v1::Device& device : proto.devices_changed().devices()) {
        changed.devices.push_back(FromProto(device));
      }
      message.body = std::move(changed);
      break;
    }
    case v1::AgentToHead::BODY_NOT_SET:
      return Wrong("body", "a message of a kind that this version does not know");
  }
  return Result(check, std::move(message));
}

v1::AgentToHead ToProto(const link::AgentToHead& message) {
  v1::AgentToHead proto;
  proto.set_incarnation(message.incarnation);
  proto.set_sequence(message.sequence);
  std::visit(
      [&](const auto& body) {
        using Body = std::decay_t<decltype(body)>;
        if constexpr (std::is_same_v<Body, link::Register>) {
          *proto.mutable_register_() = ToProto(body);
        } else if constexpr (std::is_same_v<Body, link::Heartbeat>) {
          proto.mutable_heartbeat();
        } else if constexpr (std::is_same_v<Body, link::RankChanged>) {
          *proto.mutable_rank_changed()->mutable_facts() = ToProto(body.facts);
        } else if constexpr (std::is_same_v<Body, link::DevicesChanged>) {
          v1::DevicesChanged& changed = *proto.mutable_devices_changed();
          for (const link::Device& device : body.devices) {
            *changed.add_devices() = ToProto(device);
          }
        } else {
          static_assert(std::is_same_v<Body, link::Goodbye>);
          proto.mutable_goodbye()->set_why(body.why);
        }
      },
      message.body);
  return proto;
}

absl::StatusOr<link::HeadToAgent> FromProto(const v1::HeadToAgent& proto) {
  Checked check;
  link::HeadToAgent message;
  message.incarnation = proto.incarnation();
  message.sequence = proto.sequence();
  switch (proto.body_case()) {
    case v1::HeadToAgent::kRegistered: {
      link::Registered registered;
      registered.heartbeat_interval = std::chrono::milliseconds(proto.registered().heartbeat_millis());
      for (const v1::StartGroup& group : proto.registered().groups()) {
        link::StartGroup start;
        check.Set(start, FromProto(group), "registered.groups");
        registered.groups.push_back(std::move(start));
      }
      for (const std::uint64_t job : proto.registered().kept_jobs()) {
        registered.kept_jobs.push_back({job});
      }
      message.body = std::move(registered);
      break;
    }
    case v1::HeadToAgent::kStart:
      check.Set(message.body, FromProto(proto.start()), "start");
      break;
    case v1::HeadToAgent::kStop: {
      link::StopGroup stop{
          .job = {proto.stop().job_id()}, .attempt = proto.stop().attempt(), .why = proto.stop().why()};
      if (proto.stop().has_grace()) {
        check.Set(stop.grace, FromProto(proto.stop().grace()), "stop.grace");
      }
      message.body = std::move(stop);
      break;
    }
    case v1::HeadToAgent::kForgetJob:
      message.body = link::ForgetJob{{proto.forget_job().job_id()}};
      break;
    case v1::HeadToAgent::kForgetRanks:
      message.body = link::ForgetRanks{{proto.forget_ranks().job_id()}, proto.forget_ranks().attempt()};
      break;
    case v1::HeadToAgent::kOpenOutput: {
      link::OpenOutput open;
      check.Set(open, FromProto(proto.open_output()), "open_output");
      message.body = std::move(open);
      break;
    }
    case v1::HeadToAgent::kCloseOutput:
      message.body = link::CloseOutput{{proto.close_output().transfer_id()}};
      break;
    case v1::HeadToAgent::kLeave:
      message.body = link::LeaveCluster{proto.leave().why()};
      break;
    case v1::HeadToAgent::kHeartbeatHeard:
      message.body = link::HeartbeatHeard{};
      break;
    case v1::HeadToAgent::BODY_NOT_SET:
      return Wrong("body", "a message of a kind that this version does not know");
  }
  return Result(check, std::move(message));
}

v1::HeadToAgent ToProto(const link::HeadToAgent& message) {
  v1::HeadToAgent proto;
  proto.set_incarnation(message.incarnation);
  proto.set_sequence(message.sequence);
  std::visit(
      [&](const auto& body) {
        using Body = std::decay_t<decltype(body)>;
        if constexpr (std::is_same_v<Body, link::Registered>) {
          v1::Registered& registered = *proto.mutable_registered();
          registered.set_heartbeat_millis(static_cast<std::uint32_t>(
              std::chrono::duration_cast<std::chrono::milliseconds>(body.heartbeat_interval).count()));
          for (const link::StartGroup& group : body.groups) {
            *registered.add_groups() = ToProto(group);
          }
          for (const JobId job : body.kept_jobs) {
            registered.add_kept_jobs(job.value);
          }
        } else if constexpr (std::is_same_v<Body, link::StartGroup>) {
          *proto.mutable_start() = ToProto(body);
        } else if constexpr (std::is_same_v<Body, link::StopGroup>) {
          v1::StopGroup& stop = *proto.mutable_stop();
          stop.set_job_id(body.job.value);
          stop.set_attempt(body.attempt);
          *stop.mutable_grace() = ToProto(body.grace);
          stop.set_why(body.why);
        } else if constexpr (std::is_same_v<Body, link::ForgetRanks>) {
          proto.mutable_forget_ranks()->set_job_id(body.job.value);
          proto.mutable_forget_ranks()->set_attempt(body.attempt);
        } else if constexpr (std::is_same_v<Body, link::ForgetJob>) {
          proto.mutable_forget_job()->set_job_id(body.job.value);
        } else if constexpr (std::is_same_v<Body, link::OpenOutput>) {
          *proto.mutable_open_output() = ToProto(body);
        } else if constexpr (std::is_same_v<Body, link::CloseOutput>) {
          proto.mutable_close_output()->set_transfer_id(body.transfer.value);
        } else if constexpr (std::is_same_v<Body, link::LeaveCluster>) {
          proto.mutable_leave()->set_why(body.why);
        } else {
          static_assert(std::is_same_v<Body, link::HeartbeatHeard>);
          proto.mutable_heartbeat_heard();
        }
      },
      message.body);
  return proto;
}

absl::StatusOr<Resources> FromProto(const v1::Resources& proto) {
  Resources resources;
  for (const auto& [name, units] : proto.amounts()) {
    if (name.empty()) {
      return absl::InvalidArgumentError("a resource without a name");
    }
    const absl::StatusOr<Amount> amount = Amount::FromDouble(units);
    if (!amount.ok()) {
      return Annotate(amount.status(), name);
    }
    resources.Set(name, *amount);
  }
  return resources;
}

v1::Resources ToProto(const Resources& resources) {
  v1::Resources proto;
  for (const auto& [name, amount] : resources.amounts()) {
    proto.mutable_amounts()->insert({name, amount.ToDouble()});
  }
  return proto;
}

absl::StatusOr<Duration> FromProto(const google::protobuf::Duration& proto) {
  if (proto.seconds() < 0 || proto.nanos() < 0 || proto.nanos() >= kNanosPerSecond ||
      proto.seconds() > kDurationSecondsMax) {
    return absl::InvalidArgumentError("a duration is at least 0 and at most 10 years");
  }
  return std::chrono::seconds(proto.seconds()) + std::chrono::nanoseconds(proto.nanos());
}

google::protobuf::Duration ToProto(Duration duration) { return TimeUtil::NanosecondsToDuration(duration.count()); }

absl::StatusOr<WallTime> FromProto(const google::protobuf::Timestamp& proto) {
  if (proto.seconds() < 0 || proto.seconds() > kTimeSecondsMax || proto.nanos() < 0 ||
      proto.nanos() >= kNanosPerSecond) {
    return absl::InvalidArgumentError("a time between 1970 and 2255");
  }
  return WallTime(std::chrono::seconds(proto.seconds()) + std::chrono::nanoseconds(proto.nanos()));
}

google::protobuf::Timestamp ToProto(WallTime time) {
  return TimeUtil::NanosecondsToTimestamp(time.time_since_epoch().count());
}

v1::JobState ToProto(JobState state) { return static_cast<v1::JobState>(state); }
v1::Reason ToProto(Reason reason) { return static_cast<v1::Reason>(reason); }
v1::NodeState ToProto(NodeState state) { return static_cast<v1::NodeState>(state); }
v1::WorkerState ToProto(WorkerState state) { return static_cast<v1::WorkerState>(state); }
v1::Role ToProto(Role role) { return static_cast<v1::Role>(role); }
absl::StatusOr<Role> FromProto(v1::Role role) {
  if (role <= v1::ROLE_UNSPECIFIED || role > v1::Role_MAX) {
    return absl::InvalidArgumentError(fmt::format("{} is no role", static_cast<int>(role)));
  }
  return static_cast<Role>(role);
}

}  // namespace rayctl::rpc
