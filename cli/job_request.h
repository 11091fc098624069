#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cli/command_line.h"
#include "rayctl/v1/job.pb.h"

// What `submit` and `run` are asked to run: one grammar, and the options that both take.
namespace rayctl::cli {

// What the words behind the verb and its options are.
struct CommandForm {
  std::vector<std::string> argv;
};
struct JobFileForm {
  std::string path;
};
struct DriverForm {  // SCRIPT.py
  std::string script;
  std::vector<std::string> arguments;
};
struct ClusterForm {};  // CLUSTER.yaml SCRIPT.py
struct NoForm {};
using SubmitForm = std::variant<CommandForm, JobFileForm, DriverForm, ClusterForm, NoForm>;

// `words`: what stands before `--` and is no option; `command`: what follows it; has_command: whether `--` is there.
SubmitForm FormOf(const std::vector<std::string>& words, const std::vector<std::string>& command, bool has_command);

struct JobOptions {
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
};
void AddJobOptions(CommandLine& line, JobOptions& options);

struct JobRequest {
  v1::JobSpec spec;         // Without a working_dir: its digest is not known yet.
  std::string working_dir;  // Folder to ship; empty: none.
};

// Reads the words of a verb with `line`, whose own options and AddJobOptions are there. nullopt: `request` says what to
// run. Else the exit code: what is wrong was said, and the forms that there are by `usage`.
std::optional<int> ReadJobRequest(CommandLine& line, const Arguments& arguments, const JobOptions& options,
                                  const std::string& usage, JobRequest& request);

// A retry repeats it, so that a job is never accepted twice.
std::string NewRequestId();

}  // namespace rayctl::cli
