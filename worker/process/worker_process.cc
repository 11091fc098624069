#include "worker/process/worker_process.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/errno_status.h"
#include "worker/process/proc.h"

namespace rayctl::process {

namespace {

constexpr std::string_view kDefaultPath = "/usr/local/bin:/usr/bin:/bin";
constexpr int kSetupFailedExit = 126;

enum class Step : int { kSession, kDeathSignal, kCgroup, kDescriptors, kWorkingDir, kExec };

// What the child sends when it could not exec. Nothing at all (the pipe closes by exec) means that it could.
struct ChildFailure {
  Step step;
  int error;
};

// All that the child needs, made before the fork: between fork and exec nothing may allocate or lock.
struct ChildPlan {
  const SpawnOptions* options;
  std::vector<char*> argv;
  std::vector<char*> env;
  std::vector<const char*> candidates;
  int stdin_fd;
  int stdout_fd;
  int stderr_fd;
  int result_fd;
  pid_t parent;
  rlimit files;
  const char* cgroup_procs;  // Of `options->cgroup`, where the child was not born in it.
};

[[noreturn]] void Fail(int result_fd, Step step, int error) {
  const ChildFailure failure{step, error};
  // Nobody is left to tell when this fails: the parent has died.
  [[maybe_unused]] const ssize_t n = ::write(result_fd, &failure, sizeof failure);
  ::_exit(kSetupFailedExit);
}

void ResetSignals() {
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) {
    ::sigaction(number, &standard, nullptr);  // Fails for SIGKILL, SIGSTOP and libc's own, as it should.
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

void EnterCgroup(const char* procs, int result_fd) {
  const int fd = ::open(procs, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || ::write(fd, "0", 1) != 1) {  // "0" is whoever writes.
    Fail(result_fd, Step::kCgroup, errno);
  }
  ::close(fd);
}

[[noreturn]] void Child(const ChildPlan& plan) {
  const SpawnOptions& options = *plan.options;
  if (options.new_session ? ::setsid() < 0 : ::setpgid(0, 0) < 0) {
    Fail(plan.result_fd, Step::kSession, errno);
  }
  if (options.die_with_parent) {
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) < 0) {
      Fail(plan.result_fd, Step::kDeathSignal, errno);
    }
    if (::getppid() != plan.parent) {  // It died before the request was in place.
      ::_exit(kSetupFailedExit);
    }
  }
  ResetSignals();
  if (plan.cgroup_procs != nullptr) {
    EnterCgroup(plan.cgroup_procs, plan.result_fd);
  }
  for (const std::string& procs : options.cgroup_procs) {
    EnterCgroup(procs.c_str(), plan.result_fd);
  }
  ::setrlimit(RLIMIT_NOFILE, &plan.files);
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  if (!options.working_dir.empty() && ::chdir(options.working_dir.c_str()) < 0) {
    Fail(plan.result_fd, Step::kWorkingDir, errno);
  }
  if (::dup2(plan.stdin_fd, STDIN_FILENO) < 0 || ::dup2(plan.stdout_fd, STDOUT_FILENO) < 0 ||
      ::dup2(plan.stderr_fd, STDERR_FILENO) < 0) {
    Fail(plan.result_fd, Step::kDescriptors, errno);
  }
  // Whatever some library opened without close-on-exec stays here.
  ::syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  for (const int fd : options.keep_fds) {
    ::fcntl(fd, F_SETFD, 0);
  }
  int error = ENOENT;
  for (const char* candidate : plan.candidates) {
    ::execve(candidate, plan.argv.data(), plan.env.data());
    if (errno == EACCES) {
      error = EACCES;  // Another folder may have one that can be executed.
    } else if (errno != ENOENT && errno != ENOTDIR) {
      error = errno;
      break;
    }
  }
  Fail(plan.result_fd, Step::kExec, error);
}

// A child that is born in the cgroup: to move there later would stop all forks of the machine for 10 ms. -1 with
// ENOSYS: this kernel, or a filter of system calls around us, does not do it.
pid_t ForkInto(int cgroup) {
  clone_args args{};
  args.flags = CLONE_INTO_CGROUP;
  args.exit_signal = SIGCHLD;
  args.cgroup = static_cast<__u64>(cgroup);
  const auto pid = static_cast<pid_t>(::syscall(SYS_clone3, &args, sizeof args));
  if (pid < 0 && (errno == E2BIG || errno == EINVAL || errno == EPERM)) {
    errno = ENOSYS;
  }
  return pid;
}

std::vector<std::string> Candidates(const SpawnOptions& options) {
  const std::string& program = options.argv[0];
  if (program.find('/') != std::string::npos) {
    return {program};
  }
  std::string_view path = kDefaultPath;
  for (const std::string& variable : options.env) {
    if (variable.rfind("PATH=", 0) == 0) {
      path = std::string_view(variable).substr(5);
    }
  }
  std::vector<std::string> result;
  std::size_t at = 0;
  while (at <= path.size()) {
    const std::size_t end = std::min(path.find(':', at), path.size());
    const std::string_view folder = path.substr(at, end - at);
    result.push_back((folder.empty() ? std::string(".") : std::string(folder)) + "/" + program);
    at = end + 1;
  }
  return result;
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (const std::string& text : strings) {
    result.push_back(const_cast<char*>(text.c_str()));  // execve takes char* and changes nothing.
  }
  result.push_back(nullptr);
  return result;
}

absl::Status MakePipe(UniqueFd& read_end, UniqueFd& write_end) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) < 0) {
    return ErrnoStatus("making a pipe", errno);
  }
  read_end.Reset(ends[0]);
  write_end.Reset(ends[1]);
  // Descriptors 0 to 2 would be overwritten by the child's own; a caller that has closed them gets others here.
  for (UniqueFd* end : {&read_end, &write_end}) {
    if (end->get() <= STDERR_FILENO) {
      const int higher = ::fcntl(end->get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
      if (higher < 0) {
        return ErrnoStatus("making a pipe", errno);
      }
      end->Reset(higher);
    }
  }
  return absl::OkStatus();
}

absl::Status SetNonBlocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
    return ErrnoStatus("making a pipe non-blocking", errno);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MakeFolders(const std::string& path) {
  for (std::size_t at = 1; at <= path.size(); ++at) {
    if (at != path.size() && path[at] != '/') {
      continue;
    }
    const std::string part = path.substr(0, at);
    if (::mkdir(part.c_str(), 0700) < 0 && errno != EEXIST) {
      const int error = errno;
      struct stat there {};
      if (::stat(part.c_str(), &there) < 0 || !S_ISDIR(there.st_mode)) {  // A read-only parent that is there is fine.
        return ErrnoStatus("making folder " + part, error);
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<WorkerProcess> WorkerProcess::Spawn(const SpawnOptions& options) {
  if (options.argv.empty() || options.argv[0].empty()) {
    return absl::InvalidArgumentError("nothing to execute: argv is empty");
  }
  if (!options.working_dir.empty()) {
    if (absl::Status made = MakeFolders(options.working_dir); !made.ok()) {
      return made;
    }
  }
  WorkerProcess process;
  process.program_ = options.argv[0];
  process.working_dir_ = options.working_dir;
  process.candidates_ = Candidates(options);
  UniqueFd stdin_fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!stdin_fd.valid()) {
    return ErrnoStatus("opening /dev/null", errno);
  }
  UniqueFd stdout_write;
  UniqueFd stderr_write;
  UniqueFd result_write;
  if (absl::Status made = MakePipe(process.exec_result_, result_write); !made.ok()) {
    return made;
  }
  if (options.stdout_fd < 0) {
    absl::Status made = MakePipe(process.stdout_, stdout_write);
    made.Update(made.ok() ? SetNonBlocking(process.stdout_.get()) : absl::OkStatus());
    if (!made.ok()) {
      return made;
    }
  }
  if (options.stderr_fd < 0) {
    absl::Status made = MakePipe(process.stderr_, stderr_write);
    made.Update(made.ok() ? SetNonBlocking(process.stderr_.get()) : absl::OkStatus());
    if (!made.ok()) {
      return made;
    }
  }
  ChildPlan plan{};
  plan.options = &options;
  plan.argv = Pointers(options.argv);
  plan.env = Pointers(options.env);
  for (const std::string& candidate : process.candidates_) {
    plan.candidates.push_back(candidate.c_str());
  }
  plan.stdin_fd = stdin_fd.get();
  plan.stdout_fd = options.stdout_fd >= 0 ? options.stdout_fd : stdout_write.get();
  plan.stderr_fd = options.stderr_fd >= 0 ? options.stderr_fd : stderr_write.get();
  plan.result_fd = result_write.get();
  plan.parent = ::getpid();
  if (::getrlimit(RLIMIT_NOFILE, &plan.files) == 0) {
    plan.files.rlim_cur = plan.files.rlim_max;
  }

  UniqueFd cgroup;
  const std::string cgroup_procs = options.cgroup + "/cgroup.procs";
  if (!options.cgroup.empty()) {
    cgroup.Reset(::open(options.cgroup.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!cgroup.valid()) {
      return ErrnoStatus("opening cgroup " + options.cgroup, errno);
    }
  }

  // No handler of ours may run in the child before it has reset them.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pid_t pid = cgroup.valid() ? ForkInto(cgroup.get()) : -1;
  if (!cgroup.valid() || (pid < 0 && errno == ENOSYS)) {
    plan.cgroup_procs = cgroup.valid() ? cgroup_procs.c_str() : nullptr;
    pid = ::fork();
  }
  const int fork_error = errno;
  if (pid == 0) {
    Child(plan);
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) {
    return ErrnoStatus("starting a process", fork_error);
  }
  process.pid_ = pid;
  if (!options.new_session) {
    ::setpgid(pid,
              pid);  // Also here, so that a signal to the group finds it at once; fails after its exec, harmlessly.
  }
  process.pidfd_.Reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process.pidfd_.valid()) {
    return ErrnoStatus("opening a pidfd", errno);
  }
  process.start_ticks_ = StartTicks(pid);
  return process;
}

WorkerProcess::WorkerProcess(WorkerProcess&& other) noexcept { *this = std::move(other); }

WorkerProcess& WorkerProcess::operator=(WorkerProcess&& other) noexcept {
  if (this != &other) {
    KillAndReap();
    pid_ = std::exchange(other.pid_, -1);
    start_ticks_ = other.start_ticks_;
    pidfd_ = std::move(other.pidfd_);
    exec_result_ = std::move(other.exec_result_);
    stdout_ = std::move(other.stdout_);
    stderr_ = std::move(other.stderr_);
    program_ = std::move(other.program_);
    working_dir_ = std::move(other.working_dir_);
    candidates_ = std::move(other.candidates_);
    status_ = other.status_;
    memory_peak_bytes_ = other.memory_peak_bytes_;
  }
  return *this;
}

WorkerProcess::~WorkerProcess() { KillAndReap(); }

void WorkerProcess::KillAndReap() {
  if (pid_ < 0 || status_) {
    return;
  }
  ::kill(-pid_, SIGKILL);
  ::kill(pid_, SIGKILL);  // It may not have made its group yet.
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

std::optional<StartFailure> WorkerProcess::FinishStart() {
  ChildFailure failure{};
  ssize_t n = 0;
  do {
    n = ::read(exec_result_.get(), &failure, sizeof failure);
  } while (n < 0 && errno == EINTR);
  exec_result_.Reset();
  if (n != static_cast<ssize_t>(sizeof failure)) {
    return std::nullopt;  // Closed by exec, or by a signal that ended the child first; Poll tells that.
  }
  StartFailure result;
  const std::string text = ErrnoText(failure.error);
  switch (failure.step) {
    case Step::kSession:
      result.why = "making a process group: " + text;
      break;
    case Step::kDeathSignal:
      result.why = "asking to die with the parent: " + text;
      break;
    case Step::kCgroup:
      result.why = "entering a cgroup: " + text;
      break;
    case Step::kDescriptors:
      result.why = "connecting stdin, stdout and stderr: " + text;
      break;
    case Step::kWorkingDir:
      result.why = "entering " + working_dir_ + ": " + text;
      break;
    case Step::kExec: {
      result.why = "exec " + program_ + ": " + text;
      if (failure.error != ENOENT) {
        break;
      }
      result.exit_code = kNotFound;
      const bool is_path = program_.find('/') != std::string::npos;
      const std::string place =
          program_.front() == '/' || working_dir_.empty() ? program_ : working_dir_ + "/" + program_;
      if (is_path && ::access(place.c_str(), F_OK) == 0) {
        result.why += " (the file is there, its interpreter is not)";
      }
      break;
    }
  }
  return result;
}

void WorkerProcess::Signal(int signal) const {
  if (pid_ > 0 && !status_) {
    ::kill(-pid_, signal);
  }
}

std::optional<ExitStatus> WorkerProcess::Poll() {
  if (status_ || pid_ < 0) {
    return status_;
  }
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0) {
    return std::nullopt;
  }
  ::kill(-pid_, SIGKILL);
  int status = 0;
  rusage usage{};
  while (::wait4(pid_, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  memory_peak_bytes_ = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
  if (WIFSIGNALED(status)) {
    status_ = Signaled{WTERMSIG(status)};
  } else {
    status_ = Exited{WEXITSTATUS(status)};
  }
  return status_;
}

}  // namespace rayctl::process
