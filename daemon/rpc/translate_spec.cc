#include <cstdint>
#include <string>
#include <utility>

#include "base/names.h"
#include "daemon/rpc/checked.h"
#include "daemon/rpc/translate.h"
#include "fmt/format.h"
#include "working_dir/digest.h"

namespace rayctl::rpc {
namespace {

constexpr std::size_t kSpecBytesMax = 2 << 20;  // Below gRPC's limit of 4 MiB, with room for what travels beside it.

}  // namespace

absl::StatusOr<JobSpec> FromProto(const v1::JobSpec& proto) {
  Checked check;
  JobSpec spec;
  check.Require(proto.ByteSizeLong() <= kSpecBytesMax, "spec",
                fmt::format("{} bytes; at most {} are taken", proto.ByteSizeLong(), kSpecBytesMax));
  spec.name = proto.name();
  check.Require(IsJobName(spec.name), "name", kJobNameRule);
  spec.entrypoint = proto.entrypoint();
  spec.argv.assign(proto.argv().begin(), proto.argv().end());
  check.Require(spec.entrypoint.empty() != spec.argv.empty(), "entrypoint",
                "a job has either an entrypoint or a command");
  check.Require(spec.argv.empty() || !spec.argv.front().empty(), "argv", "the command's name is empty");
  check.Require(spec.entrypoint.find('\0') == std::string::npos, "entrypoint", "a zero byte");
  for (const std::string& argument : spec.argv) {
    check.Require(argument.find('\0') == std::string::npos, "argv", "a zero byte");
  }
  spec.env_vars = ToMap(proto.env_vars());
  for (const auto& [key, value] : spec.env_vars) {
    check.Require(!key.empty() && key.find('=') == std::string::npos && key.find('\0') == std::string::npos &&
                      value.find('\0') == std::string::npos,
                  "env_vars", fmt::format("\"{}\" is no name of a variable", key));
  }
  if (!proto.train_loop_config_json().empty()) {
    spec.train_loop_config_json = proto.train_loop_config_json();
  }

  const v1::ScalingConfig& scaling = proto.scaling_config();
  spec.num_workers = scaling.num_workers() == 0 ? 1 : scaling.num_workers();
  spec.num_workers_max = scaling.num_workers_max() == 0 ? spec.num_workers : scaling.num_workers_max();
  check.Require(spec.num_workers_max <= kRanksMax, "scaling_config.num_workers", fmt::format("at most {}", kRanksMax));
  check.Require(spec.num_workers <= spec.num_workers_max, "scaling_config.num_workers",
                "the smaller number comes first");
  check.Set(spec.resources_per_worker, FromProto(scaling.resources_per_worker()),
            "scaling_config.resources_per_worker");
  const auto& asked = scaling.resources_per_worker().amounts();
  if (!asked.contains(std::string(kCpu))) {
    spec.resources_per_worker.Set(kCpu, Amount::Units(1));
  }
  if (scaling.use_gpu() && !asked.contains(std::string(kGpu))) {
    spec.resources_per_worker.Set(kGpu, Amount::Units(1));
  }
  if (scaling.placement_strategy() != v1::PLACEMENT_STRATEGY_UNSPECIFIED) {
    check.Require(v1::PlacementStrategy_IsValid(scaling.placement_strategy()), "scaling_config.placement_strategy",
                  fmt::format("{} is no strategy", static_cast<int>(scaling.placement_strategy())));
    spec.placement_strategy = static_cast<PlacementStrategy>(scaling.placement_strategy());
  }
  spec.label_selector = ToMap(scaling.label_selector());
  spec.accelerator_type = scaling.accelerator_type();

  const v1::RunConfig& run = proto.run_config();
  spec.storage_path = run.storage_path();
  spec.max_failures = run.failure_config().max_failures();
  check.Require(spec.max_failures >= -1, "run_config.failure_config.max_failures", "-1 (for ever), 0 or more");
  spec.num_to_keep = run.checkpoint_config().num_to_keep();
  spec.checkpoint_score_attribute = run.checkpoint_config().checkpoint_score_attribute();
  spec.checkpoint_score_order = run.checkpoint_config().checkpoint_score_order();
  check.Require(spec.checkpoint_score_order.empty() || spec.checkpoint_score_order == "min" ||
                    spec.checkpoint_score_order == "max",
                "run_config.checkpoint_config.checkpoint_score_order", "min or max");

  spec.working_dir = proto.working_dir();
  check.Require(spec.working_dir.empty() || working_dir::IsDigest(spec.working_dir), "working_dir",
                "the SHA-256 of a packed folder in hex");
  spec.queue = proto.queue();
  spec.priority = proto.priority();
  if (proto.has_seed()) {
    spec.seed = proto.seed();
  }
  if (proto.has_timeout()) {
    check.Set(spec.timeout, FromProto(proto.timeout()), "timeout");
  }
  if (proto.has_agent_grace()) {
    check.Set(spec.agent_grace, FromProto(proto.agent_grace()), "agent_grace");
  }
  if (proto.has_grace_period()) {
    check.Set(spec.grace_period, FromProto(proto.grace_period()), "grace_period");
  }
  if (proto.has_head_grace()) {
    check.Set(spec.head_grace, FromProto(proto.head_grace()), "head_grace");
  }
  if (proto.kind() == v1::JOB_KIND_UNSPECIFIED) {
    spec.kind = proto.has_scaling_config() ? JobKind::kTrain : JobKind::kCommand;
  } else {
    check.Require(v1::JobKind_IsValid(proto.kind()), "kind",
                  fmt::format("{} is no kind", static_cast<int>(proto.kind())));
    spec.kind = static_cast<JobKind>(proto.kind());
  }
  return Result(check, std::move(spec));
}

v1::JobSpec ToProto(const JobSpec& spec) {
  v1::JobSpec proto;
  proto.set_name(spec.name);
  proto.set_entrypoint(spec.entrypoint);
  proto.mutable_argv()->Assign(spec.argv.begin(), spec.argv.end());
  proto.mutable_env_vars()->insert(spec.env_vars.begin(), spec.env_vars.end());
  proto.set_train_loop_config_json(spec.train_loop_config_json);
  v1::ScalingConfig& scaling = *proto.mutable_scaling_config();
  scaling.set_num_workers(spec.num_workers);
  scaling.set_num_workers_max(spec.num_workers_max);
  *scaling.mutable_resources_per_worker() = ToProto(spec.resources_per_worker);
  // An explicit zero survives: absent would become the default of one.
  scaling.mutable_resources_per_worker()->mutable_amounts()->insert(
      {std::string(kCpu), spec.resources_per_worker.Get(kCpu).ToDouble()});
  scaling.set_use_gpu(spec.resources_per_worker.Get(kGpu) > Amount{});
  scaling.set_placement_strategy(static_cast<v1::PlacementStrategy>(spec.placement_strategy));
  scaling.mutable_label_selector()->insert(spec.label_selector.begin(), spec.label_selector.end());
  scaling.set_accelerator_type(spec.accelerator_type);
  v1::RunConfig& run = *proto.mutable_run_config();
  run.set_storage_path(spec.storage_path);
  run.mutable_failure_config()->set_max_failures(spec.max_failures);
  v1::CheckpointConfig& checkpoints = *run.mutable_checkpoint_config();
  checkpoints.set_num_to_keep(spec.num_to_keep);
  checkpoints.set_checkpoint_score_attribute(spec.checkpoint_score_attribute);
  checkpoints.set_checkpoint_score_order(spec.checkpoint_score_order);
  proto.set_working_dir(spec.working_dir);
  proto.set_queue(spec.queue);
  proto.set_priority(spec.priority);
  if (spec.seed) {
    proto.set_seed(*spec.seed);
  }
  if (spec.timeout > Duration{0}) {
    *proto.mutable_timeout() = ToProto(spec.timeout);
  }
  *proto.mutable_agent_grace() = ToProto(spec.agent_grace);
  *proto.mutable_grace_period() = ToProto(spec.grace_period);
  if (spec.head_grace > Duration{0}) {
    *proto.mutable_head_grace() = ToProto(spec.head_grace);
  }
  proto.set_kind(static_cast<v1::JobKind>(spec.kind));
  return proto;
}

}  // namespace rayctl::rpc
