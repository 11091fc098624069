#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "daemon/agent/node_facts.h"

namespace rayctl::agent {

struct AgentOptions {
  std::string version = "0.1.0";
  std::string state_dir;
  std::string run_dir;
  std::string address;     // Of the head.
  std::string token_file;  // May be empty once the node has joined.
  std::string node_name;
  std::string shim_program;
  NodeSettings node;
  std::optional<std::uint64_t> pids_max;  // Not given: DefaultPidsMax().
  std::optional<std::uint64_t> logs_max;  // Bytes of all jobs' logs. Not given: DefaultLogBytesMax().
  bool insecure = false;
  // A start that has not registered by then has failed; one that adopted ranks goes on trying. Longer than one try, so
  // that what stands in the way is known.
  Duration start_timeout = std::chrono::seconds(8);
  int ready_fd = -1;
  // A pidfd of the process that this cluster serves alone, with its head on this machine; -1: it serves its user. When
  // the process has ended every rank is killed, and the state folder and the runtime folder are removed.
  int client_fd = -1;
  std::string notify_socket;  // Of a service manager that wants to know the same; empty: none.
};

// Runs an agent until SIGTERM (its shims and ranks stay), SIGINT or the head's word (everything ends). Gives the
// process's exit code. Errors before it is ready go to `ready_fd`; see docs/contracts.md.
int RunAgent(const AgentOptions& options);

}  // namespace rayctl::agent
