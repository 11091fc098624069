#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

// cgroups in the layouts that machines have: v2 alone, v1 alone, v1 with a v2 mount beside it (hybrid), none, or none
// that we may write.
namespace rayctl::process {

inline constexpr std::string_view kCgroupPrefix = "rayctl-";  // Of the folder of every job.

// Of the cgroup in which a service manager puts the agent alone (DelegateSubgroup= of its unit), so that the one above
// it, which was given to this user, can hand its controllers to the jobs beside the agent.
inline constexpr std::string_view kAgentCgroup = "agent";

// The folders of this process, as the kernel names them. Empty: that hierarchy is not mounted here, or what is mounted
// does not hold this process.
struct CgroupLayout {
  std::string unified;        // v2.
  std::string unified_mount;  // How far up `unified` has parents that we can see.
  std::string memory;         // v1, and likewise the next two.
  std::string pids;
  std::string freezer;
  std::string cpu;
};
// Of /proc/self/mountinfo and /proc/self/cgroup. Pure.
CgroupLayout ParseCgroupLayout(std::string_view mountinfo, std::string_view own_cgroups);
CgroupLayout ReadCgroupLayout();

// Where jobs get cgroups of their own; empty: not for this purpose.
struct CgroupParents {
  std::string unified;  // Everything of a job is under it, for tracking and ending.
  bool unified_memory = false;
  bool unified_pids = false;
  std::string memory;   // v1.
  std::string pids;     // v1.
  std::string freezer;  // v1, only where neither of `unified` and `pids` is there to end a job by.

  bool LimitsMemory() const { return unified_memory || !memory.empty(); }
  bool LimitsPids() const { return unified_pids || !pids.empty(); }
  bool Tracks() const { return !unified.empty() || !pids.empty() || !freezer.empty(); }
};
// Where this process is in a kAgentCgroup of v2, turns the memory and process controllers on for those beside it. OK:
// they are on, or that is not how it was started. FAILED_PRECONDITION: others are in the cgroup above, which therefore
// cannot hand on anything.
absl::Status HandOnControllers(const CgroupLayout& layout);
// Asks the file system what may be written. In v2 the nearest folder upwards that gives its children the memory and
// process controllers, else the nearest that can be written at all.
CgroupParents FindCgroupParents(const CgroupLayout& layout);
// How many CPUs' time this process may use at most, by the quotas of its folder and of those above it that can be seen;
// nullopt: no quota.
std::optional<double> CpuQuota(const CgroupLayout& layout);
// What a person should know of this node, a sentence each; nothing where all can be had.
std::vector<std::string> CgroupRemarks(const CgroupParents& parents);

// ---- One cgroup folder.

// The number after `key` in a file of lines "key number", such as memory.events.
std::optional<std::uint64_t> CgroupCounter(const std::string& file, std::string_view key);
// A file that holds one number.
std::optional<std::uint64_t> CgroupNumber(const std::string& file);
absl::Status WriteCgroupFile(const std::string& file, std::string_view value);
// Everybody in the folder and below it. Empty also when the folder is gone.
std::vector<pid_t> CgroupProcesses(const std::string& folder);
// SIGKILL to everybody in it and below, those that fork meanwhile included. Does not wait for their end.
void KillCgroup(const std::string& folder);
// Removes it with what is below. FAILED_PRECONDITION: somebody is still in it.
absl::Status RemoveCgroup(const std::string& folder);
// Kills, waits until they have ended (at most 2 s) and removes. INVALID_ARGUMENT: not a job's folder.
absl::Status EndCgroup(const std::string& folder);

}  // namespace rayctl::process
