#include "client/json_shapes.h"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <cmath>
#include <map>
#include <system_error>

#include "base/json_text.h"
#include "base/resources.h"
#include "base/units.h"

namespace rayctl::client {
namespace {

using nlohmann::ordered_json;

constexpr double kExactMax = 9.007199254740992e15;  // Whole numbers up to here are exact in a double.

// `prefix` is what the enum's values share; lower: those that CONTRACTS writes small.
template <class Enum>
std::string EnumName(Enum value, const std::string& full, std::string_view prefix) {
  if (static_cast<int>(value) == 0) {
    return {};
  }
  return full.starts_with(prefix) ? full.substr(prefix.size()) : fmt::format("{}", static_cast<int>(value));
}

std::string Lower(std::string text) {
  for (char& c : text) {
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return text;
}

ordered_json TextOrNull(const std::string& text) { return text.empty() ? ordered_json() : ordered_json(text); }

ordered_json TimeJson(bool set, const google::protobuf::Timestamp& time) {
  return set ? ordered_json(TimeText(time)) : ordered_json();
}

ordered_json DurationJson(bool set, const google::protobuf::Duration& duration) {
  constexpr double kNanosPerSecond = 1e9;
  return set ? AmountJson(static_cast<double>(duration.seconds()) + duration.nanos() / kNanosPerSecond)
             : ordered_json();
}

// Protobuf maps have no order of their own.
template <class Map, class Render>
ordered_json Sorted(const Map& map, Render render) {
  std::map<std::string, ordered_json> sorted;
  for (const auto& [name, value] : map) {
    sorted.emplace(name, render(value));
  }
  ordered_json object = ordered_json::object();
  for (auto& [name, value] : sorted) {
    object[name] = std::move(value);
  }
  return object;
}

ordered_json TextMap(const google::protobuf::Map<std::string, std::string>& map) {
  return Sorted(map, [](const std::string& text) { return ordered_json(text); });
}

ordered_json ResourcesJson(const google::protobuf::Map<std::string, v1::NodeResource>& resources) {
  return Sorted(resources, [](const v1::NodeResource& resource) {
    return ordered_json{{"total", AmountJson(resource.total())}, {"used", AmountJson(resource.used())}};
  });
}

template <class Message>
ordered_json List(const google::protobuf::RepeatedPtrField<Message>& values) {
  ordered_json list = ordered_json::array();
  for (const Message& value : values) {
    list.push_back(value);
  }
  return list;
}

}  // namespace

v1::JobRef ParseJobRef(const std::string& text) {
  v1::JobRef ref;
  std::uint64_t id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error == std::errc{} && end == text.data() + text.size()) {
    ref.set_id(id);
  } else {
    ref.set_name(text);
  }
  return ref;
}

ordered_json AmountJson(double amount) {
  if (std::isfinite(amount) && std::abs(amount) < kExactMax && amount == std::floor(amount)) {
    return static_cast<std::int64_t>(amount);
  }
  return amount;
}

std::string StateName(v1::JobState state) { return EnumName(state, v1::JobState_Name(state), "JOB_STATE_"); }
std::string ReasonName(v1::Reason reason) { return EnumName(reason, v1::Reason_Name(reason), "REASON_"); }
std::string KindName(v1::JobKind kind) { return Lower(EnumName(kind, v1::JobKind_Name(kind), "JOB_KIND_")); }
std::string NodeStateName(v1::NodeState state) {
  return Lower(EnumName(state, v1::NodeState_Name(state), "NODE_STATE_"));
}
std::string WorkerStateName(v1::WorkerState state) {
  return EnumName(state, v1::WorkerState_Name(state), "WORKER_STATE_");
}
std::string RoleName(v1::Role role) { return Lower(EnumName(role, v1::Role_Name(role), "ROLE_")); }

std::string TimeText(const google::protobuf::Timestamp& time) {
  return FormatTime(WallTime(std::chrono::seconds(time.seconds()) + std::chrono::nanoseconds(time.nanos())));
}

std::string AmountText(double amount) {
  const absl::StatusOr<Amount> fixed = Amount::FromDouble(amount);
  return fixed.ok() ? fixed->ToString() : fmt::format("{}", amount);
}

ordered_json JobJson(const v1::Job& job) {
  const v1::JobStatus& status = job.status();
  return {{"id", job.id()},
          {"name", TextOrNull(job.spec().name())},
          {"kind", TextOrNull(KindName(job.spec().kind()))},
          {"state", TextOrNull(StateName(status.state()))},
          {"reason", TextOrNull(ReasonName(status.reason()))},
          {"message", TextOrNull(status.message())},
          {"exit_code", status.has_exit_code() ? ordered_json(status.exit_code()) : ordered_json()},
          {"user", TextOrNull(status.user())},
          {"queue", TextOrNull(job.spec().queue())},
          {"priority", job.spec().priority()},
          {"attempt", status.attempt()},
          {"failures", status.failures()},
          {"num_workers", std::max(1U, job.spec().scaling_config().num_workers())},
          {"nodes", List(status.nodes())},
          {"path", TextOrNull(status.path())},
          {"submitted_at", TimeJson(status.has_submitted_at(), status.submitted_at())},
          {"started_at", TimeJson(status.has_started_at(), status.started_at())},
          {"ended_at", TimeJson(status.has_ended_at(), status.ended_at())}};
}

ordered_json SpecJson(const v1::JobSpec& spec) {
  const v1::ScalingConfig& scaling = spec.scaling_config();
  const v1::RunConfig& run = spec.run_config();
  const v1::CheckpointConfig& checkpoint = run.checkpoint_config();
  ordered_json config = ordered_json::object();
  if (!spec.train_loop_config_json().empty()) {
    absl::StatusOr<ordered_json> parsed = ParseJsonText(spec.train_loop_config_json());
    config = parsed.ok() ? *std::move(parsed) : ordered_json(spec.train_loop_config_json());
  }
  ordered_json num_workers = std::max(1U, scaling.num_workers());
  if (scaling.num_workers_max() > scaling.num_workers()) {
    num_workers = {scaling.num_workers(), scaling.num_workers_max()};
  }
  const std::string strategy = EnumName(
      scaling.placement_strategy(), v1::PlacementStrategy_Name(scaling.placement_strategy()), "PLACEMENT_STRATEGY_");
  return {{"name", TextOrNull(spec.name())},
          {"entrypoint", TextOrNull(spec.entrypoint())},
          {"argv", spec.argv().empty() ? ordered_json() : List(spec.argv())},
          {"working_dir", TextOrNull(spec.working_dir())},
          {"env_vars", TextMap(spec.env_vars())},
          {"train_loop_config", std::move(config)},
          {"scaling_config",
           {{"num_workers", std::move(num_workers)},
            {"use_gpu", scaling.use_gpu()},
            {"resources_per_worker", Sorted(scaling.resources_per_worker().amounts(), AmountJson)},
            {"placement_strategy", TextOrNull(strategy)},
            {"label_selector", TextMap(scaling.label_selector())},
            {"accelerator_type", TextOrNull(scaling.accelerator_type())}}},
          {"run_config",
           {{"storage_path", TextOrNull(run.storage_path())},
            {"failure_config", {{"max_failures", run.failure_config().max_failures()}}},
            {"checkpoint_config",
             {{"num_to_keep", checkpoint.num_to_keep() == 0 ? ordered_json() : ordered_json(checkpoint.num_to_keep())},
              {"checkpoint_score_attribute", TextOrNull(checkpoint.checkpoint_score_attribute())},
              {"checkpoint_score_order", TextOrNull(checkpoint.checkpoint_score_order())}}}}},
          {"queue", TextOrNull(spec.queue())},
          {"priority", spec.priority()},
          {"seed", spec.has_seed() ? ordered_json(spec.seed()) : ordered_json()},
          {"timeout", DurationJson(spec.has_timeout(), spec.timeout())},
          {"agent_grace", DurationJson(spec.has_agent_grace(), spec.agent_grace())},
          {"grace_period", DurationJson(spec.has_grace_period(), spec.grace_period())},
          {"head_grace", DurationJson(spec.has_head_grace(), spec.head_grace())}};
}

ordered_json WorkerJson(const v1::Worker& worker) {
  return {{"job_id", worker.job_id()},
          {"attempt", worker.attempt()},
          {"rank", worker.rank()},
          {"local_rank", worker.local_rank()},
          {"node", TextOrNull(worker.node())},
          {"pid", worker.pid() > 0 ? ordered_json(worker.pid()) : ordered_json()},
          {"state", TextOrNull(WorkerStateName(worker.state()))},
          {"exit_code", worker.has_exit_code() ? ordered_json(worker.exit_code()) : ordered_json()},
          {"signal", worker.has_signal() ? ordered_json(worker.signal()) : ordered_json()}};
}

ordered_json DeviceJson(const v1::NodeDevice& device) {
  ordered_json jobs = ordered_json::array();
  for (const std::uint64_t job : device.jobs()) {
    jobs.push_back(job);
  }
  return {{"index", device.index()},
          {"vendor", TextOrNull(device.vendor())},
          {"id", TextOrNull(device.id())},
          {"name", TextOrNull(device.name())},
          {"memory_bytes", device.memory_bytes() > 0 ? ordered_json(device.memory_bytes()) : ordered_json()},
          {"used", AmountJson(device.used())},
          {"jobs", std::move(jobs)},
          {"problem", TextOrNull(device.problem())}};
}

ordered_json NodeJson(const v1::Node& node) {
  ordered_json devices = ordered_json::array();
  for (const v1::NodeDevice& device : node.devices()) {
    devices.push_back(DeviceJson(device));
  }
  ordered_json remarks = ordered_json::array();
  for (const std::string& remark : node.remarks()) {
    remarks.push_back(remark);
  }
  return {{"id", node.id()},
          {"name", TextOrNull(node.name())},
          {"address", TextOrNull(node.address())},
          {"state", TextOrNull(NodeStateName(node.state()))},
          {"reason", TextOrNull(node.reason())},
          {"labels", TextMap(node.labels())},
          {"resources", ResourcesJson(node.resources())},
          {"devices", std::move(devices)},
          {"remarks", std::move(remarks)}};
}

ordered_json StatusJson(const v1::GetStatusResponse& status) {
  ordered_json nodes = ordered_json::object();
  for (const char* const state : {"alive", "suspect", "draining", "dead"}) {
    const auto count = status.nodes().find(state);
    nodes[state] = count == status.nodes().end() ? 0U : count->second;
  }
  ordered_json waiting = ordered_json::array();
  for (const v1::WaitingJob& job : status.waiting()) {
    waiting.push_back({{"id", job.id()}, {"name", TextOrNull(job.name())}, {"reason", TextOrNull(job.reason())}});
  }
  return {{"address", TextOrNull(status.address())},
          {"version", TextOrNull(status.version())},
          {"started_at", TimeJson(status.has_started_at(), status.started_at())},
          {"nodes", std::move(nodes)},
          {"resources", ResourcesJson(status.resources())},
          {"workers", {{"ready", status.workers_ready()}, {"total", status.workers_total()}}},
          {"jobs", Sorted(status.jobs(), [](std::uint32_t count) { return ordered_json(count); })},
          {"waiting", std::move(waiting)}};
}

ordered_json TokenJson(const v1::Token& token) {
  return {{"name", TextOrNull(token.name())},
          {"role", TextOrNull(RoleName(token.role()))},
          {"created_at", TimeJson(token.has_created_at(), token.created_at())},
          {"expires_at", TimeJson(token.has_expires_at(), token.expires_at())}};
}

nlohmann::ordered_json DescriptionJson(const v1::GetJobResponse& description) {
  ordered_json json = JobJson(description.job());
  json["spec"] = SpecJson(description.job().spec());
  json["workers"] = ordered_json::array();
  for (const v1::Worker& worker : description.workers()) {
    json["workers"].push_back(WorkerJson(worker));
  }
  return json;
}

}  // namespace rayctl::client
