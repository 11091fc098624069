#pragma once

#include "cli/command_line.h"

// Every verb that a person may type. Each gives the program's exit code.
namespace rayctl::cli {

int RunStart(const Arguments& arguments);
int RunStop(const Arguments& arguments);
int RunStatus(const Arguments& arguments);
int RunSubmit(const Arguments& arguments);
int RunWait(const Arguments& arguments);
int RunCancel(const Arguments& arguments);
int RunLogs(const Arguments& arguments);
int RunList(const Arguments& arguments);
int RunDescribe(const Arguments& arguments);
int RunToken(const Arguments& arguments);
int RunVersion(const Arguments& arguments);

// `arguments` are those after the program's name.
int RunVerb(const Arguments& arguments);

}  // namespace rayctl::cli
