#pragma once

#include <cstdint>
#include <string>

namespace rayctl::rpc {

struct HeadOptions {
  std::string state_dir;
  std::string run_dir;
  std::string host;                          // Empty, 0.0.0.0 or :: is every address.
  std::uint16_t port = 6379;                 // 0 picks one.
  std::string node_ip_address;               // By which others reach this machine; empty: found.
  std::string dashboard_host = "127.0.0.1";  // Loopback.
  std::uint16_t dashboard_port = 8265;       // 0 picks one.
  bool insecure = false;
  int client_fd = -1;         // A pidfd of the process that this cluster serves alone; -1: it serves its user.
  int ready_fd = -1;          // Where one JSON line says that the head is ready, or why not.
  std::string notify_socket;  // Of a service manager that wants to know the same; empty: none.
  std::string version = "0.1.0";
};

// The head, until SIGTERM (jobs go on) or SIGINT (the cluster is stopped). Gives the exit code; a failure to start is
// said on the ready descriptor and in the log.
int RunHead(const HeadOptions& options);

}  // namespace rayctl::rpc
