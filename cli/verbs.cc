#include "cli/verbs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cli/output.h"

namespace rayctl::cli {
namespace {

struct Verb {
  std::string_view name;
  std::string_view about;
  int (*run)(const Arguments&);
};

constexpr std::array<Verb, 15> kVerbs{{
    {"start", "Start a head on this machine, or join this machine to a cluster", RunStart},
    {"stop", "Stop everything that this user started on this machine", RunStop},
    {"status", "Show nodes, resources and jobs in a few lines", RunStatus},
    {"submit", "Run a command or a job file and follow its output", RunSubmit},
    {"run", "Run one job on a private cluster that lasts as long", RunRun},
    {"wait", "Wait until a job has ended and exit with its code", RunWait},
    {"cancel", "End a job", RunCancel},
    {"logs", "Print the output of a job", RunLogs},
    {"list", "List nodes, jobs or workers", RunList},
    {"describe", "Show all that is known of one job or node", RunDescribe},
    {"doctor", "Check this machine and its way to a head", RunDoctor},
    {"token", "Create, list and revoke tokens", RunToken},
    {"job", "The same verbs by the names that Ray gives them", RunJob},
    {"completion", "Print what makes a shell complete rayctl's words", RunCompletion},
    {"version", "Print the version of this program and of the head", RunVersion},
}};

std::string Help() {
  std::string text = "rayctl: a cluster for training and tuning models\n\nUsage: rayctl VERB [OPTIONS]\n\nVerbs:\n";
  for (const Verb& verb : kVerbs) {
    text += fmt::format("  {:<12}{}\n", verb.name, verb.about);
  }
  text +=
      "\n`rayctl VERB --help` tells more of each.\n\nExample:\n"
      "  rayctl start --head && rayctl submit -- echo hi && rayctl stop\n";
  return text;
}

}  // namespace

std::vector<std::string> VerbNames() {
  std::vector<std::string> names;
  names.reserve(kVerbs.size());
  for (const Verb& verb : kVerbs) {
    names.emplace_back(verb.name);
  }
  return names;
}

int RunVerb(const Arguments& arguments) {
  if (arguments.empty()) {
    WriteAll(2, Help());
    return kExitUsage;
  }
  const std::string& name = arguments.front();
  const Arguments rest(arguments.begin() + 1, arguments.end());
  if (name == "--help" || name == "-h" || name == "help") {
    Answer(Help());
    return kExitDone;
  }
  if (name == "--version") {
    return RunVersion(rest);
  }
  if (name == "__complete") {
    return RunComplete(rest);
  }
  for (const Verb& verb : kVerbs) {
    if (verb.name == name) {
      const int code = verb.run(rest);
      return code == kExitDone && StdoutFailed() ? kExitRefused : code;
    }
  }
  const std::vector<std::string> names = VerbNames();
  return UsageError(
      fmt::format("no such verb '{}'{}", name, Nearest(name, names) ? DidYouMean(name, names) : "; see rayctl --help"));
}

}  // namespace rayctl::cli
