#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "cli/call.h"
#include "cli/output.h"
#include "cli/render.h"
#include "cli/verbs.h"
#include "cli/watch.h"
#include "client/json_shapes.h"

namespace rayctl::cli {
namespace {

constexpr std::uint64_t kJobsShown = 1000;

absl::StatusOr<Shown> ListNodes(HeadClient& head) {
  absl::StatusOr<v1::ListNodesResponse> asked = head.ListNodes();
  if (!asked.ok()) {
    return asked.status();
  }
  const auto nodes = std::make_shared<const v1::ListNodesResponse>(*std::move(asked));
  return Shown{[nodes] { return NodeTable(nodes->nodes()); },
               [nodes] { return client::ListJson("nodes", nodes->nodes(), client::NodeJson); },
               {}};
}

absl::StatusOr<Shown> ListJobs(HeadClient& head, std::uint64_t limit, const std::vector<std::string>& states) {
  v1::ListJobsRequest request;
  request.set_page_size(static_cast<std::uint32_t>(std::min(limit, kJobsShown)));
  for (const std::string& name : states) {
    v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
    v1::JobState_Parse("JOB_STATE_" + name, &state);
    request.add_states(state);
  }
  absl::StatusOr<v1::ListJobsResponse> asked = head.ListJobs(request, limit);
  if (!asked.ok()) {
    return asked.status();
  }
  const auto jobs = std::make_shared<const v1::ListJobsResponse>(*std::move(asked));
  Shown shown{[jobs] { return JobTable(jobs->jobs()); },
              [jobs] { return client::ListJson("jobs", jobs->jobs(), client::JobJson); },
              {}};
  if (!jobs->next_page_token().empty()) {
    shown.remarks.push_back(fmt::format("these are the newest {}; --limit shows more", jobs->jobs_size()));
  }
  return shown;
}

absl::StatusOr<Shown> ListWorkers(HeadClient& head, const std::string& job) {
  v1::ListWorkersRequest request;
  if (!job.empty()) {
    *request.mutable_job() = client::ParseJobRef(job);
  }
  absl::StatusOr<v1::ListWorkersResponse> asked = head.ListWorkers(request);
  if (!asked.ok()) {
    return asked.status();
  }
  const auto workers = std::make_shared<const v1::ListWorkersResponse>(*std::move(asked));
  return Shown{[workers] { return WorkerTable(workers->workers()); },
               [workers] { return client::ListJson("workers", workers->workers(), client::WorkerJson); },
               {}};
}

}  // namespace

const std::vector<std::string>& ListedThings() {
  static const std::vector<std::string> kThings{"nodes", "jobs", "workers"};
  return kThings;
}

int RunList(const Arguments& arguments) {
  CommandLine line(
      "list", "List nodes, jobs (newest first) or workers (of jobs that have not ended).",
      "rayctl list jobs --state RUNNING\n  rayctl list nodes --watch\n  rayctl list workers --job 7 -o json");
  static const std::vector<std::string> kStates{"QUEUED",   "STARTING",  "RUNNING", "RECOVERING", "PREEMPTED",
                                                "STOPPING", "SUCCEEDED", "FAILED",  "CANCELLED"};
  HeadOptions options;
  Format format = Format::kText;
  Watching watching;
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
  watching.AddOption(line);
  if (const std::optional<int> code = line.Read(Watching::Separate(arguments))) {
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
  return watching.Run(format, [&]() -> absl::StatusOr<Shown> {
    if (what == "nodes") {
      return ListNodes(*head);
    }
    return what == "jobs" ? ListJobs(*head, limit, states) : ListWorkers(*head, job);
  });
}

}  // namespace rayctl::cli
