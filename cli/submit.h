#pragma once

#include <string>
#include <variant>
#include <vector>

#include "cli/command_line.h"
#include "rayctl/v1/job.pb.h"

namespace rayctl::cli {

// What the words behind `submit` and its options are.
struct CommandForm {
  std::vector<std::string> argv;
};
struct JobFileForm {
  std::string path;
};
struct DriverForm {};   // SCRIPT.py
struct ClusterForm {};  // CLUSTER.yaml SCRIPT.py
struct NoForm {};
using SubmitForm = std::variant<CommandForm, JobFileForm, DriverForm, ClusterForm, NoForm>;

// `words`: what stands before `--` and is no option; `command`: what follows it; has_command: whether `--` is there.
SubmitForm FormOf(const std::vector<std::string>& words, const std::vector<std::string>& command, bool has_command);

// The four lines that refuse everything else.
std::string SubmitUsage();

}  // namespace rayctl::cli
