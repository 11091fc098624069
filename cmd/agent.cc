#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <string>

#include "cmd/daemons.h"
#include "daemon/agent/agent_daemon.h"

namespace rayctl {
namespace {

constexpr int kBadUsage = 2;

}  // namespace

int AgentMain(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_logger_mt("agent"));
  spdlog::flush_on(spdlog::level::info);

  agent::AgentOptions options;
  options.notify_socket = TakeNotifySocket();
  double num_cpus = 0;
  double num_gpus = 0;
  std::uint64_t pids_max = 0;
  std::uint64_t logs_max = 0;
  CLI::App app{"The daemon of one node; `rayctl start` runs it.", "rayctl agent"};
  app.add_option("--state-dir", options.state_dir, "What outlives a restart")->required();
  app.add_option("--run-dir", options.run_dir, "Sockets and what says that it runs")->required();
  app.add_option("--address", options.address, "HOST:PORT of the head")->required();
  app.add_option("--token-file", options.token_file, "A join token, for the first start");
  app.add_flag("--head-node", options.node.is_head_node, "This is the head's machine");
  app.add_option("--node-name", options.node_name, "The name to ask for")->required();
  CLI::Option* const cpus = app.add_option("--num-cpus", num_cpus, "CPUs to offer; found when not given");
  CLI::Option* const gpus = app.add_option("--num-gpus", num_gpus, "GPUs to offer; found when not given");
  app.add_option("--resources", options.node.resources_json, "Other resources, as JSON: {\"license\": 2}");
  app.add_option("--labels", options.node.labels, "KEY=VALUE,...");
  app.add_option("--node-ip-address", options.node.node_ip_address, "Of this node, as others reach it");
  CLI::Option* const pids = app.add_option("--pids-max", pids_max, "Processes and threads of one job here");
  CLI::Option* const logs = app.add_option("--logs-max", logs_max, "Bytes of all jobs' logs here");
  app.add_flag("--insecure", options.insecure, "Plain text, for a head on loopback");
  app.add_option("--shim", options.shim_program, "Path of rayctl-shim")->required();
  app.add_option("--ready-fd", options.ready_fd, "Where to say that it is ready");
  app.add_option("--client-fd", options.client_fd, "A pidfd: everything ends when that process has");
  try {
    // The verb comes along when main() hands over its own arguments.
    const bool with_verb = argc > 1 && std::string(argv[1]) == "agent";
    app.parse(with_verb ? argc - 1 : argc, with_verb ? argv + 1 : argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kBadUsage;
  }
  if (cpus->count() != 0) {
    options.node.num_cpus = num_cpus;
  }
  if (gpus->count() != 0) {
    options.node.num_gpus = num_gpus;
  }
  if (pids->count() != 0) {
    options.pids_max = pids_max;
  }
  if (logs->count() != 0) {
    options.logs_max = logs_max;
  }
  options.node.head_address = options.address;
  return agent::RunAgent(options);
}

}  // namespace rayctl
