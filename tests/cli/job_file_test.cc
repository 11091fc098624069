#include "cli/job_file.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace rayctl::cli {
namespace {

std::string ErrorOf(const std::string& text) {
  const absl::StatusOr<v1::JobSpec> spec = ParseJobFile(text, "job.yaml");
  return spec.ok() ? "accepted" : std::string(spec.status().message());
}

struct Wrong {
  std::string text;
  std::string message;
};

TEST_CASE("a wrong job file is refused with its place, its path and the nearest name", "[cli]") {
  const std::vector<Wrong> files{
      {"entrypoint: true\nscaling_confg: {}\n",
       "job.yaml:2:1: scaling_confg: no such field; did you mean scaling_config?"},
      {"entrypiont: true\n", "job.yaml:1:1: entrypiont: no such field; did you mean entrypoint?"},
      {"name: a\n", "job.yaml:1:1: entrypoint: expected the command that every rank runs"},
      {"",
       "job.yaml:1:1: job file: expected a mapping with name, entrypoint, working_dir, env_vars, "
       "train_loop_config, scaling_config, run_config, queue, priority, seed, timeout, agent_grace, grace_period, "
       "head_grace or tune, not nothing"},
      {"- a\n- b\n",
       "job.yaml:1:1: job file: expected a mapping with name, entrypoint, working_dir, env_vars, "
       "train_loop_config, scaling_config, run_config, queue, priority, seed, timeout, agent_grace, "
       "grace_period, head_grace or tune, not a list"},
      {"entrypoint: a\nentrypoint: b\n", "job.yaml:2:1: entrypoint: expected once, and it is here again"},
      {"entrypoint: \"\"\n", "job.yaml:1:13: entrypoint: expected the command that every rank runs, not nothing"},
      {"entrypoint: \" \\n\"\n", "job.yaml:1:13: entrypoint: expected the command that every rank runs, not nothing"},
      {"entrypoint: \"a\\0\"\n", "job.yaml:1:13: entrypoint: expected text or a number without a zero byte"},
      {"entrypoint: a\nenv_vars: {A: \"b\\0\"}\n",
       "job.yaml:2:15: env_vars.A: expected text or a number without a zero byte"},
      {"entrypoint: a\nenv_vars: {\"A\\0\": b}\n", "job.yaml:2:12: env_vars: expected names without a zero byte"},
      {"entrypoint: a\nname: \"1\"\n",
       "job.yaml:2:7: name: expected a name of at most 253 bytes, without / and control characters, and not digits "
       "alone, which would be taken for a job's id"},
      {"entrypoint: a\nrun_config: {name: a/b}\n",
       "job.yaml:2:20: run_config.name: expected a name of at most 253 bytes, without / and control characters, and "
       "not digits alone, which would be taken for a job's id"},
      {"entrypoint: a\ntimeout: 0\n",
       "job.yaml:2:10: timeout: expected more than 0; without a timeout a job has no time limit"},
      {"entrypoint: [a]\n", "job.yaml:1:13: entrypoint: expected text or a number, not a list"},
      {"entrypoint:\n", "job.yaml:1:1: entrypoint: expected text or a number, not nothing"},
      {"name: 2024\nentrypoint: a\n", "job.yaml:1:7: name: expected text; put it in quotes: \"2024\""},
      {"entrypoint: a\nscaling_config:\n  num_wrokers: 2\n",
       "job.yaml:3:3: scaling_config.num_wrokers: no such field; did you mean num_workers?"},
      {"entrypoint: a\nscaling_config: {num_workers: 012}\n",
       "job.yaml:2:31: scaling_config.num_workers: expected a whole number from 1 to 100000; 012 is octal to some YAML "
       "readers; write 12, 0o12 or \"012\""},
      {"entrypoint: a\nscaling_config: {num_workers: two}\n",
       "job.yaml:2:31: scaling_config.num_workers: expected a whole number from 1 to 100000, not 'two'"},
      {"entrypoint: a\nscaling_config: {num_workers: 0}\n",
       "job.yaml:2:31: scaling_config.num_workers: expected a whole number from 1 to 100000, not '0'"},
      {"entrypoint: a\nscaling_config: {num_workers: 1.5}\n",
       "job.yaml:2:31: scaling_config.num_workers: expected a whole number from 1 to 100000, not '1.5'"},
      {"entrypoint: a\nscaling_config: {num_workers: [8, 2]}\n",
       "job.yaml:2:35: scaling_config.num_workers[1]: expected at least 8, as the first is the least"},
      {"entrypoint: a\nscaling_config: {num_workers: [8]}\n",
       "job.yaml:2:31: scaling_config.num_workers: expected a number or [least, most]"},
      {"entrypoint: a\nscaling_config: {use_gpu: yes}\n",
       "job.yaml:2:27: scaling_config.use_gpu: expected true or false, not 'yes'"},
      {"entrypoint: a\nscaling_config: {placement_strategy: SPRAED}\n",
       "job.yaml:2:38: scaling_config.placement_strategy: expected PACK, SPREAD, STRICT_PACK or STRICT_SPREAD, not "
       "'SPRAED'; did you mean SPREAD?"},
      {"entrypoint: a\nscaling_config: {resources_per_worker: {cpu: 1}}\n",
       "job.yaml:2:46: scaling_config.resources_per_worker.cpu: no such resource; did you mean CPU?"},
      {"entrypoint: a\nscaling_config: {resources_per_worker: {memory: 2Gib}}\n",
       "job.yaml:2:49: scaling_config.resources_per_worker.memory: expected bytes or a number with KiB, MiB, GiB, TiB, "
       "kB, MB, GB or TB, not '2Gib'"},
      {"entrypoint: a\nscaling_config: {resources_per_worker: {CPU: -1}}\n",
       "job.yaml:2:46: scaling_config.resources_per_worker.CPU: expected an amount of at least 0 with at most 4 "
       "decimals, not '-1'"},
      {"entrypoint: a\nscaling_config: {resources_per_worker: {CPU: .nan}}\n",
       "job.yaml:2:46: scaling_config.resources_per_worker.CPU: expected an amount of at least 0 with at most 4 "
       "decimals, not '.nan'"},
      {"entrypoint: a\nenv_vars: {A: [1]}\n", "job.yaml:2:15: env_vars.A: expected text or a number, not a list"},
      {"entrypoint: a\nenv_vars: {A: }\n", "job.yaml:2:12: env_vars.A: expected text or a number, not nothing"},
      {"entrypoint: a\nenv_vars: {A: 1, A: 2}\n", "job.yaml:2:18: env_vars.A: expected once, and it is here again"},
      {"entrypoint: a\nenv_vars: A=1\n",
       "job.yaml:2:11: env_vars: expected a mapping such as {OMP_NUM_THREADS: \"1\"}, not 'A=1'"},
      {"entrypoint: a\ntimeout: 2hours\n",
       "job.yaml:2:10: timeout: expected a duration such as 90, 90s, 5m, 2h or 1d, not '2hours'"},
      {"entrypoint: a\ntimeout: 1:30\n",
       "job.yaml:2:10: timeout: expected a duration such as 90, 90s, 5m, 2h or 1d; 1:30 is a number to some YAML "
       "readers; write it plain or \"1:30\""},
      {"entrypoint: a\npriority: high\n", "job.yaml:2:11: priority: expected a whole number, not 'high'"},
      {"entrypoint: a\nseed: 99999999999999999999\n",
       "job.yaml:2:7: seed: expected a whole number; 99999999999999999999 does not fit into 64 bits"},
      {"entrypoint: a\nrun_config: {failure_config: {max_failure: 1}}\n",
       "job.yaml:2:31: run_config.failure_config.max_failure: no such field; did you mean max_failures?"},
      {"entrypoint: a\nrun_config: {failure_config: {max_failures: -2}}\n",
       "job.yaml:2:45: run_config.failure_config.max_failures: expected a whole number, at least -1, not '-2'"},
      {"entrypoint: a\nrun_config: {checkpoint_config: {checkpoint_score_order: less}}\n",
       "job.yaml:2:58: run_config.checkpoint_config.checkpoint_score_order: expected min or max, not 'less'"},
      {"entrypoint: a\ntrain_loop_config: {lr: 010}\n",
       "job.yaml:2:25: train_loop_config.lr: expected a plain value; 010 is octal to some YAML readers; write 10, 0o10 "
       "or \"010\""},
      {"entrypoint: a\ntrain_loop_config: {shuffle: no}\n",
       "job.yaml:2:30: train_loop_config.shuffle: expected a plain value; no is true or false to some YAML readers; "
       "write false or \"no\""},
      {"entrypoint: a\ntrain_loop_config: {lr: 1, lr: 2}\n",
       "job.yaml:2:28: train_loop_config.lr: expected once, and it is here again"},
      {"entrypoint: a\ntrain_loop_config: {x: !!python/object a}\n",
       "job.yaml:2:24: train_loop_config.x: expected a value without the tag tag:yaml.org,2002:python/object"},
      {"entrypoint: a\nworking_dir: ''\n", "job.yaml:2:14: working_dir: expected text, not nothing"},
      {"entrypoint: a\n---\nentrypoint: b\n", "job.yaml:3:1: job file: expected one YAML document, not several"},
      {"entrypoint: a\ntune:\n  search_alg: {type: tpee}\n",
       "job.yaml:3:22: tune.search_alg.type: expected random, sobol, tpe, cmaes, optuna or hyperopt, not 'tpee'; did "
       "you mean tpe?"},
      {"entrypoint: a\ntune:\n  scheduler: {type: ahsa}\n",
       "job.yaml:3:21: tune.scheduler.type: expected fifo, asha, hyperband, median or pbt, not 'ahsa'; did you mean "
       "asha?"},
      {"entrypoint: a\ntune:\n  param_space: {lr: {loguniforn: [1e-4, 1]}}\n",
       "job.yaml:3:34: tune.param_space.lr.loguniforn: no such form of search space; did you mean loguniform?"},
      {"entrypoint: a\ntune:\n  param_space: {lr: {loguniform: [0, 1]}}\n",
       "job.yaml:3:35: tune.param_space.lr.loguniform[0]: expected a number above 0, as its logarithm is taken"},
      {"entrypoint: a\ntune:\n  param_space: {lr: {uniform: [2, 1]}}\n",
       "job.yaml:3:31: tune.param_space.lr.uniform: expected [low, high] with low below high"},
      {"entrypoint: a\ntune: {num_sample: 3}\n",
       "job.yaml:2:8: tune.num_sample: no such field; did you mean num_samples?"},
      {"entrypoint: a\ntune:\n  num_samples: 16\n  metric: loss\n  mode: min\n  search_alg: {type: tpe}\n"
       "  scheduler: {type: asha, max_t: 10, grace_period: 1, reduction_factor: 2}\n"
       "  param_space: {lr: {loguniform: [1e-4, 1e-1]}, b: {choice: [32, 64]}, d: {randint: [1, 5]}, "
       "k: {grid_search: [1, 2]}, fixed: 3, nested: {deep: {uniform: [0, 1]}}}\n",
       "job.yaml:3:3: tune: tune jobs are not supported by this version"},
  };
  for (const Wrong& file : files) {
    CAPTURE(file.text);
    CHECK(ErrorOf(file.text) == file.message);
  }
}

TEST_CASE("what is no YAML is refused with its place", "[cli]") {
  CHECK(ErrorOf("entrypoint: {a\n").starts_with("job.yaml:2:1: job file: not YAML: "));
  CHECK(ErrorOf("a: b: c\n").starts_with("job.yaml:1:5: job file: not YAML: "));
}

TEST_CASE("aliases that point at themselves or multiply are refused", "[cli]") {
  std::string text = "entrypoint: a\ntrain_loop_config:\n  a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n";
  for (int i = 1; i < 10; ++i) {
    const std::string of = "*a" + std::to_string(i - 1);
    text += "  a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + of;
    for (int j = 0; j < 9; ++j) {
      text += ", " + of;
    }
    text += "]\n";
  }
  CHECK(ErrorOf(text).find("expected at most 64 levels and 100000 values") != std::string::npos);
}

TEST_CASE("every field of a job file reaches the spec", "[cli]") {
  const absl::StatusOr<v1::JobSpec> parsed = ParseJobFile(R"(name: digits
entrypoint: ./digits_train
env_vars: {OMP_NUM_THREADS: "1", ZEROS: 007, FLAG: true, PORT: '0x10'}
train_loop_config: {lr: 0.001, epochs: 5, whole: 5.0, tiny: 1e-4, on: true, none: ~, text: "5", nan: .nan, inf: -.inf,
                    list: [1, {a: b}], hex: 0x10}
scaling_config:
  num_workers: [2, 8]
  use_gpu: false
  resources_per_worker: {CPU: 1.5, memory: 2GiB, license: 1}
  placement_strategy: SPREAD
  label_selector: {rack: r1, zone: 3}
  accelerator_type: H200
run_config:
  storage_path: /data/exp
  failure_config: {max_failures: -1}
  checkpoint_config: {num_to_keep: 2, checkpoint_score_attribute: loss, checkpoint_score_order: min}
queue: team-a
priority: -10
seed: 42
timeout: 2h
agent_grace: 90
grace_period: 1.5s
head_grace: 5m
)",
                                                          "job.yaml");
  REQUIRE(parsed.ok());
  const v1::JobSpec& spec = *parsed;
  CHECK(spec.name() == "digits");
  CHECK(spec.entrypoint() == "./digits_train");
  CHECK(spec.kind() == v1::JOB_KIND_TRAIN);
  CHECK(spec.env_vars().at("OMP_NUM_THREADS") == "1");
  CHECK(spec.env_vars().at("ZEROS") == "007");
  CHECK(spec.env_vars().at("FLAG") == "true");
  CHECK(spec.env_vars().at("PORT") == "0x10");
  CHECK(
      spec.train_loop_config_json() ==
      R"({"lr": 0.001, "epochs": 5, "whole": 5.0, "tiny": 0.0001, "on": true, "none": null, "text": "5", "nan": NaN, )"
      R"("inf": -Infinity, "list": [1, {"a": "b"}], "hex": 16})");
  const v1::ScalingConfig& scaling = spec.scaling_config();
  CHECK(scaling.num_workers() == 2);
  CHECK(scaling.num_workers_max() == 8);
  CHECK_FALSE(scaling.use_gpu());
  CHECK(scaling.resources_per_worker().amounts().at("CPU") == 1.5);
  CHECK(scaling.resources_per_worker().amounts().at("memory") == 2147483648.0);
  CHECK(scaling.resources_per_worker().amounts().at("license") == 1);
  CHECK(scaling.placement_strategy() == v1::PLACEMENT_STRATEGY_SPREAD);
  CHECK(scaling.label_selector().at("rack") == "r1");
  CHECK(scaling.label_selector().at("zone") == "3");
  CHECK(scaling.accelerator_type() == "H200");
  CHECK(spec.run_config().storage_path() == "/data/exp");
  CHECK(spec.run_config().failure_config().max_failures() == -1);
  CHECK(spec.run_config().checkpoint_config().num_to_keep() == 2);
  CHECK(spec.run_config().checkpoint_config().checkpoint_score_attribute() == "loss");
  CHECK(spec.run_config().checkpoint_config().checkpoint_score_order() == "min");
  CHECK(spec.queue() == "team-a");
  CHECK(spec.priority() == -10);
  CHECK(spec.seed() == 42);
  CHECK(spec.timeout().seconds() == 7200);
  CHECK(spec.agent_grace().seconds() == 90);
  CHECK(spec.grace_period().seconds() == 1);
  CHECK(spec.grace_period().nanos() == 500'000'000);
  CHECK(spec.head_grace().seconds() == 300);
}

TEST_CASE("what a job file leaves out stays unset", "[cli]") {
  const absl::StatusOr<v1::JobSpec> spec = ParseJobFile("entrypoint: true\n", "job.yaml");
  REQUIRE(spec.ok());
  CHECK(spec->entrypoint() == "true");
  CHECK(spec->kind() == v1::JOB_KIND_COMMAND);
  CHECK_FALSE(spec->has_timeout());
  CHECK_FALSE(spec->has_agent_grace());
  CHECK_FALSE(spec->has_seed());
  CHECK_FALSE(spec->has_scaling_config());
}

TEST_CASE("a cluster file is known by its provider", "[cli]") {
  CHECK(KindOfYaml("provider: {type: aws}\n") == YamlKind::kClusterFile);
  CHECK(KindOfYaml("provider: x\nentrypoint: y\n") == YamlKind::kJobFile);
  CHECK(KindOfYaml("anything: x\n") == YamlKind::kJobFile);
  CHECK(KindOfYaml("{not yaml") == YamlKind::kJobFile);
}

}  // namespace
}  // namespace rayctl::cli
