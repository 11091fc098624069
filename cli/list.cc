#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/call.h"
#include "cli/output.h"
#include "cli/render.h"
#include "cli/verbs.h"
#include "client/json_shapes.h"

namespace rayctl::cli {
namespace {

constexpr std::uint64_t kJobsShown = 1000;

int ListNodes(HeadClient& head, Format format) {
  const absl::StatusOr<v1::ListNodesResponse> response = head.ListNodes();
  if (!response.ok()) {
    return Failed(response.status());
  }
  format == Format::kText ? Answer(NodeTable(response->nodes()))
                          : AnswerObject(client::ListJson("nodes", response->nodes(), client::NodeJson), format);
  return kExitDone;
}

int ListJobs(HeadClient& head, Format format, std::uint64_t limit, const std::vector<std::string>& states) {
  v1::ListJobsRequest request;
  request.set_page_size(static_cast<std::uint32_t>(std::min(limit, kJobsShown)));
  for (const std::string& name : states) {
    v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
    v1::JobState_Parse("JOB_STATE_" + name, &state);
    request.add_states(state);
  }
  const absl::StatusOr<v1::ListJobsResponse> response = head.ListJobs(request, limit);
  if (!response.ok()) {
    return Failed(response.status());
  }
  format == Format::kText ? Answer(JobTable(response->jobs()))
                          : AnswerObject(client::ListJson("jobs", response->jobs(), client::JobJson), format);
  if (!response->next_page_token().empty()) {
    Remark(fmt::format("these are the newest {}; --limit shows more", response->jobs_size()));
  }
  return kExitDone;
}

int ListWorkers(HeadClient& head, Format format, const std::string& job) {
  v1::ListWorkersRequest request;
  if (!job.empty()) {
    *request.mutable_job() = client::ParseJobRef(job);
  }
  const absl::StatusOr<v1::ListWorkersResponse> response = head.ListWorkers(request);
  if (!response.ok()) {
    return Failed(response.status());
  }
  format == Format::kText ? Answer(WorkerTable(response->workers()))
                          : AnswerObject(client::ListJson("workers", response->workers(), client::WorkerJson), format);
  return kExitDone;
}

}  // namespace

const std::vector<std::string>& ListedThings() {
  static const std::vector<std::string> kThings{"nodes", "jobs", "workers"};
  return kThings;
}

int RunList(const Arguments& arguments) {
  CommandLine line("list", "List nodes, jobs (newest first) or workers (of jobs that have not ended).",
                   "rayctl list jobs --state RUNNING\n  rayctl list workers --job 7 -o json");
  static const std::vector<std::string> kStates{"QUEUED",   "STARTING",  "RUNNING", "RECOVERING", "PREEMPTED",
                                                "STOPPING", "SUCCEEDED", "FAILED",  "CANCELLED"};
  HeadOptions options;
  Format format = Format::kText;
  std::string what;
  std::string job;
  std::uint64_t limit = kJobsShown;
  std::vector<std::string> states;
  AddHeadOptions(line, options);
  line.add_option("what", what, "nodes, jobs or workers")->type_name("WHAT")->required();
  line.add_option("--job", job, "workers: of this job only")->type_name("JOB");
  line.add_option("--limit", limit, "jobs: at most so many (default 1000)")
      ->type_name("N")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1'000'000'000}));
  line.add_option("--state", states, "jobs: in this state only; may be repeated")
      ->type_name("STATE")
      ->allow_extra_args(false);
  AddFormatOption(line, format);
  if (const std::optional<int> code = line.Read(arguments)) {
    return *code;
  }
  const std::vector<std::string>& things = ListedThings();
  if (std::find(things.begin(), things.end(), what) == things.end()) {
    return UsageError(fmt::format("list: expected nodes, jobs or workers, not '{}'{}", what, DidYouMean(what, things)));
  }
  if ((!job.empty() && what != "workers") || (!states.empty() && what != "jobs")) {
    return UsageError(fmt::format("list: {} does not go with {}", job.empty() ? "--state" : "--job", what));
  }
  for (const std::string& state : states) {
    if (std::find(kStates.begin(), kStates.end(), state) == kStates.end()) {
      return UsageError(fmt::format("list: --state: no such state '{}'{}", state, DidYouMean(state, kStates)));
    }
  }
  absl::StatusOr<HeadClient> head = HeadClient::Open(options);
  if (!head.ok()) {
    return Failed(head.status());
  }
  if (what == "nodes") {
    return ListNodes(*head, format);
  }
  return what == "jobs" ? ListJobs(*head, format, limit, states) : ListWorkers(*head, format, job);
}

}  // namespace rayctl::cli
