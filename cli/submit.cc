#include "cli/submit.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <CLI/CLI.hpp>
#include <array>
#include <optional>

#include "base/resources.h"
#include "base/status_text.h"
#include "base/units.h"
#include "cli/call.h"
#include "cli/follow.h"
#include "cli/job_file.h"
#include "cli/output.h"
#include "cli/pairs.h"
#include "cli/places.h"
#include "cli/verbs.h"
#include "client/token.h"

namespace rayctl::cli {
namespace {

constexpr std::size_t kJobFileBytesMax = 1 << 20;
constexpr std::size_t kRequestIdBytes = 16;

struct SubmitOptions {
  HeadOptions head;
  std::string name;
  std::optional<std::uint32_t> num_workers;
  std::optional<std::string> cpus;  // Given empty, as by a shell variable that is not set, is a mistake.
  std::optional<std::string> gpus;
  std::optional<std::string> memory;
  std::string resources;
  std::vector<std::string> env;
  std::string working_dir;
  std::string queue;
  std::optional<std::int32_t> priority;
  std::optional<std::string> timeout;
  std::optional<std::int32_t> max_failures;
  bool no_wait = false;
  bool fail_infeasible = false;
};

// A retry repeats it, so that a job is never accepted twice.
std::string NewRequestId() {
  std::array<char, kRequestIdBytes> bytes{};
  for (std::size_t filled = 0; filled < bytes.size();) {
    const ssize_t got = ::getrandom(bytes.data() + filled, bytes.size() - filled, 0);
    filled += got > 0 ? static_cast<std::size_t>(got) : 0;
  }
  return client::ToHex(std::string_view(bytes.data(), bytes.size()));
}

// Lays the options over the spec. INVALID_ARGUMENT names the option.
absl::Status Apply(const SubmitOptions& options, v1::JobSpec& spec) {
  const auto wrong = [](std::string_view option, std::string_view what) {
    return absl::InvalidArgumentError(fmt::format("{}: {}", option, what));
  };
  if (!options.working_dir.empty()) {
    return wrong("--working-dir", "working_dir is not supported by this version; use absolute paths");
  }
  if (!options.name.empty()) {
    spec.set_name(options.name);
  }
  if (!options.queue.empty()) {
    spec.set_queue(options.queue);
  }
  if (options.priority) {
    spec.set_priority(*options.priority);
  }
  if (options.num_workers) {
    spec.mutable_scaling_config()->set_num_workers(*options.num_workers);
    spec.mutable_scaling_config()->clear_num_workers_max();
  }
  if (options.max_failures) {
    spec.mutable_run_config()->mutable_failure_config()->set_max_failures(*options.max_failures);
  }
  const auto set_amount = [&](const std::string& name, double amount) {
    (*spec.mutable_scaling_config()->mutable_resources_per_worker()->mutable_amounts())[name] = amount;
  };
  struct Amounts {
    std::string_view option;
    std::string name;
    const std::optional<std::string>& text;
  };
  for (const auto& [option, name, text] :
       {Amounts{"--cpus", "CPU", options.cpus}, Amounts{"--gpus", "GPU", options.gpus},
        Amounts{"--memory", "memory", options.memory}}) {
    if (!text) {
      continue;
    }
    const absl::StatusOr<double> amount = ParseAmount(name, *text);
    if (!amount.ok()) {
      return wrong(option, rayctl::Text(amount.status()));
    }
    set_amount(name, *amount);
  }
  const auto resources = ParseAmounts(options.resources);
  if (!resources.ok()) {
    return wrong("--resources", rayctl::Text(resources.status()));
  }
  for (const auto& [name, amount] : *resources) {
    set_amount(name, amount);
  }
  for (const std::string& pair : options.env) {
    const std::size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0) {
      return wrong("--env", fmt::format("expected NAME=VALUE, not '{}'", pair));
    }
    (*spec.mutable_env_vars())[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
  if (options.timeout) {
    const absl::StatusOr<Duration> timeout = ParseDuration(*options.timeout);
    if (!timeout.ok()) {
      return wrong("--timeout", rayctl::Text(timeout.status()));
    }
    if (*timeout == Duration{0}) {
      return wrong("--timeout", kNoTimeout);
    }
    constexpr std::int64_t kNanosPerSecond = 1'000'000'000;
    spec.mutable_timeout()->set_seconds(timeout->count() / kNanosPerSecond);
    spec.mutable_timeout()->set_nanos(static_cast<std::int32_t>(timeout->count() % kNanosPerSecond));
  }
  return absl::OkStatus();
}

int Submit(const v1::JobSpec& spec, const SubmitOptions& options) {
  absl::StatusOr<HeadClient> head = HeadClient::Open(options.head);
  if (!head.ok()) {
    return Failed(head.status());
  }
  v1::SubmitJobRequest request;
  request.set_request_id(NewRequestId());
  request.set_fail_infeasible(options.fail_infeasible);
  *request.mutable_spec() = spec;
  DetachOnInterrupt("\nrayctl: interrupted; `rayctl list jobs` shows whether the job was accepted\n");
  const absl::StatusOr<v1::SubmitJobResponse> response = head->SubmitJob(request);
  if (!response.ok()) {
    return Failed(response.status());
  }
  const std::uint64_t id = response->job_id();
  for (const std::string& remark : response->remarks()) {
    Remark(remark);
  }
  if (options.no_wait) {
    Answer(fmt::format("{}\n", id));
    return kExitDone;
  }
  DetachOnInterrupt(
      fmt::format("\nrayctl: detached; job {0} goes on. `rayctl logs -f {0}` follows it again, "
                  "`rayctl cancel {0}` ends it\n",
                  id));
  v1::JobRef job;
  job.set_id(id);
  const absl::StatusOr<int> code = Follow(*head, job, {.attempt = 0});
  if (!code.ok()) {
    Remark(fmt::format("job {} was accepted, and following it ended early", id));
    return Failed(code.status());
  }
  ExitCodeIsTheJobs();
  return *code;
}

}  // namespace

SubmitForm FormOf(const std::vector<std::string>& words, const std::vector<std::string>& command, bool has_command) {
  if (has_command) {
    return words.empty() && !command.empty() ? SubmitForm(CommandForm{command}) : NoForm{};
  }
  if (words.empty()) {
    return NoForm{};
  }
  const std::string& first = words.front();
  if (first.ends_with(".py")) {
    return DriverForm{};
  }
  if (!first.ends_with(".yaml") && !first.ends_with(".yml")) {
    return NoForm{};
  }
  if (words.size() == 1) {
    return JobFileForm{first};
  }
  const absl::StatusOr<std::string> text = ReadFile(first);
  return text.ok() && KindOfYaml(*text) == YamlKind::kClusterFile ? SubmitForm(ClusterForm{}) : NoForm{};
}

std::string SubmitUsage() {
  return "rayctl submit JOB.yaml                  runs a job file: a YAML with `entrypoint`\n"
         "rayctl submit SCRIPT.py [ARGS]          runs a driver script\n"
         "rayctl submit CLUSTER.yaml SCRIPT.py    runs a script on a cluster: a YAML with `provider`\n"
         "rayctl submit [OPTIONS] -- COMMAND      runs a command\n";
}

int RunSubmit(const Arguments& arguments) {
  CommandLine line("submit", "Run a job, follow its output and exit with its code.\n\n" + SubmitUsage(),
                   "rayctl submit --num-workers 4 --cpus 2 -- python3 /home/ann/train.py --epochs 5");
  SubmitOptions options;
  AddHeadOptions(line, options.head);
  line.add_option("--name", options.name, "Name of the job")->type_name("NAME");
  line.add_option("--num-workers", options.num_workers, "Ranks that run the command (default 1)")
      ->type_name("N")
      ->check(CLI::Range(1U, 100'000U));
  line.add_option("--cpus", options.cpus, "CPUs of each rank (default 1)")->type_name("N");
  line.add_option("--gpus", options.gpus, "GPUs of each rank (default 0)")->type_name("N");
  line.add_option("--memory", options.memory, "Memory of each rank, such as 2GiB")->type_name("BYTES");
  line.add_option("--resources", options.resources, "Other resources of each rank: NAME=AMOUNT,...")->type_name("LIST");
  line.add_option("--env", options.env, "A variable of the ranks' environment; may be repeated")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  line.add_option("--working-dir", options.working_dir, "Folder to ship to the ranks")->type_name("PATH");
  line.add_option("--queue", options.queue, "Queue of the job")->type_name("NAME");
  line.add_option("--priority", options.priority, "Higher goes first (default 0)")->type_name("N");
  line.add_option("--timeout", options.timeout, "Time limit, such as 90s, 5m or 2h")->type_name("TIME");
  line.add_option("--max-failures", options.max_failures, "Restarts after failures; -1 = for ever (default 0)")
      ->type_name("N")
      ->check(CLI::Range(-1, 1'000'000'000));
  line.add_flag("--no-wait", options.no_wait, "Print the job's id and return at once");
  line.add_flag("--fail-infeasible", options.fail_infeasible, "Refuse a job that no node present could ever hold");
  line.allow_extras();

  const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
  const bool has_command = dashes != arguments.end();
  if (const std::optional<int> code = line.Read(Arguments(arguments.begin(), dashes))) {
    return *code;
  }
  const Arguments command(has_command ? dashes + 1 : dashes, arguments.end());
  const std::vector<std::string> words = line.remaining();
  // A driver script's own options follow its name; otherwise a word that looks like an option is one that is unknown.
  const bool is_driver = !words.empty() && words.front().ends_with(".py");
  for (const std::string& word : words) {
    if (word.starts_with('-') && !is_driver) {
      return line.UnknownOption(word);
    }
  }
  const SubmitForm form = FormOf(words, command, has_command);
  v1::JobSpec spec;
  if (const auto* const run = std::get_if<CommandForm>(&form)) {
    spec.set_kind(v1::JOB_KIND_COMMAND);
    spec.mutable_argv()->Add(run->argv.begin(), run->argv.end());
    const std::string& program = run->argv.front();
    if (program.find('/') != std::string::npos && !program.starts_with('/')) {
      Remark(fmt::format("{} is looked up in the job's own empty folder; an absolute path is safer", program));
    }
  } else if (const auto* const file = std::get_if<JobFileForm>(&form)) {
    const absl::StatusOr<std::string> text = ReadFile(file->path);
    if (!text.ok()) {
      return UsageError(fmt::format("submit: {}", rayctl::Text(text.status())));
    }
    if (text->size() > kJobFileBytesMax) {
      return UsageError(fmt::format("submit: {} has more than {}", file->path, FormatBytes(kJobFileBytesMax)));
    }
    if (KindOfYaml(*text) == YamlKind::kClusterFile) {
      WriteAll(2, SubmitUsage());
      return kExitUsage;
    }
    absl::StatusOr<v1::JobSpec> parsed = ParseJobFile(*text, file->path);
    if (!parsed.ok()) {
      WriteAll(2, fmt::format("{}\n", Printable(rayctl::Text(parsed.status()))));
      return kExitUsage;
    }
    spec = *std::move(parsed);
  } else if (std::holds_alternative<DriverForm>(form)) {
    return UsageError(
        "submit: driver scripts come with the Python package, which this version does not have yet; "
        "`rayctl submit -- python3 /path/to/script.py` runs the script as a command");
  } else if (std::holds_alternative<ClusterForm>(form)) {
    return UsageError(
        "submit: cluster files with `provider` are not supported by this version; start the cluster with "
        "`rayctl start` and submit a job file or a command");
  } else {
    WriteAll(2, SubmitUsage());
    return kExitUsage;
  }
  if (const absl::Status status = Apply(options, spec); !status.ok()) {
    return UsageError(fmt::format("submit: {}", rayctl::Text(status)));
  }
  return Submit(spec, options);
}

}  // namespace rayctl::cli
