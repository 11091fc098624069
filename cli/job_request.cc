#include "cli/job_request.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "base/resources.h"
#include "base/status_text.h"
#include "base/units.h"
#include "cli/job_file.h"
#include "cli/output.h"
#include "cli/pairs.h"
#include "cli/places.h"
#include "client/token.h"

namespace rayctl::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kJobFileBytesMax = 1 << 20;
constexpr std::size_t kRequestIdBytes = 16;
constexpr std::string_view kPython = "python3";

// Lays the options over the spec. INVALID_ARGUMENT names the option.
absl::Status Apply(const JobOptions& options, v1::JobSpec& spec) {
  const auto wrong = [](std::string_view option, std::string_view what) {
    return absl::InvalidArgumentError(fmt::format("{}: {}", option, what));
  };
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

// Where the first word stands that is neither an option nor an option's value.
std::size_t FirstWord(CommandLine& line, const Arguments& arguments) {
  std::size_t at = 0;
  while (at < arguments.size() && arguments[at].size() > 1 && arguments[at].starts_with('-') && arguments[at] != "--") {
    const std::string& word = arguments[at++];
    const CLI::Option* const option = line.get_option_no_throw(word.substr(0, word.find('=')));
    if (option != nullptr && option->get_items_expected_max() > 0 && word.find('=') == std::string::npos) {
      ++at;
    }
  }
  return std::min(at, arguments.size());
}

// A failure as one line, with exit code 2.
int Wrong(const CommandLine& line, const std::string& text) {
  return UsageError(fmt::format("{}: {}", line.verb(), text));
}

std::optional<int> ReadJobFile(const CommandLine& line, const std::string& path, const std::string& usage,
                               JobRequest& request) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) {
    return Wrong(line, rayctl::Text(text.status()));
  }
  if (text->size() > kJobFileBytesMax) {
    return Wrong(line, fmt::format("{} has more than {}", path, FormatBytes(kJobFileBytesMax)));
  }
  if (KindOfYaml(*text) == YamlKind::kClusterFile) {
    WriteAll(2, usage);
    return kExitUsage;
  }
  absl::StatusOr<v1::JobSpec> parsed = ParseJobFile(*text, path);
  if (!parsed.ok()) {
    WriteAll(2, fmt::format("{}\n", Printable(rayctl::Text(parsed.status()))));
    return kExitUsage;
  }
  request.spec = *std::move(parsed);
  if (!request.spec.working_dir().empty()) {
    request.working_dir = (fs::path(path).parent_path() / request.spec.working_dir()).lexically_normal().string();
    request.spec.clear_working_dir();
  }
  return std::nullopt;
}

std::optional<int> ReadDriver(const CommandLine& line, const DriverForm& driver, JobRequest& request) {
  std::error_code error;
  if (!fs::is_regular_file(driver.script, error)) {
    return Wrong(line, fmt::format("{}: no such script", driver.script));
  }
  const fs::path script(driver.script);
  request.spec.set_kind(v1::JOB_KIND_COMMAND);
  request.spec.add_argv(std::string(kPython));
  request.spec.add_argv(script.filename().string());
  request.spec.mutable_argv()->Add(driver.arguments.begin(), driver.arguments.end());
  // It only drives others, and must not take the room that they need.
  (*request.spec.mutable_scaling_config()->mutable_resources_per_worker()->mutable_amounts())[std::string(kCpu)] = 0;
  request.working_dir = script.has_parent_path() ? script.parent_path().string() : ".";
  return std::nullopt;
}

}  // namespace

std::string NewRequestId() {
  std::array<char, kRequestIdBytes> bytes{};
  for (std::size_t filled = 0; filled < bytes.size();) {
    const ssize_t got = ::getrandom(bytes.data() + filled, bytes.size() - filled, 0);
    filled += got > 0 ? static_cast<std::size_t>(got) : 0;
  }
  return client::ToHex(std::string_view(bytes.data(), bytes.size()));
}

SubmitForm FormOf(const std::vector<std::string>& words, const std::vector<std::string>& command, bool has_command) {
  if (has_command) {
    return words.empty() && !command.empty() ? SubmitForm(CommandForm{command}) : NoForm{};
  }
  if (words.empty()) {
    return NoForm{};
  }
  const std::string& first = words.front();
  if (first.ends_with(".py")) {
    return DriverForm{first, {words.begin() + 1, words.end()}};
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

void AddJobOptions(CommandLine& line, JobOptions& options) {
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
}

std::optional<int> ReadJobRequest(CommandLine& line, const Arguments& arguments, const JobOptions& options,
                                  const std::string& usage, JobRequest& request) {
  line.allow_extras();
  // All that follows a script is the script's own, options that look like ours and `--` included.
  const std::size_t first = FirstWord(line, arguments);
  const bool is_driver = first < arguments.size() && arguments[first].ends_with(".py");
  const auto ours_end = is_driver ? arguments.begin() + static_cast<std::ptrdiff_t>(first)
                                  : std::find(arguments.begin(), arguments.end(), "--");
  const bool has_command = !is_driver && ours_end != arguments.end();
  if (const std::optional<int> code = line.Read(Arguments(arguments.begin(), ours_end))) {
    return *code;
  }
  std::vector<std::string> words = line.remaining();
  for (const std::string& word : words) {
    if (word.starts_with('-')) {
      return line.UnknownOption(word);
    }
  }
  if (is_driver) {
    words.assign(ours_end, arguments.end());
  }
  const Arguments command(has_command ? ours_end + 1 : arguments.end(), arguments.end());
  const SubmitForm form = FormOf(words, command, has_command);
  std::optional<int> wrong;
  if (const auto* const run = std::get_if<CommandForm>(&form)) {
    request.spec.set_kind(v1::JOB_KIND_COMMAND);
    request.spec.mutable_argv()->Add(run->argv.begin(), run->argv.end());
    const std::string& program = run->argv.front();
    if (options.working_dir.empty() && program.find('/') != std::string::npos && !program.starts_with('/')) {
      Remark(fmt::format("{} is looked up in the job's own empty folder; --working-dir sends a folder along", program));
    }
  } else if (const auto* const file = std::get_if<JobFileForm>(&form)) {
    wrong = ReadJobFile(line, file->path, usage, request);
  } else if (const auto* const driver = std::get_if<DriverForm>(&form)) {
    wrong = ReadDriver(line, *driver, request);
  } else if (std::holds_alternative<ClusterForm>(form)) {
    wrong = Wrong(line,
                  "cluster files with `provider` are not supported by this version; start the cluster with "
                  "`rayctl start` and submit a job file or a command");
  } else {
    WriteAll(2, usage);
    wrong = kExitUsage;
  }
  if (wrong) {
    return wrong;
  }
  if (const absl::Status status = Apply(options, request.spec); !status.ok()) {
    return Wrong(line, rayctl::Text(status));
  }
  if (!options.working_dir.empty()) {
    request.working_dir = options.working_dir;
  }
  std::error_code error;
  if (!request.working_dir.empty() && !fs::is_directory(request.working_dir, error)) {
    return Wrong(line, fmt::format("working directory {}: no such folder", request.working_dir));
  }
  return std::nullopt;
}

}  // namespace rayctl::cli
