#include "cli/job_file.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "base/json_text.h"
#include "base/names.h"
#include "base/resources.h"
#include "cli/job_file_tune.h"
#include "cli/yaml_walk.h"

namespace rayctl::cli {
namespace {

constexpr std::int64_t kWorkersMax = 100'000;
constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();

void SetDuration(google::protobuf::Duration* duration, std::int64_t nanos) {
  constexpr std::int64_t kNanosPerSecond = 1'000'000'000;
  duration->set_seconds(nanos / kNanosPerSecond);
  duration->set_nanos(static_cast<std::int32_t>(nanos % kNanosPerSecond));
}

// `other` is where else a name may stand.
void ReadName(YamlWalk& walk, const Place& place, std::string_view other, v1::JobSpec& spec) {
  const std::string name = walk.Text(place);
  if (!IsJobName(name)) {
    walk.Fail(place, fmt::format("expected a name of {}", kJobNameRule));
  } else if (!spec.name().empty() && spec.name() != name) {
    walk.Fail(place, fmt::format("expected {}, the name {}", spec.name(), other));
  }
  spec.set_name(name);
}

void ReadNumWorkers(YamlWalk& walk, const Place& place, v1::ScalingConfig& scaling) {
  if (!place.node.IsSequence()) {
    scaling.set_num_workers(static_cast<std::uint32_t>(walk.Whole(place, 1, kWorkersMax)));
    return;
  }
  const std::vector<Place> bounds = walk.Items(place, "a number or [least, most]");
  if (bounds.size() != 2) {
    walk.Fail(place, "expected a number or [least, most]");
    return;
  }
  const std::int64_t least = walk.Whole(bounds[0], 1, kWorkersMax);
  const std::int64_t most = walk.Whole(bounds[1], 1, kWorkersMax);
  if (least > most) {
    walk.Fail(bounds[1], fmt::format("expected at least {}, as the first is the least", least));
  }
  scaling.set_num_workers(static_cast<std::uint32_t>(least));
  scaling.set_num_workers_max(static_cast<std::uint32_t>(most));
}

void ReadResources(YamlWalk& walk, const Place& place, v1::Resources& resources) {
  for (const auto& [name, amount] : walk.Members(place, "a mapping such as {CPU: 1, memory: 2GiB}")) {
    // Ray's own spellings differ by place; here there is one, and the others would ask for something that no node has.
    static const std::map<std::string, std::string> kMeant{
        {"cpu", "CPU"}, {"Cpu", "CPU"},  {"CPUs", "CPU"}, {"cpus", "CPU"},     {"num_cpus", "CPU"},  {"gpu", "GPU"},
        {"Gpu", "GPU"}, {"gpus", "GPU"}, {"GPUs", "GPU"}, {"num_gpus", "GPU"}, {"Memory", "memory"}, {"mem", "memory"}};
    if (const auto meant = kMeant.find(name); meant != kMeant.end()) {
      walk.Fail(amount, fmt::format("no such resource; did you mean {}?", meant->second));
      continue;
    }
    double value = 0;
    if (name == kMemory) {
      value = static_cast<double>(walk.Bytes(amount));
    } else {
      value = walk.Number(amount);
      if (const absl::StatusOr<Amount> fixed = Amount::FromDouble(value); !fixed.ok()) {
        walk.Fail(amount, fmt::format("expected an amount of at least 0 with at most 4 decimals, not '{}'",
                                      amount.node.IsScalar() ? amount.node.Scalar() : ""));
      }
    }
    (*resources.mutable_amounts())[name] = value;
  }
}

void ReadText(YamlWalk& walk, const Place& place, std::string_view expected,
              google::protobuf::Map<std::string, std::string>& into) {
  for (const auto& [name, value] : walk.Members(place, expected)) {
    into[name] = walk.Written(value);
  }
}

void ReadScaling(YamlWalk& walk, const Place& place, v1::ScalingConfig& scaling) {
  walk.Fields(place, {
                         {"num_workers", [&](const Place& at) { ReadNumWorkers(walk, at, scaling); }},
                         {"use_gpu", [&](const Place& at) { scaling.set_use_gpu(walk.Boolean(at)); }},
                         {"resources_per_worker",
                          [&](const Place& at) { ReadResources(walk, at, *scaling.mutable_resources_per_worker()); }},
                         {"placement_strategy",
                          [&](const Place& at) {
                            const std::string name = walk.OneOf(at, {"PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"});
                            v1::PlacementStrategy strategy = v1::PLACEMENT_STRATEGY_UNSPECIFIED;
                            v1::PlacementStrategy_Parse("PLACEMENT_STRATEGY_" + name, &strategy);
                            scaling.set_placement_strategy(strategy);
                          }},
                         {"label_selector",
                          [&](const Place& at) {
                            ReadText(walk, at, "a mapping such as {rack: r1}", *scaling.mutable_label_selector());
                          }},
                         {"accelerator_type", [&](const Place& at) { scaling.set_accelerator_type(walk.Text(at)); }},
                     });
}

void ReadRun(YamlWalk& walk, const Place& place, v1::JobSpec& spec) {
  v1::RunConfig& run = *spec.mutable_run_config();
  walk.Fields(place, {
                         {"name", [&](const Place& at) { ReadName(walk, at, "at the top", spec); }},
                         {"storage_path", [&](const Place& at) { run.set_storage_path(walk.Text(at)); }},
                         {"failure_config",
                          [&](const Place& failure) {
                            walk.Fields(failure, {{"max_failures", [&](const Place& at) {
                                                     run.mutable_failure_config()->set_max_failures(
                                                         static_cast<std::int32_t>(walk.Whole(at, -1, kInt32Max)));
                                                   }}});
                          }},
                         {"checkpoint_config",
                          [&](const Place& checkpoint) {
                            v1::CheckpointConfig& config = *run.mutable_checkpoint_config();
                            walk.Fields(
                                checkpoint,
                                {
                                    {"num_to_keep",
                                     [&](const Place& at) {
                                       config.set_num_to_keep(static_cast<std::uint32_t>(walk.Whole(at, 1, kInt32Max)));
                                     }},
                                    {"checkpoint_score_attribute",
                                     [&](const Place& at) { config.set_checkpoint_score_attribute(walk.Text(at)); }},
                                    {"checkpoint_score_order",
                                     [&](const Place& at) {
                                       config.set_checkpoint_score_order(walk.OneOf(at, {"min", "max"}));
                                     }},
                                });
                          }},
                     });
}

void ReadJob(YamlWalk& walk, const Place& root, v1::JobSpec& spec) {
  // Durations that are absent must stay unset: the readers below make the field only when they are called.
  const auto duration_field = [&](auto mutable_field) {
    return
        [&walk, &spec, mutable_field](const Place& at) { SetDuration((spec.*mutable_field)(), walk.Nanoseconds(at)); };
  };
  bool has_entrypoint = false;
  walk.Fields(root, {
                        {"name", [&](const Place& at) { ReadName(walk, at, "in run_config", spec); }},
                        {"entrypoint",
                         [&](const Place& at) {
                           has_entrypoint = true;
                           spec.set_entrypoint(walk.Written(at));  // `true` is a command.
                           if (spec.entrypoint().find_first_not_of(" \t\n") == std::string::npos) {
                             walk.Fail(at, "expected the command that every rank runs, not nothing");
                           }
                         }},
                        {"working_dir", [&](const Place& at) { spec.set_working_dir(walk.Text(at)); }},
                        {"env_vars",
                         [&](const Place& at) {
                           ReadText(walk, at, "a mapping such as {OMP_NUM_THREADS: \"1\"}", *spec.mutable_env_vars());
                           for (const auto& [name, value] : walk.Members(at, "a mapping")) {
                             if (name.find('=') != std::string::npos) {
                               walk.Fail(value, "expected the name of a variable, which has no '='");
                             }
                           }
                         }},
                        {"train_loop_config",
                         [&](const Place& at) {
                           if (!at.node.IsMap()) {
                             walk.Members(at, "a mapping such as {lr: 0.001}");
                             return;
                           }
                           spec.set_train_loop_config_json(JsonText(walk.Json(at), NonFinite::kPython));
                         }},
                        {"scaling_config",
                         [&](const Place& at) {
                           spec.set_kind(v1::JOB_KIND_TRAIN);
                           ReadScaling(walk, at, *spec.mutable_scaling_config());
                         }},
                        {"run_config", [&](const Place& at) { ReadRun(walk, at, spec); }},
                        {"queue", [&](const Place& at) { spec.set_queue(walk.Text(at)); }},
                        {"priority",
                         [&](const Place& at) {
                           spec.set_priority(static_cast<std::int32_t>(
                               walk.Whole(at, std::numeric_limits<std::int32_t>::min(), kInt32Max)));
                         }},
                        {"seed",
                         [&](const Place& at) {
                           spec.set_seed(walk.Whole(at, std::numeric_limits<std::int64_t>::min(), kInt64Max));
                         }},
                        {"timeout",
                         [&](const Place& at) {
                           const std::int64_t nanos = walk.Nanoseconds(at);
                           if (nanos == 0) {
                             walk.Fail(at, kNoTimeout);
                           }
                           SetDuration(spec.mutable_timeout(), nanos);
                         }},
                        {"agent_grace", duration_field(&v1::JobSpec::mutable_agent_grace)},
                        {"grace_period", duration_field(&v1::JobSpec::mutable_grace_period)},
                        {"head_grace", duration_field(&v1::JobSpec::mutable_head_grace)},
                        {"tune",
                         [&](const Place& at) {
                           CheckTuneSection(walk, at);
                           walk.Fail(at, "tune jobs are not supported by this version");
                         }},
                    });
  if (!has_entrypoint) {
    walk.Fail(Place{root.node, "entrypoint", std::nullopt}, "expected the command that every rank runs");
  }
}

}  // namespace

YamlKind KindOfYaml(std::string_view text) {
  YamlWalk walk("");
  const std::optional<Place> root = walk.Load(text);
  if (!root || !root->node.IsMap()) {
    return YamlKind::kJobFile;
  }
  bool has_provider = false;
  for (const auto& member : root->node) {
    const std::string name = member.first.IsScalar() ? member.first.Scalar() : std::string();
    if (name == "entrypoint") {
      return YamlKind::kJobFile;
    }
    has_provider = has_provider || name == "provider";
  }
  return has_provider ? YamlKind::kClusterFile : YamlKind::kJobFile;
}

absl::StatusOr<v1::JobSpec> ParseJobFile(std::string_view text, std::string_view file) {
  YamlWalk walk{std::string(file)};
  v1::JobSpec spec;
  spec.set_kind(v1::JOB_KIND_COMMAND);
  if (const std::optional<Place> root = walk.Load(text)) {
    ReadJob(walk, *root, spec);
  }
  if (!walk.ok()) {
    return walk.status();
  }
  return spec;
}

}  // namespace rayctl::cli
