#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <vector>

#include "base/line_pattern.h"
#include "base/status_text.h"
#include "cli/call.h"
#include "cli/follow.h"
#include "cli/since.h"
#include "cli/verbs.h"
#include "client/json_shapes.h"

namespace rayctl::cli {

int RunLogs(const Arguments& arguments) {
  CommandLine line(
      "logs",
      "Print what the ranks of a job have written, as far as their nodes still keep it: all ranks in order "
      "of time, with -f as it comes.",
      "rayctl logs -f 7 --rank 0\n"
      "  rayctl logs digits --since 10m --grep 'loss=(nan|inf)'\n"
      "  rayctl logs 7 --attempt 0 --node gpu-03 --stderr");
  HeadOptions options;
  FollowOptions follow{.follow = false, .quiet_at_end = true};
  std::string job;
  std::string since;
  bool only_stdout = false;
  bool only_stderr = false;
  AddHeadOptions(line, options);
  line.add_option("job", job, "Id or name of the job")->type_name("JOB")->required();
  line.add_flag("-f,--follow", follow.follow, "Go on until the job has ended");
  line.add_option("--since", since,
                  "Only what was written in the last so long (30s, 10m, 2h, 1d), or from a time on "
                  "(2026-03-01T12:00:00Z)")
      ->type_name("DURATION|TIME");
  line.add_option("--grep", follow.grep,
                  "Only lines that this regular expression (RE2) finds something in; the nodes search, so the rest "
                  "crosses no network")
      ->type_name("RE");
  line.add_option("--rank", follow.ranks, "Only this rank; may be repeated")->type_name("N")->allow_extra_args(false);
  line.add_option("--node", follow.nodes, "Only ranks on this node; may be repeated")
      ->type_name("NAME")
      ->allow_extra_args(false);
  line.add_option("--attempt", follow.attempt, "This attempt (default the last); with -f, begin with it")
      ->type_name("N");
  line.add_flag("--stdout", only_stdout, "Only what was written to stdout");
  line.add_flag("--stderr", only_stderr, "Only what was written to stderr");
  if (const std::optional<int> code = line.Read(arguments)) {
    return *code;
  }
  if (!since.empty()) {
    const absl::StatusOr<WallTime> from = ParseSince(since, std::chrono::system_clock::now());
    if (!from.ok()) {
      return UsageError(fmt::format("logs: --since: {}", Text(from.status())));
    }
    follow.since = *from;
  }
  if (line.count("--grep") != 0) {
    if (follow.grep.empty()) {
      return UsageError("logs: --grep: an empty regular expression; leave --grep out to see every line");
    }
    if (const absl::StatusOr<LinePattern> pattern = LinePattern::Parse(follow.grep); !pattern.ok()) {
      return UsageError(fmt::format("logs: --grep: {}", Text(pattern.status())));
    }
  }
  if (only_stdout != only_stderr) {
    follow.streams.push_back(only_stdout ? v1::OUTPUT_STREAM_STDOUT : v1::OUTPUT_STREAM_STDERR);
  }
  absl::StatusOr<HeadClient> head = HeadClient::Open(options);
  if (!head.ok()) {
    return Failed(head.status());
  }
  const absl::StatusOr<int> followed = Follow(*head, client::ParseJobRef(job), follow);
  return followed.ok() ? kExitDone : Failed(followed.status());
}

}  // namespace rayctl::cli
