#include "cli/stop.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/unique_fd.h"
#include "cli/daemon_process.h"
#include "cli/output.h"
#include "cli/places.h"
#include "cli/running.h"
#include "cli/verbs.h"

namespace rayctl::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Longer than the grace that a job usually gives its ranks, so that a busy cluster ends by itself.
constexpr std::chrono::seconds kPolitePatience{30};
constexpr std::chrono::seconds kTermPatience{3};
constexpr std::chrono::seconds kShimPatience{15};
constexpr std::chrono::seconds kKillPatience{5};

struct Target {
  client::RunningDaemon daemon;
  UniqueFd pidfd;
  bool gone = false;
};

bool SameProcess(const client::RunningDaemon& a, const client::RunningDaemon& b) {
  return a.pid == b.pid && a.start_ticks == b.start_ticks;
}

// Whether a runtime folder is in `root` itself, as those are that `start` makes.
bool IsIn(const std::string& root, const std::string& run_dir) { return fs::path(run_dir).parent_path() == root; }

// The daemons of this user: by the files that say so, and those whose files somebody removed by their command lines.
std::vector<client::RunningDaemon> LookForDaemons(const client::EndpointSettings& settings) {
  std::vector<client::RunningDaemon> daemons = client::LookAround(settings).daemons;
  for (const RunningProgram& program : FindPrograms()) {
    const bool known = std::any_of(daemons.begin(), daemons.end(),
                                   [&](const client::RunningDaemon& daemon) { return daemon.pid == program.pid; });
    if (known || program.verb == "shim" || !IsIn(settings.runtime_root, program.run_dir)) {
      continue;
    }
    client::RunningDaemon daemon;
    daemon.is_head = program.verb == "head";
    daemon.pid = program.pid;
    daemon.start_ticks = program.start_ticks;
    daemon.address = "of " + program.state_dir;
    daemon.node_name = program.node_name;
    daemon.state_dir = program.state_dir;
    daemon.run_dir = program.run_dir;
    daemons.push_back(std::move(daemon));
  }
  return daemons;
}

// The pidfds are opened between two looks, so that each names the process that both looks saw.
std::vector<Target> FindTargets(const client::EndpointSettings& settings,
                                const std::function<bool(const std::string&)>& chosen) {
  std::vector<Target> targets;
  for (const client::RunningDaemon& daemon : LookForDaemons(settings)) {
    UniqueFd pidfd = OpenPidfd(static_cast<pid_t>(daemon.pid));
    if (chosen(daemon.run_dir) && pidfd.valid()) {
      targets.push_back({daemon, std::move(pidfd), false});
    }
  }
  const std::vector<client::RunningDaemon> again = LookForDaemons(settings);
  std::erase_if(targets, [&](const Target& target) {
    return std::none_of(again.begin(), again.end(),
                        [&](const client::RunningDaemon& other) { return SameProcess(other, target.daemon); });
  });
  return targets;
}

void SignalAll(std::vector<Target>& targets, int signal, const std::function<bool(const Target&)>& which) {
  for (Target& target : targets) {
    if (!target.gone && which(target)) {
      SignalPidfd(target.pidfd.get(), signal);
    }
  }
}

bool WaitAll(std::vector<Target>& targets, std::chrono::milliseconds patience,
             const std::function<bool(const Target&)>& which) {
  const Clock::time_point deadline = Clock::now() + patience;
  bool all = true;
  for (Target& target : targets) {
    if (!target.gone && which(target)) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
      target.gone = WaitForEnd(target.pidfd.get(), std::max(left, std::chrono::milliseconds(0)));
      all = all && target.gone;
    }
  }
  return all;
}

struct Shim {
  pid_t pid = 0;
  UniqueFd pidfd;
};

// Who listens on a shim's socket; an invalid pidfd when nobody does.
Shim Listener(const fs::path& socket_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = socket_path.string();
  if (path.size() >= sizeof(address.sun_path)) {
    return {};
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const UniqueFd link(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (!link.valid() || ::connect(link.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::getsockopt(link.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != ::geteuid()) {
    return {};
  }
  return {peer.pid, OpenPidfd(peer.pid)};
}

std::vector<fs::path> Entries(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

// Those that outlived their agent and listen in a runtime folder.
void AddShims(const fs::path& run_dir, std::vector<Shim>& shims) {
  for (const fs::path& path : Entries(run_dir)) {
    const std::string name = path.filename().string();
    if (name.starts_with("shim-") && name.ends_with(".sock")) {
      if (Shim shim = Listener(path); shim.pidfd.valid()) {
        shims.push_back(std::move(shim));
      }
    }
  }
}

// Those whose sockets somebody removed. Their pidfds are opened between two looks, too.
void AddHiddenShims(const std::function<bool(const std::string&)>& chosen, std::vector<Shim>& shims) {
  std::vector<std::pair<RunningProgram, UniqueFd>> found;
  for (RunningProgram& program : FindPrograms()) {
    const bool known =
        std::any_of(shims.begin(), shims.end(), [&](const Shim& shim) { return shim.pid == program.pid; });
    if (program.verb == "shim" && !known && chosen(program.run_dir)) {
      UniqueFd pidfd = OpenPidfd(program.pid);
      found.emplace_back(std::move(program), std::move(pidfd));
    }
  }
  const std::vector<RunningProgram> again = found.empty() ? std::vector<RunningProgram>() : FindPrograms();
  for (auto& [program, pidfd] : found) {
    const bool same = std::any_of(again.begin(), again.end(), [&, &program = program](const RunningProgram& other) {
      return other.pid == program.pid && other.start_ticks == program.start_ticks;
    });
    if (same && pidfd.valid()) {
      shims.push_back({program.pid, std::move(pidfd)});
    }
  }
}

void EndShims(const std::vector<Shim>& shims) {
  for (const Shim& shim : shims) {
    SignalPidfd(shim.pidfd.get(), SIGTERM);
  }
  const Clock::time_point deadline = Clock::now() + kShimPatience;
  for (const Shim& shim : shims) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (!WaitForEnd(shim.pidfd.get(), std::max(left, std::chrono::milliseconds(0)))) {
      SignalPidfd(shim.pidfd.get(), SIGKILL);
      WaitForEnd(shim.pidfd.get(), kKillPatience);
    }
  }
}

// Removes what dead daemons left in a runtime folder, and the folder once it is empty. A folder that a start holds or
// that has a living daemon is left alone.
void ClearAway(const fs::path& run_dir) {
  const UniqueFd lock(::open(run_dir.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!lock.valid() || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return;
  }
  for (const fs::path& path : Entries(run_dir)) {
    const std::string name = path.filename().string();
    if (name.ends_with(".sock") || name == "head.json" || name == "agent.json") {
      ::unlink(path.c_str());
    }
  }
  ::rmdir(run_dir.c_str());  // Stays when something of another kind is in it.
}

std::string Words(const client::RunningDaemon& daemon) {
  return daemon.is_head ? fmt::format("head {} (pid {})", daemon.address, daemon.pid)
                        : fmt::format("agent {} (pid {})", daemon.node_name, daemon.pid);
}

}  // namespace

int StopDaemons(const client::EndpointSettings& settings, const std::function<bool(const std::string&)>& chosen,
                Say say) {
  const auto tell = [say](const std::string& line) {
    if (say == Say::kAll) {
      Answer(line);
    }
  };
  std::vector<Target> targets = FindTargets(settings, chosen);
  const auto head = [](const Target& target) { return target.daemon.is_head; };
  const auto any = [](const Target&) { return true; };
  SignalAll(targets, SIGINT, head);
  WaitAll(targets, kPolitePatience, head);
  // Agents that their head told to leave are on their way; for those of a head elsewhere this is the word to leave.
  SignalAll(targets, SIGINT, any);
  if (!WaitAll(targets, kPolitePatience, any)) {
    SignalAll(targets, SIGTERM, any);
    if (!WaitAll(targets, kTermPatience, any)) {
      SignalAll(targets, SIGKILL, any);
      WaitAll(targets, kKillPatience, any);
    }
  }
  int code = kExitDone;
  for (const Target& target : targets) {
    if (target.gone) {
      tell(fmt::format("stopped {}\n", Printable(Words(target.daemon))));
    } else {
      Remark(fmt::format("{} does not end, not even by SIGKILL", Words(target.daemon)));
      code = kExitRefused;
    }
  }
  const std::vector<client::RunningDaemon> living = LookForDaemons(settings);
  const auto is_left = [&](const std::string& run_dir) {
    return chosen(run_dir) && IsIn(settings.runtime_root, run_dir) &&
           std::none_of(living.begin(), living.end(),
                        [&](const client::RunningDaemon& daemon) { return daemon.run_dir == run_dir; });
  };
  std::vector<Shim> shims;
  for (const fs::path& run_dir : Entries(settings.runtime_root)) {
    if (is_left(run_dir.string())) {
      AddShims(run_dir, shims);
    }
  }
  AddHiddenShims(is_left, shims);
  EndShims(shims);
  for (const fs::path& run_dir : Entries(settings.runtime_root)) {
    if (is_left(run_dir.string())) {
      ClearAway(run_dir);
    }
  }
  ::rmdir(settings.runtime_root.c_str());  // Stays while another node has a folder there.
  if (!shims.empty()) {
    tell(fmt::format("stopped the ranks of {} job{} that had no agent\n", shims.size(), shims.size() == 1 ? "" : "s"));
  }
  if (targets.empty() && shims.empty()) {
    tell("nothing to stop\n");
  }
  return code;
}

int RunStop(const Arguments& arguments) {
  CommandLine line("stop",
                   "Stop every head and agent that this user started on this machine. Running jobs of a head end as "
                   "CANCELLED; those of another machine's head move to other nodes.",
                   "rayctl stop");
  std::string state_dir;
  line.add_option("--state-dir", state_dir, "Stop only the node with this state folder")->type_name("PATH");
  if (const std::optional<int> code = line.Read(arguments)) {
    return *code;
  }
  const client::EndpointSettings settings = client::SettingsFromEnvironment();
  if (state_dir.empty()) {
    return StopDaemons(settings, [](const std::string&) { return true; });
  }
  std::error_code error;
  const fs::path real = fs::canonical(state_dir, error);
  // A folder that is gone may still have a runtime folder under the name it had.
  const std::string known = error ? fs::absolute(state_dir).lexically_normal().string() : real.string();
  const std::string run_dir = RunDirOf(settings.runtime_root, known);
  return StopDaemons(settings, [&](const std::string& path) { return path == run_dir; });
}

}  // namespace rayctl::cli
