#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "cli/daemon_process.h"
#include "cli/output.h"
#include "client/endpoint.h"

// Starts the daemons of this machine, for `start` and `run`.
namespace rayctl::cli {

struct StartOptions {
  bool head = false;
  std::string address;
  std::string host;
  std::uint16_t port = 6379;
  std::string dashboard_host = "127.0.0.1";
  std::uint16_t dashboard_port = 8265;
  std::optional<double> num_cpus;
  std::optional<std::uint64_t> pids_max;
  std::optional<std::int64_t> logs_max;
  std::optional<double> num_gpus;
  std::string resources;  // JSON.
  std::string labels;
  std::string node_name;
  std::string node_ip_address;
  std::string state_dir;
  std::string token;
  std::string token_file;
  bool block = false;
  std::string become;       // "head", "agent": this process, instead of children.
  bool is_private = false;  // The daemons serve this process alone and end when it has ended.
  bool fresh = false;
  bool insecure = false;
  Format format = Format::kText;
};

// The exit code of a start that failed; says why.
int StartFailed(const absl::Status& status);

// One start: what it was asked, where it works, what it has started so far. From its making on SIGINT, SIGTERM and
// SIGHUP do not end this program but make `interrupt_fd` readable.
class Starter {
 public:
  Starter(StartOptions options, client::EndpointSettings settings);

  // `rayctl start`, to its exit code.
  int Run();
  // Both daemons, and nothing said or remembered. CANCELLED: interrupted. After an error nothing of it is left.
  absl::Status Start();

  // ---- After Start.
  const DaemonProcess& head() const { return head_; }
  const DaemonProcess& agent() const { return agent_; }
  const std::string& head_address() const { return head_local_address_; }  // From this machine.
  const std::string& state_dir() const { return state_dir_; }              // Its real path.
  const std::string& run_dir() const { return run_dir_; }
  int interrupt_fd() const { return interrupt_.get(); }

 private:
  absl::Status Prepare();
  absl::Status OpenFolders(const std::string& wanted);
  std::string StateDirOfOwnHead();
  absl::Status StartWhatIsMissing();
  absl::Status Become();
  std::vector<std::string> HeadArguments() const;
  absl::StatusOr<int> ClientFd();
  absl::StatusOr<DaemonProcess> StartOne(const std::string& verb, const std::vector<std::string>& arguments);
  absl::Status StartHead();
  absl::StatusOr<std::vector<std::string>> AgentArguments();
  absl::Status StartAgent();
  absl::StatusOr<std::string> AgentTokenFile();
  std::string JoinTokenFile() const;
  void Remember();
  void Announce() const;
  int Block();
  void RemoveEmptyRunDir() const;
  std::string AlreadyRunning() const;

  StartOptions options_;
  client::EndpointSettings settings_;
  UniqueFd interrupt_;
  UniqueFd self_;  // A pidfd of this process, for daemons that serve it alone.
  bool is_head_node_ = false;
  std::string state_dir_;
  std::string run_dir_;
  UniqueFd lock_;
  DaemonProcess head_{.verb = "head"};
  DaemonProcess agent_{.verb = "agent"};
  std::string head_local_address_;  // As the agent beside it connects.
};

}  // namespace rayctl::cli
