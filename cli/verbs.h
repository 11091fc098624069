#pragma once

#include "cli/command_line.h"

// Every verb that a person may type. Each gives the program's exit code.
namespace rayctl::cli {

int RunStart(const Arguments& arguments);
int RunStop(const Arguments& arguments);
int RunStatus(const Arguments& arguments);
int RunRun(const Arguments& arguments);
int RunSubmit(const Arguments& arguments);
int RunWait(const Arguments& arguments);
int RunCancel(const Arguments& arguments);
int RunLogs(const Arguments& arguments);
int RunList(const Arguments& arguments);
int RunDescribe(const Arguments& arguments);
int RunDoctor(const Arguments& arguments);
int RunToken(const Arguments& arguments);
int RunVersion(const Arguments& arguments);
int RunJob(const Arguments& arguments);
int RunCompletion(const Arguments& arguments);
// What a shell's completion asks; in no help.
int RunComplete(const Arguments& arguments);

std::vector<std::string> VerbNames();
// What may stand behind these verbs.
const std::vector<std::string>& ListedThings();
const std::vector<std::string>& TokenVerbs();
const std::vector<std::string>& JobVerbs();
// What may stand where the last of `words` (those after the program's name) is being typed; that word is not looked at
// but for a '-' at its begin. Empty: files, if anything.
std::vector<std::string> Complete(const Arguments& words);

// `arguments` are those after the program's name.
int RunVerb(const Arguments& arguments);

}  // namespace rayctl::cli
