#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>

#include "cmd/daemons.h"
#include "daemon/rpc/head_daemon.h"

namespace rayctl {
namespace {

constexpr int kBadUsage = 2;

}  // namespace

int HeadMain(int argc, char** argv) {
  // `rayctl start` points stderr at log/head.log.
  spdlog::set_default_logger(spdlog::stderr_logger_mt("head"));
  spdlog::flush_on(spdlog::level::info);

  rpc::HeadOptions options;
  options.notify_socket = TakeNotifySocket();
  CLI::App app{"The daemon that holds the cluster's state; `rayctl start --head` runs it.", "rayctl head"};
  app.add_option("--state-dir", options.state_dir, "What outlives a restart")->required();
  app.add_option("--run-dir", options.run_dir, "Where it says that it runs")->required();
  app.add_option("--host", options.host, "Address to listen on; every address when not given");
  app.add_option("--port", options.port, "Port for agents and clients; 0 picks one");
  app.add_option("--node-ip-address", options.node_ip_address, "Of this machine, as others reach it");
  app.add_option("--dashboard-host", options.dashboard_host,
                 "Address of the page and the REST API; HTTPS unless it is loopback");
  app.add_option("--dashboard-port", options.dashboard_port, "Port of the page; 0 picks one");
  app.add_flag("--insecure", options.insecure, "Plain text on loopback, everybody is an admin");
  app.add_option("--ready-fd", options.ready_fd, "Where to say that it is ready");
  app.add_option("--client-fd", options.client_fd, "A pidfd: everything ends when that process has");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kBadUsage;
  }
  return rpc::RunHead(options);
}

}  // namespace rayctl
