#include "daemon/agent/rank_env.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <string_view>

#include "absl/strings/str_join.h"
#include "fmt/format.h"

namespace rayctl::agent {
namespace {

using Environment = std::map<std::string, std::string>;

// A rank that finds these would speak in its starter's name, or look for a store that is not there.
constexpr std::array<std::string_view, 3> kNeverPassed = {"RAYCTL_TOKEN", "RAYCTL_SOCKET",
                                                          "TORCHELASTIC_USE_AGENT_STORE"};
constexpr std::array<std::string_view, 3> kInterfaceVariables = {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME",
                                                                 "TP_SOCKET_IFNAME"};
constexpr std::string_view kLoopback = "lo";
// Entries of c10d's flight recorder: enough to see which collective a rank hangs in.
constexpr std::string_view kFlightRecorderEntries = "200";
constexpr std::string_view kRoleName = "default";

std::string RunDir(const JobPaths& paths, const JobSpec& spec) {
  if (spec.storage_path.empty()) {
    return paths.work_dir;
  }
  return fmt::format("{}{}{}", spec.storage_path, spec.storage_path.ends_with('/') ? "" : "/", spec.name);
}

bool IsCuda(const link::Device& device) { return device.vendor == "nvidia" || device.vendor.empty(); }

// One variable a vendor, also where the rank has none of its devices: an unset one would show them all.
void AddDevices(const link::Register& node, const link::RankAssignment& rank, Environment* env) {
  std::vector<std::string> cuda;
  std::vector<std::string> rocm;
  std::vector<std::string> tpu;
  for (const scheduler::DeviceShare& share : rank.devices) {
    const std::string index = std::to_string(share.index);
    if (share.index >= node.devices.size()) {
      cuda.push_back(index);
      continue;
    }
    const link::Device& device = node.devices[share.index];
    const std::string id = device.id.empty() ? index : device.id;
    if (device.vendor == "amd") {
      rocm.push_back(id);
    } else if (device.vendor == "tpu") {
      tpu.push_back(id);
    } else {
      cuda.push_back(id);
    }
  }
  const auto node_has = [&node](std::string_view vendor) {
    return std::any_of(node.devices.begin(), node.devices.end(),
                       [vendor](const link::Device& device) { return device.vendor == vendor; });
  };
  (*env)["CUDA_VISIBLE_DEVICES"] = absl::StrJoin(cuda, ",");
  if (node_has("amd")) {
    // Both would be applied one after the other, so that the second picks from what the first left.
    env->erase("HIP_VISIBLE_DEVICES");
    (*env)["ROCR_VISIBLE_DEVICES"] = absl::StrJoin(rocm, ",");
    if (!rocm.empty() && std::none_of(node.devices.begin(), node.devices.end(), IsCuda)) {
      // ROCm's runtime reads CUDA_VISIBLE_DEVICES too, and an empty one hides everything.
      env->erase("CUDA_VISIBLE_DEVICES");
    }
  }
  if (node_has("tpu")) {
    (*env)["TPU_VISIBLE_CHIPS"] = absl::StrJoin(tpu, ",");
  }
}

}  // namespace

JobPaths JobPaths::Of(const std::string& state_dir, JobId job) {
  const std::string folder = fmt::format("{}/jobs/{}", state_dir, job.value);
  return {folder + "/work", folder + "/logs", folder + "/config.json"};
}

std::string JobPaths::RankLog(AttemptNumber attempt, Rank rank) const {
  return fmt::format("{}/attempt_{}/rank_{}.log", logs_dir, attempt, rank);
}

bool ConfigNeedsFile(const JobSpec& spec) { return spec.train_loop_config_json.size() > kConfigBytesInEnv; }

std::vector<std::string> RankEnvironment(const link::Register& node, const std::vector<std::string>& base_env,
                                         const JobPaths& paths, const link::StartGroup& group,
                                         const link::RankAssignment& rank) {
  const JobSpec& spec = group.spec;
  Environment env;
  for (const std::string& entry : base_env) {
    const std::size_t equals = entry.find('=');
    if (equals != std::string::npos && equals != 0) {
      env[entry.substr(0, equals)] = entry.substr(equals + 1);
    }
  }
  for (const auto& [name, value] : spec.env_vars) {
    env[name] = value;
  }
  for (const std::string_view name : kNeverPassed) {
    env.erase(std::string(name));
  }

  // What a user may set otherwise.
  const std::string interface_name = group.node_count <= 1 ? std::string(kLoopback) : node.interface_name;
  if (!interface_name.empty()) {
    for (const std::string_view name : kInterfaceVariables) {
      env.try_emplace(std::string(name), interface_name);
    }
  }
  env.try_emplace("TORCH_FR_BUFFER_SIZE", kFlightRecorderEntries);
  const std::int64_t cpus = spec.resources_per_worker.Get(kCpu).raw / Amount::kUnit;
  env.try_emplace("OMP_NUM_THREADS", std::to_string(std::max<std::int64_t>(1, cpus)));

  // What only rayctl knows.
  AddDevices(node, rank, &env);
  const std::string rank_text = std::to_string(rank.rank);
  const std::string world_size = std::to_string(group.world_size);
  env["RANK"] = rank_text;
  env["LOCAL_RANK"] = std::to_string(rank.local_rank);
  env["WORLD_SIZE"] = world_size;
  env["LOCAL_WORLD_SIZE"] = std::to_string(group.ranks.size());
  env["NODE_RANK"] = std::to_string(group.node_rank);
  env["GROUP_RANK"] = std::to_string(group.node_rank);
  env["GROUP_WORLD_SIZE"] = std::to_string(group.node_count);
  env["ROLE_RANK"] = rank_text;
  env["ROLE_WORLD_SIZE"] = world_size;
  env["ROLE_NAME"] = kRoleName;
  env["MASTER_ADDR"] = group.master_addr;
  env["MASTER_PORT"] = std::to_string(group.master_port);
  env["TORCHELASTIC_RUN_ID"] = std::to_string(group.job.value);
  env["TORCHELASTIC_RESTART_COUNT"] = std::to_string(group.attempt);
  const std::int32_t max_restarts =
      spec.max_failures < 0 ? std::numeric_limits<std::int32_t>::max() : spec.max_failures;
  env["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(max_restarts);
  env["RAYCTL_JOB_ID"] = std::to_string(group.job.value);
  env["RAYCTL_ATTEMPT"] = std::to_string(group.attempt);
  env["RAYCTL_RUN_DIR"] = RunDir(paths, spec);
  env["RAYCTL_CONFIG"] = ConfigNeedsFile(spec) ? "@" + paths.config_file : spec.train_loop_config_json;

  std::vector<std::string> entries;
  entries.reserve(env.size());
  for (const auto& [name, value] : env) {
    entries.push_back(fmt::format("{}={}", name, value));
  }
  return entries;
}

::rayctl::local::v1::RankStart MakeRankStart(const link::Register& node, const std::vector<std::string>& base_env,
                                             const JobPaths& paths, const link::StartGroup& group,
                                             const link::RankAssignment& rank) {
  ::rayctl::local::v1::RankStart start;
  start.set_rank(rank.rank);
  if (group.spec.argv.empty()) {
    for (const char* const argument : {"/bin/sh", "-c"}) {
      start.add_argv(argument);
    }
    start.add_argv(group.spec.entrypoint);
  } else {
    for (const std::string& argument : group.spec.argv) {
      start.add_argv(argument);
    }
  }
  for (std::string& entry : RankEnvironment(node, base_env, paths, group, rank)) {
    start.add_env(std::move(entry));
  }
  start.set_memory_bytes_max(
      static_cast<std::uint64_t>(std::max<std::int64_t>(0, group.spec.resources_per_worker.Get(kMemory).raw)) /
      Amount::kUnit);
  start.set_working_dir(paths.work_dir);
  start.set_log_path(paths.RankLog(group.attempt, rank.rank));
  ::rayctl::local::v1::RankContext* context = start.mutable_context();
  context->set_world_size(group.world_size);
  context->set_local_rank(rank.local_rank);
  context->set_local_world_size(static_cast<std::uint32_t>(group.ranks.size()));
  context->set_node_rank(group.node_rank);
  context->set_master_addr(group.master_addr);
  context->set_master_port(group.master_port);
  context->set_run_dir(RunDir(paths, group.spec));
  context->set_experiment_name(group.spec.name);
  context->set_storage_path(group.spec.storage_path);
  context->set_config_json(group.spec.train_loop_config_json);
  return start;
}

}  // namespace rayctl::agent
