#include "cli/submit.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <optional>

#include "base/status_text.h"
#include "cli/call.h"
#include "cli/follow.h"
#include "cli/job_request.h"
#include "cli/output.h"
#include "cli/send_folder.h"
#include "cli/verbs.h"

namespace rayctl::cli {
namespace {

struct SubmitOptions {
  HeadOptions head;
  JobOptions job;
  bool no_wait = false;
  bool fail_infeasible = false;
};

int Submit(const JobRequest& job, const SubmitOptions& options) {
  absl::StatusOr<Folder> folder = ListFolder(job.working_dir);
  if (!folder.ok()) {
    Remark(rayctl::Text(folder.status()));
    return kExitRefused;
  }
  absl::StatusOr<HeadClient> head = HeadClient::Open(options.head);
  if (!head.ok()) {
    return Failed(head.status());
  }
  v1::SubmitJobRequest request;
  request.set_request_id(NewRequestId());
  request.set_fail_infeasible(options.fail_infeasible);
  *request.mutable_spec() = job.spec;
  DetachOnInterrupt("\nrayctl: interrupted; `rayctl list jobs` shows whether the job was accepted\n");
  const absl::StatusOr<v1::SubmitJobResponse> response = SubmitWithFolder(*head, request, *folder);
  if (!response.ok()) {
    return Failed(response.status());
  }
  const std::uint64_t id = response->job_id();
  for (const std::string& remark : response->remarks()) {
    Remark(remark);
  }
  if (options.no_wait) {
    Answer(fmt::format("{}\n", id));
    return kExitDone;
  }
  DetachOnInterrupt(
      fmt::format("\nrayctl: detached; job {0} goes on. `rayctl logs -f {0}` follows it again, "
                  "`rayctl cancel {0}` ends it\n",
                  id));
  v1::JobRef ref;
  ref.set_id(id);
  const absl::StatusOr<int> code = Follow(*head, ref, {.attempt = 0});
  if (!code.ok()) {
    Remark(fmt::format("job {} was accepted, and following it ended early", id));
    return Failed(code.status());
  }
  ExitCodeIsTheJobs();
  return *code;
}

}  // namespace

std::string SubmitUsage() {
  return "rayctl submit JOB.yaml                  runs a job file: a YAML with `entrypoint`\n"
         "rayctl submit SCRIPT.py [ARGS]          runs a driver script\n"
         "rayctl submit CLUSTER.yaml SCRIPT.py    runs a script on a cluster: a YAML with `provider`\n"
         "rayctl submit [OPTIONS] -- COMMAND      runs a command\n";
}

int RunSubmit(const Arguments& arguments) {
  CommandLine line("submit", "Run a job, follow its output and exit with its code.\n\n" + SubmitUsage(),
                   "rayctl submit --num-workers 4 --cpus 2 --working-dir . -- python3 train.py --epochs 5\n"
                   "  rayctl submit train.py --epochs 5");
  SubmitOptions options;
  AddHeadOptions(line, options.head);
  AddJobOptions(line, options.job);
  line.add_flag("--no-wait", options.no_wait, "Print the job's id and return at once");
  line.add_flag("--fail-infeasible", options.fail_infeasible, "Refuse a job that no node present could ever hold");
  JobRequest job;
  if (const std::optional<int> code = ReadJobRequest(line, arguments, options.job, SubmitUsage(), job)) {
    return *code;
  }
  return Submit(job, options);
}

}  // namespace rayctl::cli
