#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/clock.h"
#include "worker/process/job_cgroup.h"
#include "worker/process/output_log.h"
#include "worker/process/worker_process.h"
#include "worker/shim/event_loop.h"
#include "worker/shim/shim.h"

namespace rayctl::shim {

// In every rank's environment: which shim and rank it belongs to, so that what left its process group is found again.
inline constexpr std::string_view kMarkVariable = "RAYCTL_SHIM_MARK";
inline constexpr std::string_view kSocketVariable = "RAYCTL_SOCKET";

// One rank's process, its pipes and its log, on the shim's loop.
class RankProcess {
 public:
  struct Deps {
    EventLoop& loop;
    const Clock& clock;
    std::function<void(Event)> deliver;    // Spawned and SpawnFailed.
    std::function<void(RankRef)> changed;  // It or its output has ended: look at ready().
    std::function<void(const std::string&)> log;
  };

  // After SpawnFailed (delivered before this returns) there is no process and nullptr comes back.
  static std::unique_ptr<RankProcess> Start(const RankRef& rank, const local::RankStart& start,
                                            const std::string& socket_path, const std::string& mark,
                                            const process::JobCgroup::Place& place, Deps deps);
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  pid_t pid() const { return process_.pid(); }
  const std::string& mark() const { return mark_; }
  void Signal(int signal) const { process_.Signal(signal); }
  // Asks the kernel whether the leader has ended; called for its pidfd and for SIGCHLD.
  void CheckLeader();
  bool leader_ended() const { return status_.has_value(); }
  bool output_open() const { return stdout_.valid() || stderr_.valid(); }
  // When its end is told although something that cannot be killed still holds its output.
  std::optional<SteadyTime> output_deadline() const { return output_deadline_; }
  // Takes what is in the pipes, closes them and says how it ended; nullopt when it never exec'd (SpawnFailed was its
  // end).
  std::optional<Exited> Finish();

 private:
  RankProcess(RankRef rank, std::string mark, process::WorkerProcess process, process::OutputLog log, Deps deps);
  absl::Status WatchAll();
  void StartKnown();
  void Pump(UniqueFd& pipe, OutputStream stream);
  bool ReadOnce(UniqueFd& pipe, OutputStream stream);  // False: nothing more now.

  RankRef rank_;
  std::string mark_;
  Deps deps_;
  process::WorkerProcess process_;
  process::OutputLog log_;
  UniqueFd stdout_;
  UniqueFd stderr_;
  bool start_known_ = false;
  bool start_failed_ = false;
  bool log_failing_ = false;
  std::optional<process::ExitStatus> status_;
  std::optional<SteadyTime> output_deadline_;
};

}  // namespace rayctl::shim
