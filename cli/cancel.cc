#include <fmt/format.h>

#include "cli/call.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "client/json_shapes.h"

namespace rayctl::cli {

int RunCancel(const Arguments& arguments) {
  CommandLine line("cancel", "End a job: its ranks get SIGTERM, and SIGKILL after its grace period.",
                   "rayctl cancel 7");
  HeadOptions options;
  std::string job;
  AddHeadOptions(line, options);
  line.add_option("job", job, "Id or name of the job")->type_name("JOB")->required();
  if (const std::optional<int> code = line.Read(arguments)) {
    return *code;
  }
  absl::StatusOr<HeadClient> head = HeadClient::Open(options);
  if (!head.ok()) {
    return Failed(head.status());
  }
  const absl::StatusOr<v1::CancelJobResponse> response = head->CancelJob(client::ParseJobRef(job));
  if (!response.ok()) {
    return Failed(response.status());
  }
  Answer(fmt::format("job {} {}\n", response->job_id(), client::StateName(response->state())));
  return kExitDone;
}

}  // namespace rayctl::cli
