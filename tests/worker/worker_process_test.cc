#include "worker/process/worker_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/worker/temp_dir.h"
#include "worker/process/proc.h"

namespace rayctl::process {
namespace {

constexpr int kDeadlineMillis = 20'000;

bool Readable(int fd) {
  pollfd wanted{fd, POLLIN, 0};
  return ::poll(&wanted, 1, kDeadlineMillis) == 1;
}

std::string ReadToEnd(const UniqueFd& fd) {
  std::string text;
  char bytes[4096];
  while (Readable(fd.get())) {
    const ssize_t n = ::read(fd.get(), bytes, sizeof bytes);
    if (n <= 0) {
      break;
    }
    text.append(bytes, static_cast<std::size_t>(n));
  }
  return text;
}

ExitStatus WaitFor(WorkerProcess& process) {
  REQUIRE(Readable(process.pidfd()));
  const std::optional<ExitStatus> status = process.Poll();
  REQUIRE(status.has_value());
  return *status;
}

SpawnOptions Shell(const std::string& script) {
  SpawnOptions options;
  options.argv = {"sh", "-c", script};
  options.env = {"PATH=/usr/bin:/bin"};
  return options;
}

std::optional<StartFailure> FailureOf(const SpawnOptions& options) {
  WorkerProcess process = WorkerProcess::Spawn(options).value();
  REQUIRE(Readable(process.exec_result_fd()));
  const std::optional<StartFailure> failure = process.FinishStart();
  WaitFor(process);
  return failure;
}

TEST_CASE("a process has its own streams, folder, environment and an empty stdin", "[worker_process]") {
  const TempDir dir;
  SpawnOptions options = Shell("cat; pwd; echo \"$FRUIT ${HOME:-unset}\"; echo oops >&2; exit 7");
  options.env.push_back("FRUIT=pear");
  options.working_dir = dir.path() + "/new/work";
  WorkerProcess process = WorkerProcess::Spawn(options).value();
  CHECK(process.start_ticks() != 0);
  REQUIRE(Readable(process.exec_result_fd()));
  CHECK_FALSE(process.FinishStart().has_value());
  const UniqueFd out = process.TakeStdout();
  const UniqueFd err = process.TakeStderr();
  CHECK(ReadToEnd(out) == options.working_dir + "\npear unset\n");
  CHECK(ReadToEnd(err) == "oops\n");
  CHECK(std::get<Exited>(WaitFor(process)).code == 7);
  CHECK(std::get<Exited>(*process.Poll()).code == 7);
  CHECK(process.memory_peak_bytes() > 0);
  struct stat info {};
  REQUIRE(::stat(options.working_dir.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777U) == 0700);
}

TEST_CASE("nothing of ours leaks into a process", "[worker_process]") {
  const UniqueFd leaky(::open("/dev/null", O_RDONLY));  // Deliberately without O_CLOEXEC.
  sigset_t blocked;
  sigset_t before;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGUSR1);
  ::sigprocmask(SIG_BLOCK, &blocked, &before);
  const auto old_handler = ::signal(SIGPIPE, SIG_IGN);
  WorkerProcess process =
      WorkerProcess::Spawn(Shell("ls /proc/self/fd | wc -l; grep -E 'SigBlk|SigIgn' /proc/self/status; ulimit -c; "
                                 "test $(ulimit -n) = $(ulimit -Hn) && echo raised"))
          .value();
  ::signal(SIGPIPE, old_handler);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  const UniqueFd out = process.TakeStdout();
  // 0, 1, 2 and the folder that ls itself reads.
  CHECK(ReadToEnd(out) == "4\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n0\nraised\n");
  WaitFor(process);
}

TEST_CASE("what cannot be executed is known for certain", "[worker_process]") {
  const TempDir dir;
  SpawnOptions options = Shell("");
  options.argv = {"train"};
  auto failure = FailureOf(options);
  REQUIRE(failure.has_value());
  CHECK(failure->exit_code == 127);
  CHECK(failure->why == "exec train: no such file or directory");

  std::ofstream(dir.path() + "/train") << "#!/bin/sh\n";
  options.env = {"PATH=" + dir.path() + ":/usr/bin"};
  failure = FailureOf(options);
  REQUIRE(failure.has_value());
  CHECK(failure->exit_code == 126);
  CHECK(failure->why == "exec train: permission denied");

  std::ofstream(dir.path() + "/odd") << "#!/no/such/interpreter\n";
  std::filesystem::permissions(dir.path() + "/odd", std::filesystem::perms::owner_all);
  options.argv = {"./odd"};
  options.working_dir = dir.path();
  failure = FailureOf(options);
  REQUIRE(failure.has_value());
  CHECK(failure->exit_code == 127);
  CHECK(failure->why == "exec ./odd: no such file or directory (the file is there, its interpreter is not)");

  std::ofstream(dir.path() + "/data") << "not a program";
  std::filesystem::permissions(dir.path() + "/data", std::filesystem::perms::owner_all);
  options.argv = {"./data"};
  failure = FailureOf(options);
  REQUIRE(failure.has_value());
  CHECK(failure->exit_code == 126);
  CHECK(failure->why == "exec ./data: exec format error");

  options = Shell("exit 0");
  options.cgroup_procs = {dir.path() + "/none/cgroup.procs"};
  failure = FailureOf(options);
  REQUIRE(failure.has_value());
  CHECK(failure->exit_code == 126);
  CHECK(failure->why == "entering a cgroup: no such file or directory");
  options.argv.clear();
  CHECK(absl::IsInvalidArgument(WorkerProcess::Spawn(options).status()));
}

TEST_CASE("a process writes itself into its cgroups before it runs", "[worker_process]") {
  const TempDir dir;
  const std::string procs = dir.path() + "/cgroup.procs";
  std::ofstream(procs) << "";
  SpawnOptions options = Shell("cat " + procs);
  options.cgroup_procs = {procs};
  WorkerProcess process = WorkerProcess::Spawn(options).value();
  const UniqueFd out = process.TakeStdout();
  CHECK(ReadToEnd(out) == "0");
  WaitFor(process);
}

TEST_CASE("a signal is told as one, and a group ends with its leader", "[worker_process]") {
  WorkerProcess process = WorkerProcess::Spawn(Shell("sleep 1000 & echo $!; wait")).value();
  const UniqueFd out = process.TakeStdout();
  char bytes[32] = {};
  REQUIRE(Readable(out.get()));
  REQUIRE(::read(out.get(), bytes, sizeof bytes - 1) > 0);
  const auto child = static_cast<pid_t>(std::strtol(bytes, nullptr, 10));
  const UniqueFd child_pidfd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  REQUIRE(child_pidfd.valid());
  process.Signal(SIGTERM);
  CHECK(std::get<Signaled>(WaitFor(process)).signal == SIGTERM);
  CHECK(Readable(child_pidfd.get()));
}

TEST_CASE("destruction kills the group", "[worker_process]") {
  UniqueFd pidfd;
  pid_t pid = 0;
  {
    WorkerProcess process = WorkerProcess::Spawn(Shell("trap '' TERM; sleep 1000")).value();
    pid = process.pid();
    pidfd.Reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    WorkerProcess moved = std::move(process);
  }
  CHECK(Readable(pidfd.get()));
  CHECK(StartTicks(pid) == 0);
}

TEST_CASE("/proc says whose child a process is and what it was started with", "[proc]") {
  SpawnOptions options = Shell("sleep 1000 & echo; wait");
  options.env.push_back("MARK=a b");
  WorkerProcess process = WorkerProcess::Spawn(options).value();
  const UniqueFd out = process.TakeStdout();
  REQUIRE(Readable(out.get()));
  CHECK(ParentOf(process.pid()) == ::getpid());
  CHECK(EnvironmentOf(process.pid(), "MARK") == "a b");
  CHECK(EnvironmentOf(process.pid(), "MAR") == std::nullopt);
  const std::vector<pid_t> children = ChildrenOf(process.pid());
  REQUIRE(children.size() == 1);
  CHECK(IsSelfOrDescendant(children[0], ::getpid()));
  CHECK(IsSelfOrDescendant(process.pid(), process.pid()));
  CHECK_FALSE(IsSelfOrDescendant(process.pid(), children[0]));
  CHECK(BootId().size() == 36);
  process.Signal(SIGKILL);
  WaitFor(process);
}

}  // namespace
}  // namespace rayctl::process
