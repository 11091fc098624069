#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cli/output.h"
#include "cli/verbs.h"

// `rayctl job …`: the names that people bring from Ray, for the same verbs.
namespace rayctl::cli {
namespace {

struct Alias {
  std::string_view name;
  std::string_view verb;
  int (*run)(const Arguments&);
};

int ListJobs(const Arguments& arguments) {
  Arguments all{"jobs"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return RunList(all);
}

constexpr std::array<Alias, 5> kAliases{{
    {"submit", "submit", RunSubmit},
    {"list", "list jobs", ListJobs},
    {"status", "describe", RunDescribe},
    {"logs", "logs", RunLogs},
    {"stop", "cancel", RunCancel},
}};

}  // namespace

const std::vector<std::string>& JobVerbs() {
  static const std::vector<std::string> kVerbs = [] {
    std::vector<std::string> verbs(kAliases.size());
    std::transform(kAliases.begin(), kAliases.end(), verbs.begin(), [](const Alias& alias) { return alias.name; });
    return verbs;
  }();
  return kVerbs;
}

int RunJob(const Arguments& arguments) {
  const std::string name = arguments.empty() ? "" : arguments.front();
  for (const Alias& alias : kAliases) {
    if (alias.name == name) {
      return alias.run(Arguments(arguments.begin() + 1, arguments.end()));
    }
  }
  if (name == "--help" || name == "-h") {
    std::string text = "Jobs by the names that Ray gives the verbs\n\nUsage: rayctl job VERB [OPTIONS]\n\nVerbs:\n";
    for (const Alias& alias : kAliases) {
      text += fmt::format("  {:<8}as `rayctl {}`\n", alias.name, alias.verb);
    }
    Answer(text +
           "\n`rayctl job submit --help` tells more of each.\n\nExample:\n  rayctl job submit -- python3 train.py\n");
    return kExitDone;
  }
  return UsageError(
      fmt::format("job: expected submit, list, status, logs or stop, not '{}'{}", name, DidYouMean(name, JobVerbs())));
}

}  // namespace rayctl::cli
