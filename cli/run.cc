#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/folders.h"
#include "base/status_text.h"
#include "base/unique_fd.h"
#include "cli/call.h"
#include "cli/follow.h"
#include "cli/job_request.h"
#include "cli/output.h"
#include "cli/send_folder.h"
#include "cli/starter.h"
#include "cli/stop.h"
#include "cli/verbs.h"
#include "client/endpoint.h"

namespace rayctl::cli {
namespace {

struct RunOptions {
  JobOptions job;
  std::optional<double> num_cpus;
  std::optional<double> num_gpus;
};

// A new folder of this user alone, removed at the end.
class PrivateFolder {
 public:
  static absl::StatusOr<PrivateFolder> Make() {
    std::error_code error;
    const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
    if (error) {
      return absl::FailedPreconditionError(fmt::format("the folder for temporary files (TMPDIR): {}", error.message()));
    }
    std::string path = (parent / "rayctl-run-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) {
      return absl::UnavailableError(fmt::format("making a folder in {}: {}", parent.string(), std::strerror(errno)));
    }
    return PrivateFolder(std::move(path));
  }
  ~PrivateFolder() { Remove(); }
  PrivateFolder(PrivateFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;
  PrivateFolder& operator=(PrivateFolder&&) = delete;

  const std::string& path() const { return path_; }
  void Remove() {
    const std::string path = std::exchange(path_, {});
    if (path.empty()) {
      return;
    }
    if (const absl::Status removed = RemoveTree(path); !removed.ok()) {
      Remark(rayctl::Text(removed));
    }
  }

 private:
  explicit PrivateFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// Beside the thread that follows the job: Ctrl-C cancels the job, a second one ends this program, and with it its
// cluster, at once; so does the end of a daemon, without which there would be nothing to wait for.
class Guard {
 public:
  // `clear_away` ends what is left of the cluster.
  Guard(const Starter& cluster, HeadOptions head, std::uint64_t job, std::function<void()> clear_away)
      : cluster_(cluster),
        head_(std::move(head)),
        job_(job),
        clear_away_(std::move(clear_away)),
        done_(::eventfd(0, EFD_CLOEXEC)),
        thread_([this] { Watch(); }) {}
  ~Guard() {
    const std::uint64_t one = 1;
    // An eventfd takes eight bytes or the program is wrong.
    if (::write(done_.get(), &one, sizeof(one)) != static_cast<ssize_t>(sizeof(one))) {
      std::abort();
    }
    thread_.join();
  }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  void Watch() {
    bool cancelled = false;
    while (true) {
      std::array<pollfd, 4> fds{{{done_.get(), POLLIN, 0},
                                 {cluster_.interrupt_fd(), POLLIN, 0},
                                 {cluster_.head().pidfd.get(), POLLIN, 0},
                                 {cluster_.agent().pidfd.get(), POLLIN, 0}}};
      if (::poll(fds.data(), fds.size(), -1) < 0) {
        continue;  // EINTR; nothing else is possible with these.
      }
      if (fds[0].revents != 0) {
        return;
      }
      if (fds[2].revents != 0 || fds[3].revents != 0) {
        Remark(fmt::format("the {} of this run has ended, and the job with it",
                           fds[2].revents != 0 ? cluster_.head().verb : cluster_.agent().verb));
        clear_away_();
        ::_exit(kExitRefused);
      }
      if (fds[1].revents != 0) {
        signalfd_siginfo taken{};
        if (::read(cluster_.interrupt_fd(), &taken, sizeof(taken)) < 0 || std::exchange(cancelled, true)) {
          ::_exit(kExitInterrupted);
        }
        Cancel();
      }
    }
  }

  void Cancel() const {
    Remark(fmt::format("job {} is being cancelled; Ctrl-C again ends it at once", job_));
    absl::StatusOr<HeadClient> head = HeadClient::Open(head_);
    v1::JobRef job;
    job.set_id(job_);
    const absl::Status cancelled = head.ok() ? head->CancelJob(job).status() : head.status();
    if (!cancelled.ok()) {
      Remark(rayctl::Text(cancelled));
    }
  }

  const Starter& cluster_;
  const HeadOptions head_;
  const std::uint64_t job_;
  const std::function<void()> clear_away_;
  const UniqueFd done_;
  std::thread thread_;
};

// The job's exit code, once it has ended.
int RunOn(const Starter& cluster, const JobRequest& job, const Folder& folder,
          const std::function<void()>& clear_away) {
  const HeadOptions where{.address = cluster.head_address(), .token_file = cluster.state_dir() + "/head/admin-token"};
  absl::StatusOr<HeadClient> head = HeadClient::Open(where);
  if (!head.ok()) {
    return Failed(head.status());
  }
  v1::SubmitJobRequest request;
  request.set_request_id(NewRequestId());
  request.set_fail_infeasible(true);  // No other node will ever come.
  *request.mutable_spec() = job.spec;
  const absl::StatusOr<v1::SubmitJobResponse> response = SubmitWithFolder(*head, request, folder);
  if (!response.ok()) {
    return Failed(response.status());
  }
  for (const std::string& remark : response->remarks()) {
    Remark(remark);
  }
  const Guard guard(cluster, where, response->job_id(), clear_away);
  v1::JobRef ref;
  ref.set_id(response->job_id());
  const absl::StatusOr<int> code = Follow(*head, ref, {.attempt = 0});
  if (!code.ok()) {
    return Failed(code.status());
  }
  ExitCodeIsTheJobs();
  return *code;
}

int RunInPrivate(const JobRequest& job, const RunOptions& options) {
  // Before a cluster is started for it.
  const absl::StatusOr<Folder> folder = ListFolder(job.working_dir);
  if (!folder.ok()) {
    Remark(rayctl::Text(folder.status()));
    return kExitRefused;
  }
  absl::StatusOr<PrivateFolder> state = PrivateFolder::Make();
  if (!state.ok()) {
    Remark(rayctl::Text(state.status()));
    return kExitRefused;
  }
  const client::EndpointSettings settings = client::SettingsFromEnvironment();
  StartOptions start;
  start.head = true;
  start.is_private = true;
  start.host = "127.0.0.1";
  start.port = 0;
  start.dashboard_port = 0;
  start.num_cpus = options.num_cpus;
  start.num_gpus = options.num_gpus;
  start.state_dir = state->path();
  Starter cluster(std::move(start), settings);
  if (const absl::Status started = cluster.Start(); !started.ok()) {
    return StartFailed(started);
  }
  const auto clear_away = [&] {
    StopDaemons(
        settings, [&](const std::string& run_dir) { return run_dir == cluster.run_dir(); }, Say::kProblems);
    state->Remove();
  };
  const int code = RunOn(cluster, job, *folder, clear_away);
  clear_away();
  return code;
}

std::string RunUsage() {
  return "rayctl run JOB.yaml                  runs a job file: a YAML with `entrypoint`\n"
         "rayctl run SCRIPT.py [ARGS]          runs a driver script\n"
         "rayctl run [OPTIONS] -- COMMAND      runs a command\n";
}

}  // namespace

int RunRun(const Arguments& arguments) {
  CommandLine line("run",
                   "Run one job on a private cluster on this machine, which is gone once the job or this program has "
                   "ended. Follows the output and exits with the job's code; Ctrl-C cancels.\n\n" +
                       RunUsage(),
                   "rayctl run --num-workers 2 --working-dir . -- python3 train.py --epochs 5\n"
                   "  rayctl run train.py --epochs 5");
  RunOptions options;
  AddJobOptions(line, options.job);
  const CLI::Range amount(0.0, 1e6);
  line.add_option("--num-cpus", options.num_cpus, "CPUs that the cluster has (default those of this machine)")
      ->type_name("N")
      ->check(amount);
  line.add_option("--num-gpus", options.num_gpus, "GPUs that the cluster has (default those of this machine)")
      ->type_name("N")
      ->check(amount);
  JobRequest job;
  if (const std::optional<int> code = ReadJobRequest(line, arguments, options.job, RunUsage(), job)) {
    return *code;
  }
  return RunInPrivate(job, options);
}

}  // namespace rayctl::cli
