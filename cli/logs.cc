#include <CLI/CLI.hpp>
#include <vector>

#include "cli/call.h"
#include "cli/follow.h"
#include "cli/verbs.h"
#include "client/json_shapes.h"

namespace rayctl::cli {

int RunLogs(const Arguments& arguments) {
  CommandLine line("logs", "Print what the ranks of a job have written, as far as the nodes still keep it.",
                   "rayctl logs -f 7 --rank 0");
  HeadOptions options;
  FollowOptions follow{.follow = false, .quiet_at_end = true};
  std::string job;
  AddHeadOptions(line, options);
  line.add_option("job", job, "Id or name of the job")->type_name("JOB")->required();
  line.add_flag("-f,--follow", follow.follow, "Go on until the job has ended");
  line.add_option("--rank", follow.ranks, "Only this rank; may be repeated")->type_name("N")->allow_extra_args(false);
  line.add_option("--attempt", follow.attempt, "Begin with this attempt (default the last)")->type_name("N");
  if (const std::optional<int> code = line.Read(arguments)) {
    return *code;
  }
  absl::StatusOr<HeadClient> head = HeadClient::Open(options);
  if (!head.ok()) {
    return Failed(head.status());
  }
  const absl::StatusOr<int> followed = Follow(*head, client::ParseJobRef(job), follow);
  return followed.ok() ? kExitDone : Failed(followed.status());
}

}  // namespace rayctl::cli
