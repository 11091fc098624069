#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "worker/process/exit_status.h"

namespace rayctl::process {

struct SpawnOptions {
  std::vector<std::string> argv;          // argv[0] without a slash is looked up in the PATH of `env`.
  std::vector<std::string> env;           // KEY=VALUE, the whole environment.
  std::string working_dir;                // Made if absent (0700); empty: the caller's.
  std::string cgroup;                     // A folder of v2 that the child begins in; empty: the caller's.
  std::vector<std::string> cgroup_procs;  // The child writes itself into these before exec.
  int stdout_fd = -1;                     // Given instead of a pipe of our own.
  int stderr_fd = -1;
  std::vector<int> keep_fds;    // Kept open across exec beside 0, 1 and 2.
  bool new_session = false;     // setsid instead of setpgid.
  bool die_with_parent = true;  // SIGKILL when the thread that spawned it ends.
};

struct StartFailure {
  int exit_code = kNotExecutable;
  std::string why;  // "exec train: no such file or directory".
};

// One process, the group that it leads and what it wrote. Destruction kills the group at once and reaps the leader, so
// no return path leaves a GPU held. Movable. One thread at a time; with die_with_parent the spawning thread must live
// on.
class WorkerProcess {
 public:
  // Forks. Whether exec worked is known when exec_result_fd() becomes readable. RESOURCE_EXHAUSTED: no process or
  // descriptor to be had; other codes say what could not be prepared.
  static absl::StatusOr<WorkerProcess> Spawn(const SpawnOptions& options);

  WorkerProcess(WorkerProcess&& other) noexcept;
  WorkerProcess& operator=(WorkerProcess&& other) noexcept;
  ~WorkerProcess();

  pid_t pid() const { return pid_; }
  std::uint64_t start_ticks() const { return start_ticks_; }
  int pidfd() const { return pidfd_.get(); }                 // Readable once the leader has ended.
  int exec_result_fd() const { return exec_result_.get(); }  // Readable once it has exec'd or could not; then -1.
  UniqueFd TakeStdout() { return std::move(stdout_); }       // Non-blocking; invalid when a descriptor was given.
  UniqueFd TakeStderr() { return std::move(stderr_); }

  // Waits for exec_result_fd(), which is at most the time that exec takes. nullopt: it has exec'd.
  std::optional<StartFailure> FinishStart();

  // To the whole group. Harmless when nobody is left.
  void Signal(int signal) const;

  // Reaps the leader if it has ended; before that, everybody else of its group is killed: while the leader is not
  // reaped nobody else can have its group's number. Once it has ended, the same answer every time.
  std::optional<ExitStatus> Poll();
  std::uint64_t memory_peak_bytes() const { return memory_peak_bytes_; }  // Of the leader, once it is reaped.

 private:
  WorkerProcess() = default;
  void KillAndReap();

  pid_t pid_ = -1;
  std::uint64_t start_ticks_ = 0;
  UniqueFd pidfd_;
  UniqueFd exec_result_;
  UniqueFd stdout_;
  UniqueFd stderr_;
  std::string program_;
  std::string working_dir_;
  std::vector<std::string> candidates_;
  std::optional<ExitStatus> status_;
  std::uint64_t memory_peak_bytes_ = 0;
};

// mkdir -p: every folder that is missing, 0700.
absl::Status MakeFolders(const std::string& path);

}  // namespace rayctl::process
