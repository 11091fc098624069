#include <fmt/format.h>

#include "base/status_text.h"
#include "base/units.h"
#include "cli/call.h"
#include "cli/follow.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "client/json_shapes.h"

namespace rayctl::cli {

int RunWait(const Arguments& arguments) {
  CommandLine line("wait", "Wait until a job has ended and exit with its code; 124 when --timeout comes first.",
                   "rayctl wait --timeout 1h 7");
  HeadOptions options;
  std::string job;
  std::string timeout_text;
  AddHeadOptions(line, options);
  line.add_option("job", job, "Id or name of the job")->type_name("JOB")->required();
  line.add_option("--timeout", timeout_text, "How long to wait, such as 90s, 5m or 2h")->type_name("TIME");
  if (const std::optional<int> code = line.Read(arguments)) {
    return *code;
  }
  std::optional<std::chrono::nanoseconds> timeout;
  if (!timeout_text.empty()) {
    const absl::StatusOr<Duration> parsed = ParseDuration(timeout_text);
    if (!parsed.ok()) {
      return UsageError(fmt::format("wait: --timeout: {}", rayctl::Text(parsed.status())));
    }
    timeout = *parsed;
  }
  absl::StatusOr<HeadClient> head = HeadClient::Open(options);
  if (!head.ok()) {
    return Failed(head.status());
  }
  const absl::StatusOr<v1::WaitJobResponse> response = head->WaitJob(client::ParseJobRef(job), timeout);
  if (timeout && absl::IsDeadlineExceeded(response.status())) {
    Remark(fmt::format("job {} goes on after {}", job, FormatDuration(*timeout)));
    return kExitTimeout;
  }
  if (!response.ok()) {
    return Failed(response.status());
  }
  if (const std::string words = Obituary(response->job(), /*output_was_shown=*/false); !words.empty()) {
    Remark(words);
  }
  return JobExitCode(response->job());
}

}  // namespace rayctl::cli
