#include "worker/process/job_cgroup.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/errno_status.h"

namespace rayctl::process {

namespace {

constexpr mode_t kCgroupMode = 0755;
// In v1 a thread that moves itself takes no lock of the whole machine; a write to cgroup.procs takes 10 ms.
constexpr std::string_view kTasksFile = "/tasks";
constexpr std::string_view kProcsFile = "/cgroup.procs";

absl::Status MakeFolder(const std::string& folder) {
  if (::mkdir(folder.c_str(), kCgroupMode) < 0 && errno != EEXIST) {
    return ErrnoStatus("making cgroup " + folder, errno);
  }
  return absl::OkStatus();
}

std::string Below(const std::string& parent, const std::string& name) {
  return parent.empty() ? std::string() : parent + "/" + name;
}

// Ignores a file that this kernel does not have.
absl::Status WriteWherePresent(const std::string& file, std::string_view value) {
  return ::access(file.c_str(), F_OK) == 0 ? WriteCgroupFile(file, value) : absl::OkStatus();
}

}  // namespace

JobCgroup::JobCgroup(CgroupParents parents, const std::string& name)
    : parents_(std::move(parents)),
      unified_(Below(parents_.unified, name)),
      memory_(Below(parents_.memory, name)),
      pids_(Below(parents_.pids, name)),
      freezer_(Below(parents_.freezer, name)) {}

std::vector<std::string> JobCgroup::Folders() const {
  std::vector<std::string> folders;
  for (const std::string& folder : {unified_, pids_, freezer_, memory_}) {
    if (!folder.empty()) {
      folders.push_back(folder);
    }
  }
  return folders;
}

absl::Status JobCgroup::MakeJob(const Limits& limits) {
  if (made_) {
    return absl::OkStatus();
  }
  for (const std::string& folder : {unified_, pids_, freezer_}) {
    if (folder.empty()) {
      continue;
    }
    if (absl::Status made = MakeFolder(folder); !made.ok()) {
      return made;
    }
  }
  const std::string& limiting = parents_.unified_pids ? unified_ : pids_;
  if (limits.pids_max != 0 && !limiting.empty()) {
    if (absl::Status set = WriteCgroupFile(limiting + "/pids.max", std::to_string(limits.pids_max)); !set.ok()) {
      return set;
    }
    pids_max_ = limits.pids_max;
  }
  made_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::string> JobCgroup::MakeRank(const std::string& rank, std::uint64_t memory_bytes_max) {
  const std::string bytes = std::to_string(memory_bytes_max);
  if (parents_.unified_memory) {
    // v2 lets processes be in the leaves only, once children have controllers.
    if (absl::Status given = WriteCgroupFile(unified_ + "/cgroup.subtree_control", "+memory"); !given.ok()) {
      return given;
    }
    std::string folder = Below(unified_, rank);
    absl::Status made = MakeFolder(folder);
    made.Update(made.ok() ? WriteCgroupFile(folder + "/memory.max", bytes) : absl::OkStatus());
    made.Update(made.ok() ? WriteWherePresent(folder + "/memory.swap.max", "0") : absl::OkStatus());
    made.Update(made.ok() ? WriteWherePresent(folder + "/memory.oom.group", "1") : absl::OkStatus());
    return made.ok() ? absl::StatusOr<std::string>(std::move(folder)) : made;
  }
  absl::Status made = made_memory_ ? absl::OkStatus() : MakeFolder(memory_);
  made_memory_ = made.ok();
  std::string folder = Below(memory_, rank);
  made.Update(made.ok() ? MakeFolder(folder) : absl::OkStatus());
  made.Update(made.ok() ? WriteCgroupFile(folder + "/memory.limit_in_bytes", bytes) : absl::OkStatus());
  // Memory and swap together: without it the rank would only be slow.
  made.Update(made.ok() ? WriteWherePresent(folder + "/memory.memsw.limit_in_bytes", bytes) : absl::OkStatus());
  return made.ok() ? absl::StatusOr<std::string>(std::move(folder)) : made;
}

absl::StatusOr<JobCgroup::Place> JobCgroup::Enter(const std::string& rank, const Limits& limits) {
  if (!made_ || killed_) {
    // One that was left behind counts as killed: whoever left it may have ended what was in it so.
    const bool stays = !unified_.empty() && ::access(unified_.c_str(), F_OK) == 0 && !RemoveCgroup(unified_).ok();
    killed_ = stays;
    made_ = false;
  }
  if (absl::Status made = MakeJob(limits); !made.ok()) {
    return made;
  }
  Place place;
  if (killed_) {
    // Somebody is still in it, so it is not to be had anew; whoever walks in lives.
    place.task_files.push_back(unified_ + std::string(kProcsFile));
  } else {
    place.clone_into = unified_;
  }
  for (const std::string& folder : {pids_, freezer_}) {
    if (!folder.empty()) {
      place.task_files.push_back(folder + std::string(kTasksFile));
    }
  }
  if (limits.memory_bytes_max == 0 || !parents_.LimitsMemory()) {
    return place;
  }
  absl::StatusOr<std::string> folder = MakeRank(rank, limits.memory_bytes_max);
  if (!folder.ok()) {
    return folder.status();
  }
  if (parents_.unified_memory) {
    place = Place{.clone_into = *folder, .task_files = {}};  // New, whatever befell the one above it.
    for (const std::string& tasks : {pids_, freezer_}) {
      if (!tasks.empty()) {
        place.task_files.push_back(tasks + std::string(kTasksFile));
      }
    }
  } else {
    place.task_files.push_back(*folder + std::string(kTasksFile));
  }
  ranks_[rank] = {*std::move(folder), limits.memory_bytes_max};
  return place;
}

JobCgroup::Usage JobCgroup::Ask(const std::string& rank) const {
  Usage usage;
  const std::string& limiting = parents_.unified_pids ? unified_ : pids_;
  if (pids_max_ != 0 && CgroupCounter(limiting + "/pids.events", "max").value_or(0) != 0) {
    usage.pids_max_reached = pids_max_;
  }
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) {
    return usage;
  }
  const std::string& folder = found->second.folder;
  const char* const counters = parents_.unified_memory ? "/memory.events" : "/memory.oom_control";
  const char* const peak = parents_.unified_memory ? "/memory.peak" : "/memory.max_usage_in_bytes";
  usage.memory_bytes_max = found->second.memory_bytes_max;
  usage.out_of_memory = CgroupCounter(folder + counters, "oom_kill").value_or(0) != 0;
  usage.memory_peak_bytes = CgroupNumber(folder + peak).value_or(0);
  return usage;
}

bool JobCgroup::KillRank(const std::string& rank) {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end() || CgroupProcesses(found->second.folder).empty()) {
    return true;
  }
  KillCgroup(found->second.folder);
  return CgroupProcesses(found->second.folder).empty();
}

bool JobCgroup::KillAll() {
  const std::vector<std::string> folders = made_ ? Folders() : std::vector<std::string>();
  if (folders.empty() || CgroupProcesses(folders.front()).empty()) {  // Whoever is in one of them is in the first.
    return true;
  }
  KillCgroup(folders.front());
  killed_ = !unified_.empty();
  return CgroupProcesses(folders.front()).empty();
}

void JobCgroup::Leave(const std::string& rank) {
  const auto found = ranks_.find(rank);
  if (found != ranks_.end() && RemoveCgroup(found->second.folder).ok()) {
    ranks_.erase(found);
  }
}

absl::Status JobCgroup::Remove() {
  absl::Status status;
  if (made_) {
    for (const std::string& folder : Folders()) {
      absl::Status removed = RemoveCgroup(folder);
      status.Update(removed.ok() ? removed : EndCgroup(folder));
    }
  }
  return status;
}

}  // namespace rayctl::process
