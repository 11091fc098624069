#pragma once

#include <string>

#include "base/unique_fd.h"

// The end of a cluster that serves one process alone (docs/contracts.md, private clusters): its agent leaves last.
namespace rayctl::agent {

// A pidfd of the head that advertises itself in the runtime folder; invalid when there is none.
UniqueFd HeadBeside(const std::string& run_dir);

// Waits for the head to end, kills it when it does not, and removes both folders and the runtime root if nothing else
// is in it. Failures are logged: nobody is left to be told.
void RemovePrivateCluster(const UniqueFd& head, const std::string& state_dir, const std::string& run_dir);

}  // namespace rayctl::agent
