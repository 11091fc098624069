#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/json_text.h"
#include "base/status_text.h"
#include "base/units.h"
#include "cli/command_line.h"
#include "cli/pairs.h"
#include "cli/starter.h"
#include "cli/verbs.h"
#include "client/endpoint.h"

namespace rayctl::cli {
namespace {

// What is wrong with the words as such; empty when nothing is.
std::string Check(StartOptions& options) {
  if (options.head == !options.address.empty()) {
    return "start takes one of --head (a new cluster) and --address=HOST:PORT (join one)";
  }
  if (options.fresh && !options.head) {
    return "--fresh goes with --head";
  }
  if (!options.become.empty() && options.become != "head" && options.become != "agent") {
    return fmt::format("--become takes head or agent, not '{}'", options.become);
  }
  if (!options.become.empty() && (options.block || (options.become == "head" && !options.head))) {
    return "--become head goes with --head, and --become without --block";
  }
  if (options.insecure && options.head && !options.host.empty() && options.host != "127.0.0.1" &&
      options.host != "localhost" && options.host != "::1") {
    return "--insecure binds loopback only; leave --host out";
  }
  if (!options.address.empty()) {
    absl::StatusOr<std::string> address = client::NormaliseAddress(options.address);
    if (!address.ok()) {
      return fmt::format("--address: {}", rayctl::Text(address.status()));
    }
    options.address = *std::move(address);
  }
  if (!options.resources.empty()) {
    const auto amounts = ParseAmounts(options.resources);
    if (!amounts.ok()) {
      return fmt::format("--resources: {}", rayctl::Text(amounts.status()));
    }
    options.resources = JsonText(nlohmann::ordered_json(*amounts), NonFinite::kPython);
  }
  if (!options.labels.empty()) {
    const auto labels = ParsePairs(options.labels);
    if (!labels.ok()) {
      return fmt::format("--labels: {}", rayctl::Text(labels.status()));
    }
    options.labels.clear();
    for (const auto& [name, value] : *labels) {
      options.labels += fmt::format("{}{}={}", options.labels.empty() ? "" : ",", name, value);
    }
  }
  return {};
}

}  // namespace

int RunStart(const Arguments& arguments) {
  CommandLine line("start",
                   "Start a head and an agent on this machine (--head), or an agent that joins a cluster (--address). "
                   "Returns when they are ready.",
                   "rayctl start --head --num-cpus 8\n  rayctl start --address=10.0.0.1:6379 --token-file=join-token");
  StartOptions options;
  line.add_flag("--head", options.head, "Start a new cluster, or go on with the one in the state folder");
  line.add_option("--address", options.address, "Join the cluster of this head")->type_name("HOST:PORT");
  line.add_option("--host", options.host, "Where the head listens (default all addresses)")->type_name("HOST");
  line.add_option("--port", options.port, "The head's port; 0 picks one (default 6379)")->type_name("PORT");
  line.add_option("--dashboard-host", options.dashboard_host, "Where the page listens (default 127.0.0.1)")
      ->type_name("HOST");
  line.add_option("--dashboard-port", options.dashboard_port, "The page's port; 0 picks one (default 8265)")
      ->type_name("PORT");
  const CLI::Range amount(0.0, 1e6);
  line.add_option("--num-cpus", options.num_cpus, "CPUs of this node (default those it has)")
      ->type_name("N")
      ->check(amount);
  line.add_option("--num-gpus", options.num_gpus, "GPUs of this node (default those it has)")
      ->type_name("N")
      ->check(amount);
  line.add_option("--resources", options.resources, "Other resources: NAME=AMOUNT,... or JSON")->type_name("LIST");
  line.add_option("--labels", options.labels, "Labels of this node: NAME=VALUE,... or JSON")->type_name("LIST");
  line.add_option("--node-name", options.node_name, "Name of this node (default the host's)")->type_name("NAME");
  line.add_option("--node-ip-address", options.node_ip_address, "Address at which other nodes reach this one")
      ->type_name("IP");
  line.add_option("--pids-max", options.pids_max,
                  "Processes and threads of one job on this node (default a quarter of the kernel's limit)")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  line.add_option_function<std::string>(
          "--logs-max",
          [&options](const std::string& text) {
            const absl::StatusOr<std::int64_t> bytes = ParseBytes(text);
            if (!bytes.ok()) {
              throw CLI::ValidationError("--logs-max", Text(bytes.status()));
            }
            options.logs_max = *bytes;
          },
          "Bytes that the logs of all jobs on this node may take; those of the job that ended longest ago go first "
          "(default 10GiB, at most a tenth of the disk)")
      ->type_name("SIZE");
  line.add_option("--state-dir", options.state_dir, "Folder of this node's state (default RAYCTL_STATE_DIR)")
      ->type_name("PATH");
  line.add_option("--token", options.token, "Join token (default RAYCTL_TOKEN)")->type_name("TOKEN");
  line.add_option("--token-file", options.token_file, "File that holds the join token")->type_name("PATH");
  line.add_flag("--block", options.block, "Stay until the daemons end; Ctrl-C ends them");
  line.add_option("--become", options.become,
                  "Go on as this daemon alone, for a service manager: SIGTERM leaves the ranks running")
      ->type_name("head|agent");
  line.add_flag("--fresh", options.fresh, "Move the state folder aside and begin anew");
  line.add_flag("--insecure", options.insecure, "Neither TLS nor tokens; loopback only");
  AddFormatOption(line, options.format);
  if (const std::optional<int> code = line.Read(arguments)) {
    return *code;
  }
  if (const std::string wrong = Check(options); !wrong.empty()) {
    return UsageError("start: " + wrong);
  }
  return Starter(std::move(options), client::SettingsFromEnvironment()).Run();
}

}  // namespace rayctl::cli
