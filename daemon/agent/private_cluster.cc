#include "daemon/agent/private_cluster.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>

#include "absl/status/status.h"
#include "base/folders.h"
#include "base/status_text.h"
#include "client/endpoint.h"
#include "spdlog/spdlog.h"

namespace rayctl::agent {
namespace {

namespace fs = std::filesystem;

// It ends by itself at the same word as the agent.
constexpr std::chrono::milliseconds kHeadPatience{500};
constexpr std::chrono::milliseconds kKillPatience{5'000};

bool WaitForEnd(int pidfd, std::chrono::milliseconds patience) {
  pollfd fd{pidfd, POLLIN, 0};
  while (true) {
    const int ready = ::poll(&fd, 1, static_cast<int>(patience.count()));
    if (ready >= 0 || errno != EINTR) {
      return ready != 0;
    }
  }
}

}  // namespace

UniqueFd HeadBeside(const std::string& run_dir) {
  client::EndpointSettings settings = client::SettingsFromEnvironment();
  settings.runtime_root = fs::path(run_dir).parent_path().string();
  for (const client::RunningDaemon& daemon : client::LookAround(settings).daemons) {
    if (daemon.is_head && daemon.run_dir == run_dir) {
      UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, daemon.pid, 0)));
      // Opened before this second look, so it is that process and no later one of the same number.
      if (client::ProcessStartTicks(daemon.pid) == daemon.start_ticks) {
        return pidfd;
      }
    }
  }
  return UniqueFd();
}

void RemovePrivateCluster(const UniqueFd& head, const std::string& state_dir, const std::string& run_dir) {
  if (head.valid() && !WaitForEnd(head.get(), kHeadPatience)) {
    ::syscall(SYS_pidfd_send_signal, head.get(), SIGKILL, nullptr, 0);
    if (!WaitForEnd(head.get(), kKillPatience)) {
      spdlog::error("the head does not end, not even by SIGKILL; the folders stay");
      return;
    }
  }
  for (const std::string& folder : {state_dir, run_dir}) {
    // Read-only folders too: the node's copies of working directories are, and what a job made may be.
    if (const absl::Status removed = RemoveTree(folder); !removed.ok()) {
      spdlog::error("not removed why={}", Text(removed));
    }
  }
  ::rmdir(fs::path(run_dir).parent_path().c_str());  // Stays while another node has a folder there.
}

}  // namespace rayctl::agent
