#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/process/cgroups.h"

namespace rayctl::process {

// The cgroups of one job on this node: one for all of its processes, and one for each rank that has a memory limit.
// Nothing is made before the first rank needs it. One thread. What cannot be had (no cgroups, no right to write) is
// left out; `CgroupRemarks` says so to people.
class JobCgroup {
 public:
  // `name` begins with kCgroupPrefix and names this job of this cluster on this machine alone.
  JobCgroup(CgroupParents parents, const std::string& name);

  // All folders that it may make, for whoever cleans up when this process is killed. All processes are in the first.
  std::vector<std::string> Folders() const;

  struct Limits {
    std::uint64_t memory_bytes_max = 0;  // 0: none.
    std::uint64_t pids_max = 0;          // Of the whole job here; the first rank's counts.
  };
  // Where the process of a rank has to begin.
  struct Place {
    std::string clone_into;               // v2; empty: nowhere.
    std::vector<std::string> task_files;  // Mostly v1: the child writes "0" into these.
  };
  absl::StatusOr<Place> Enter(const std::string& rank, const Limits& limits);

  // What the kernel says of a rank that was entered. Ask before Leave.
  struct Usage {
    bool out_of_memory = false;
    std::uint64_t memory_peak_bytes = 0;  // 0: not known.
    std::uint64_t memory_bytes_max = 0;   // 0: it had no limit of the kernel's.
    std::uint64_t pids_max_reached = 0;
  };
  Usage Ask(const std::string& rank) const;

  // Kills what is left in the cgroup of this rank; true: nobody is. Without a cgroup of its own nobody is in it.
  bool KillRank(const std::string& rank);
  // Kills what is left of any rank; true: nobody is.
  bool KillAll();
  void Leave(const std::string& rank);  // Removes the cgroup of this rank; what still is in it goes with the job's.
  // Ends who is left and removes all of it. FAILED_PRECONDITION: somebody will not go.
  absl::Status Remove();

 private:
  struct Rank {
    std::string folder;  // Of its memory limit.
    std::uint64_t memory_bytes_max = 0;
  };
  absl::Status MakeJob(const Limits& limits);
  absl::StatusOr<std::string> MakeRank(const std::string& rank, std::uint64_t memory_bytes_max);

  CgroupParents parents_;
  std::string unified_;  // The job's own folders; empty: that hierarchy is not used.
  std::string memory_;
  std::string pids_;
  std::string freezer_;
  bool made_ = false;
  // By cgroup.kill, since it was made. Newer kernels (seen with 6.18) kill at birth whoever is cloned into such a
  // cgroup: they compare how often it and the parent's were killed. So it is made anew before the next rank.
  bool killed_ = false;
  bool made_memory_ = false;
  std::uint64_t pids_max_ = 0;
  std::map<std::string, Rank> ranks_;
};

}  // namespace rayctl::process
