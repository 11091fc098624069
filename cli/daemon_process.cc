#include "cli/daemon_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/status_text.h"
#include "cli/places.h"

namespace rayctl::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kReadyDeadline{60};
constexpr std::chrono::seconds kEndPatience{10};
constexpr int kReadyFd = 3;  // In the daemon, as the next one.
constexpr int kClientFd = 4;
constexpr std::size_t kReadyLineMax = 64 * 1024;
constexpr std::size_t kLogTailBytes = 2048;
constexpr std::size_t kLogTailLines = 8;

int MillisUntil(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, INT_MAX));
}

// posix_spawn's own C objects, given back on every path.
struct SpawnSettings {
  SpawnSettings() {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
  }
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  posix_spawn_file_actions_t actions{};
  posix_spawnattr_t attributes{};
};

std::size_t FileSize(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const off_t size = file.valid() ? ::lseek(file.get(), 0, SEEK_END) : 0;
  return size > 0 ? static_cast<std::size_t>(size) : 0;
}

std::string LogTail(const std::string& path, std::size_t from) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok() || text->size() <= from) {
    return {};
  }
  std::string tail = text->substr(std::max(from, text->size() - std::min(text->size(), kLogTailBytes)));
  while (!tail.empty() && tail.back() == '\n') {
    tail.pop_back();
  }
  std::size_t start = tail.size();
  for (std::size_t lines = 0; lines < kLogTailLines && start != std::string::npos && start > 0; ++lines) {
    start = tail.rfind('\n', start - 1);
  }
  return start == std::string::npos || start == 0 ? tail : tail.substr(start + 1);
}

absl::StatusOr<DaemonProcess> Spawn(const std::string& verb, const std::vector<std::string>& arguments,
                                    const std::string& log_path, int ready_write_fd, int client_fd) {
  const std::string program = OwnPath();
  std::vector<std::string> words{program, verb};
  words.insert(words.end(), arguments.begin(), arguments.end());
  words.insert(words.end(), {"--ready-fd", std::to_string(kReadyFd)});
  if (client_fd >= 0) {
    words.insert(words.end(), {"--client-fd", std::to_string(kClientFd)});
  }
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);

  SpawnSettings settings;
  ::posix_spawn_file_actions_addopen(&settings.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&settings.actions, STDOUT_FILENO, log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                     0600);
  ::posix_spawn_file_actions_adddup2(&settings.actions, STDOUT_FILENO, STDERR_FILENO);
  ::posix_spawn_file_actions_adddup2(&settings.actions, ready_write_fd, kReadyFd);
  if (client_fd >= 0) {
    ::posix_spawn_file_actions_adddup2(&settings.actions, client_fd, kClientFd);
  }
  ::posix_spawn_file_actions_addclosefrom_np(&settings.actions, client_fd >= 0 ? kClientFd + 1 : kReadyFd + 1);
  // Holds no folder of the caller's busy.
  ::posix_spawn_file_actions_addchdir_np(&settings.actions, "/");
  sigset_t none;
  sigset_t all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&settings.attributes, &none);
  ::posix_spawnattr_setsigdefault(&settings.attributes, &all);
  ::posix_spawnattr_setflags(&settings.attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  DaemonProcess process;
  process.verb = verb;
  process.is_child = true;
  const int error =
      ::posix_spawn(&process.pid, "/proc/self/exe", &settings.actions, &settings.attributes, argv.data(), environ);
  if (error != 0) {
    return absl::InternalError(fmt::format("starting the {}: {}", verb, std::strerror(error)));
  }
  process.pidfd = OpenPidfd(process.pid);
  if (!process.pidfd.valid()) {
    return absl::InternalError(fmt::format("watching the {}: {}", verb, std::strerror(errno)));
  }
  return process;
}

// The ready line, as far as it came until the daemon closed the pipe or ended.
absl::StatusOr<std::string> ReadReadyLine(int pipe, int pidfd, int interrupt_fd) {
  const Clock::time_point deadline = Clock::now() + kReadyDeadline;
  std::string line;
  while (true) {
    std::array<pollfd, 3> fds{{{pipe, POLLIN, 0}, {pidfd, POLLIN, 0}, {interrupt_fd, POLLIN, 0}}};
    const int ready = ::poll(fds.data(), fds.size(), MillisUntil(deadline));
    if (ready < 0 && errno != EINTR) {
      return absl::InternalError(fmt::format("waiting: {}", std::strerror(errno)));
    }
    if (ready == 0) {
      return absl::DeadlineExceededError(
          fmt::format("it was not ready within {} s", std::chrono::seconds(kReadyDeadline).count()));
    }
    if (fds[2].revents != 0) {
      return absl::CancelledError("interrupted");
    }
    if (fds[0].revents != 0) {
      std::array<char, 4096> buffer{};
      const ssize_t got = ::read(pipe, buffer.data(), buffer.size());
      if (got > 0) {
        line.append(buffer.data(), static_cast<std::size_t>(got));
      }
      if ((got == 0) || line.find('\n') != std::string::npos || line.size() > kReadyLineMax) {
        return line;
      }
    } else if (fds[1].revents != 0) {
      return line;
    }
  }
}

}  // namespace

std::string OwnPath() {
  std::array<char, PATH_MAX> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  return length > 0 ? std::string(path.data(), static_cast<std::size_t>(length)) : std::string("/proc/self/exe");
}

UniqueFd OpenPidfd(pid_t pid) { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

bool SignalPidfd(int pidfd, int signal) { return ::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0; }

bool WaitForEnd(int pidfd, std::chrono::milliseconds patience) {
  const Clock::time_point deadline = Clock::now() + patience;
  while (true) {
    pollfd fd{pidfd, POLLIN, 0};
    const int ready = ::poll(&fd, 1, MillisUntil(deadline));
    if (ready > 0) {
      // Reaps it when it is a child of ours.
      siginfo_t info{};
      ::waitid(P_PIDFD, static_cast<id_t>(pidfd), &info, WEXITED | WNOHANG);
      return true;
    }
    if (ready == 0) {
      return false;
    }
    if (errno != EINTR) {
      return true;
    }
  }
}

void EndProcess(int pidfd, int first_signal, std::chrono::milliseconds patience) {
  SignalPidfd(pidfd, first_signal);
  if (!WaitForEnd(pidfd, patience)) {
    SignalPidfd(pidfd, SIGKILL);
    WaitForEnd(pidfd, kEndPatience);
  }
}

absl::StatusOr<Ready> ParseReady(std::string_view line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("ok") || !json["ok"].is_boolean()) {
    return absl::InvalidArgumentError("no ready line");
  }
  const auto text = [&](const char* key) {
    const auto it = json.find(key);
    return it != json.end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  if (!json["ok"].get<bool>()) {
    return absl::FailedPreconditionError(text("error"));
  }
  Ready ready{text("address"), text("local_address"), text("dashboard_url"), 0, text("node_name")};
  if (const auto id = json.find("node_id"); id != json.end() && id->is_number_unsigned()) {
    ready.node_id = id->get<std::uint64_t>();
  }
  return ready;
}

absl::StatusOr<DaemonProcess> StartDaemon(const std::string& verb, const std::vector<std::string>& arguments,
                                          const std::string& log_path, const StartFds& fds) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return absl::InternalError(fmt::format("making a pipe: {}", std::strerror(errno)));
  }
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  // Above what they become in the daemon: dup2 onto itself would keep close-on-exec, and one could hide the other.
  write_end.Reset(::fcntl(write_end.get(), F_DUPFD_CLOEXEC, kClientFd + 1));
  const UniqueFd client(fds.client_fd < 0 ? -1 : ::fcntl(fds.client_fd, F_DUPFD_CLOEXEC, kClientFd + 1));
  if (!write_end.valid() || (fds.client_fd >= 0 && !client.valid())) {
    return absl::InternalError(fmt::format("starting the {}: {}", verb, std::strerror(errno)));
  }
  const std::size_t log_size = FileSize(log_path);
  absl::StatusOr<DaemonProcess> process = Spawn(verb, arguments, log_path, write_end.get(), client.get());
  if (!process.ok()) {
    return process.status();
  }
  write_end.Reset();
  const absl::StatusOr<std::string> line = ReadReadyLine(read_end.get(), process->pidfd.get(), fds.interrupt_fd);
  if (!line.ok()) {
    EndProcess(process->pidfd.get(), SIGINT, kEndPatience);
    return absl::Status(line.status().code(),
                        fmt::format("starting the {}: {}; its log is {}", verb, rayctl::Text(line.status()), log_path));
  }
  absl::StatusOr<Ready> ready = ParseReady(*line);
  if (ready.ok()) {
    process->ready = *std::move(ready);
    return process;
  }
  EndProcess(process->pidfd.get(), SIGINT, kEndPatience);
  if (absl::IsFailedPrecondition(ready.status())) {
    return absl::FailedPreconditionError(fmt::format("starting the {}: {}", verb, rayctl::Text(ready.status())));
  }
  const std::string tail = LogTail(log_path, log_size);
  return absl::InternalError(
      tail.empty() ? fmt::format("the {} ended before it was ready; its log {} is empty", verb, log_path)
                   : fmt::format("the {} ended before it was ready; the last lines of {}:\n{}", verb, log_path, tail));
}

}  // namespace rayctl::cli
