#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rayctl::cli {

// What a daemon writes to its --ready-fd.
struct Ready {
  std::string address;
  std::string local_address;  // Of the head, as this machine reaches it; may be empty.
  std::string dashboard_url;
  std::uint64_t node_id = 0;
  std::string node_name;
};

// A daemon that was started here and is ready, or one that ran already (then `pid` is no child).
struct DaemonProcess {
  std::string verb;  // "head", "agent".
  pid_t pid = -1;
  UniqueFd pidfd;
  bool is_child = false;
  Ready ready;
};

struct StartFds {
  int interrupt_fd = -1;  // Readable: the start is not wanted any more.
  int client_fd = -1;     // A pidfd of the process that the daemon serves alone; -1: it serves its user.
};

// CANCELLED: `interrupt_fd` became readable; the daemon is ended again. DEADLINE_EXCEEDED: it was not ready in time.
// Otherwise what the daemon itself said, or the last lines of its log when it died without a word.
absl::StatusOr<DaemonProcess> StartDaemon(const std::string& verb, const std::vector<std::string>& arguments,
                                          const std::string& log_path, const StartFds& fds);

// Ends a process that `pidfd` names: `first_signal`, SIGKILL after `patience`; waits for it.
void EndProcess(int pidfd, int first_signal, std::chrono::milliseconds patience);
// Waits until the process has ended. False: not within `patience`.
bool WaitForEnd(int pidfd, std::chrono::milliseconds patience);

UniqueFd OpenPidfd(pid_t pid);
bool SignalPidfd(int pidfd, int signal);

// One line of JSON on a daemon's ready pipe. INVALID_ARGUMENT: it is none. FAILED_PRECONDITION: the daemon's own error.
absl::StatusOr<Ready> ParseReady(std::string_view line);

// The path of this program, also when it was found in PATH.
std::string OwnPath();

}  // namespace rayctl::cli
