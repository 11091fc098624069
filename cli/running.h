#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace rayctl::cli {

// A head, agent or shim, by the words that it was started with.
struct RunningProgram {
  std::string verb;  // "head", "agent", "shim".
  pid_t pid = 0;
  std::uint64_t start_ticks = 0;
  std::string state_dir;
  std::string run_dir;
  std::string node_name;  // Of an agent.
};

// One process by its command line; an empty verb: none of ours.
RunningProgram ReadProgram(const std::vector<std::string>& words);

// What this user runs of rayctl, in this view of the file system and of processes: a container's programs are its own.
// Asks /proc, so what was removed from /tmp hides nobody.
std::vector<RunningProgram> FindPrograms();

}  // namespace rayctl::cli
