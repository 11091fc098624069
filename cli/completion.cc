#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cli/output.h"
#include "cli/verbs.h"

// Completion asks the program itself, `rayctl __complete WORD...`, so that it cannot say anything else than the verbs
// do.
namespace rayctl::cli {
namespace {

constexpr std::string_view kBash = R"SHELL(# Completion of rayctl in bash: source <(rayctl completion bash)
_rayctl() {
  local IFS=$'\n'
  COMPREPLY=($(compgen -W "$(rayctl __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -o bashdefault -F _rayctl rayctl
)SHELL";

constexpr std::string_view kZsh = R"SHELL(#compdef rayctl
# Completion of rayctl in zsh: source <(rayctl completion zsh)
_rayctl() {
  local -a found
  found=("${(@f)$(rayctl __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  [[ -n $found ]] && compadd -a found || _files
}
# Zsh runs an installed file as the body of the function when it is first wanted.
if [[ $funcstack[1] = _rayctl ]]; then _rayctl "$@"; else compdef _rayctl rayctl; fi
)SHELL";

constexpr std::string_view kFish = R"SHELL(# Completion of rayctl in fish: rayctl completion fish | source
complete -c rayctl -a '(rayctl __complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
)SHELL";

const std::vector<std::string>& Shells() {
  static const std::vector<std::string> kShells{"bash", "zsh", "fish"};
  return kShells;
}

// What may follow a verb, besides options.
const std::map<std::string, std::vector<std::string>>& Followers() {
  static const std::map<std::string, std::vector<std::string>> kFollowers{
      {"token", TokenVerbs()}, {"job", JobVerbs()}, {"list", ListedThings()}, {"completion", Shells()}};
  return kFollowers;
}

// Those whose first word names the verb that is meant, which has options of its own.
bool HasVerbs(const std::string& verb) { return verb == "token" || verb == "job"; }

}  // namespace

int RunCompletion(const Arguments& arguments) {
  CommandLine line("completion", "Print what makes a shell complete rayctl's verbs and options.",
                   "source <(rayctl completion bash)\n  rayctl completion fish | source");
  std::string shell;
  line.add_option("shell", shell, "bash, zsh or fish")->type_name("SHELL")->required();
  if (const std::optional<int> code = line.Read(arguments)) {
    return *code;
  }
  static const std::map<std::string, std::string_view> kScripts{{"bash", kBash}, {"fish", kFish}, {"zsh", kZsh}};
  const auto found = kScripts.find(shell);
  if (found == kScripts.end()) {
    return UsageError(
        fmt::format("completion: expected bash, zsh or fish, not '{}'{}", shell, DidYouMean(shell, Shells())));
  }
  Answer(found->second);
  return kExitDone;
}

std::vector<std::string> Complete(const Arguments& words) {
  if (words.size() <= 1) {
    return VerbNames();
  }
  const std::string& verb = words.front();
  const std::string& last = words.back();
  if (std::find(words.begin(), words.end() - 1, "--") != words.end() - 1) {
    return {};  // The command of a job: the shell knows better.
  }
  if (last.starts_with('-')) {
    std::vector<std::string> names;
    CommandLine::ListOptionsInto(&names);
    Arguments asked{verb};
    if (HasVerbs(verb) && words.size() > 2) {
      asked.push_back(words[1]);
    }
    RunVerb(asked);
    CommandLine::ListOptionsInto(nullptr);
    return names;
  }
  const auto followers = Followers().find(verb);
  return followers != Followers().end() && words.size() == 2 ? followers->second : std::vector<std::string>();
}

int RunComplete(const Arguments& arguments) {
  for (const std::string& word : Complete(arguments)) {
    Answer(word + "\n");
  }
  return kExitDone;
}

}  // namespace rayctl::cli
