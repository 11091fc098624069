#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rayctl::agent {

// Ids of jobs begin at 1 in every cluster, so `<state dir>/jobs` belongs to one: `jobs/cluster` holds its name, and the
// folder of another cluster rests beside it as `jobs-<name>` until the node comes back there. See docs/contracts.md.

struct ClusterHints {
  std::string state_dir;
  std::string token_file;  // May be empty.
  std::string address;     // Of the head.
  bool insecure = false;
};

// The name of the cluster that an agent so started belongs to: the SHA-256 of its CA, by the token, which says where it
// is to join, else by what an earlier Join left. A cluster without a CA goes by its address, which is on this machine.
// "": nothing here says it, and the agent cannot join either.
std::string ClusterOf(const ClusterHints& hints);

// Makes `jobs` the folder of `cluster`. `end_shims` is called first where it was another's: nothing of that may run on.
absl::Status SettleJobFolders(const std::string& state_dir, const std::string& cluster,
                              const std::function<absl::Status()>& end_shims);

}  // namespace rayctl::agent
