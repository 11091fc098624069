#include "worker/process/cgroups.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>

#include "base/clock.h"
#include "base/errno_status.h"
#include "base/unique_fd.h"
#include "worker/process/proc.h"

namespace rayctl::process {

namespace {

constexpr std::chrono::milliseconds kCgroupEndWait{2000};
// Killing gives up after so many looks at a folder whose processes fork faster than they can be found.
constexpr int kKillLooksMax = 1000;
constexpr int kDepthMax = 32;  // Of folders that ranks made below their own.

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  std::size_t at = 0;
  while (at <= text.size()) {
    const std::size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

bool Lists(std::string_view list, char separator, std::string_view word) {
  const std::vector<std::string_view> words = Split(list, separator);
  return std::find(words.begin(), words.end(), word) != words.end();
}

// mountinfo writes blanks, tabs, ends of line and backslashes as \ooo.
std::string Unescaped(std::string_view text) {
  constexpr std::size_t kDigits = 3;
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '\\' && i + kDigits < text.size() &&
        std::from_chars(digits, digits + kDigits, value, 8).ptr == digits + kDigits) {
      plain.push_back(static_cast<char>(value));
      i += kDigits;
    } else {
      plain.push_back(text[i]);
    }
  }
  return plain;
}

struct Mount {
  std::string root;   // What of the hierarchy is mounted.
  std::string point;  // Where.
  std::string type;
  std::string options;
};

// "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:1 - cgroup cgroup rw,cpu".
std::optional<Mount> ParseMount(std::string_view line) {
  constexpr std::size_t kRoot = 3;
  constexpr std::size_t kPoint = 4;
  const std::vector<std::string_view> words = Split(line, ' ');
  const auto dash = std::find(words.begin(), words.end(), "-");
  if (words.size() <= kPoint || words.end() - dash < 4) {
    return std::nullopt;
  }
  return Mount{Unescaped(words[kRoot]), Unescaped(words[kPoint]), std::string(dash[1]), std::string(dash[3])};
}

// The folder in which the kernel's path `own` is seen; empty: it is outside what is mounted.
std::string Folder(const Mount& mount, std::string_view own) {
  if (own.find("/..") != std::string_view::npos) {
    return "";  // Of a cgroup namespace that this process has left.
  }
  if (mount.root != "/") {
    if (own.substr(0, mount.root.size()) != mount.root ||
        (own.size() > mount.root.size() && own[mount.root.size()] != '/')) {
      return "";
    }
    own.remove_prefix(mount.root.size());
  }
  return own == "/" || own.empty() ? mount.point : mount.point + std::string(own);
}

bool MayMakeIn(const std::string& folder) {
  // cgroup.procs of the common parent must be writable to move a process between two of its children.
  return !folder.empty() && ::access(folder.c_str(), W_OK | X_OK) == 0 &&
         ::access((folder + "/cgroup.procs").c_str(), W_OK) == 0;
}

std::string Text(const std::string& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char bytes[1024];
  ssize_t n = 0;
  while (fd.valid() && (n = ::read(fd.get(), bytes, sizeof bytes)) > 0) {
    text.append(bytes, static_cast<std::size_t>(n));
  }
  while (!text.empty() && text.back() == '\n') {
    text.pop_back();
  }
  return text;
}

std::vector<std::string> FoldersIn(const std::string& folder) {
  std::vector<std::string> result;
  DIR* dir = ::opendir(folder.c_str());
  if (dir == nullptr) {
    return result;
  }
  while (const dirent* entry = ::readdir(dir)) {
    if (entry->d_type == DT_DIR && entry->d_name[0] != '.') {
      result.push_back(folder + "/" + entry->d_name);
    }
  }
  ::closedir(dir);
  return result;
}

void AddProcesses(const std::string& folder, int depth, std::vector<pid_t>& found) {
  const std::string text = Text(folder + "/cgroup.procs");
  for (const std::string_view line : Split(text, '\n')) {
    pid_t pid = 0;
    if (std::from_chars(line.data(), line.data() + line.size(), pid).ec == std::errc() && pid > 0) {
      found.push_back(pid);
    }
  }
  if (depth < kDepthMax) {
    for (const std::string& below : FoldersIn(folder)) {
      AddProcesses(below, depth + 1, found);
    }
  }
}

// Stops forks in it where the kernel can; the status is of no use: where it cannot, the loop that kills looks again.
void StopForks(const std::string& folder, int depth = 0) {
  WriteCgroupFile(folder + "/pids.max", "0").IgnoreError();
  WriteCgroupFile(folder + "/freezer.state", "FROZEN").IgnoreError();
  WriteCgroupFile(folder + "/cgroup.freeze", "1").IgnoreError();
  for (const std::string& below : depth < kDepthMax ? FoldersIn(folder) : std::vector<std::string>()) {
    StopForks(below, depth + 1);
  }
}

void Thaw(const std::string& folder, int depth = 0) {
  WriteCgroupFile(folder + "/freezer.state", "THAWED").IgnoreError();  // A frozen process of v1 dies only after this.
  WriteCgroupFile(folder + "/cgroup.freeze", "0").IgnoreError();
  for (const std::string& below : depth < kDepthMax ? FoldersIn(folder) : std::vector<std::string>()) {
    Thaw(below, depth + 1);
  }
}

absl::Status RemoveBelow(const std::string& folder, int depth) {
  if (::rmdir(folder.c_str()) == 0 || errno == ENOENT) {
    return absl::OkStatus();
  }
  const std::vector<std::string> below = depth < kDepthMax ? FoldersIn(folder) : std::vector<std::string>();
  for (const std::string& each : below) {
    if (absl::Status removed = RemoveBelow(each, depth + 1); !removed.ok()) {
      return removed;
    }
  }
  if (::rmdir(folder.c_str()) == 0 || errno == ENOENT) {
    return absl::OkStatus();
  }
  if (errno == EBUSY) {
    return absl::FailedPreconditionError("cgroup " + folder + " still has processes");
  }
  return ErrnoStatus("removing cgroup " + folder, errno);
}

// Whatever a damaged state file says, only what we made is ended.
bool IsOurs(const std::string& folder) {
  return folder.compare(folder.rfind('/') + 1, kCgroupPrefix.size(), kCgroupPrefix) == 0;
}

// The number that a text begins with.
std::optional<std::uint64_t> Number(std::string_view text) {
  std::uint64_t value = 0;
  return std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc() ? std::optional(value)
                                                                                          : std::nullopt;
}

std::string ParentFolder(const std::string& folder) { return folder.substr(0, folder.rfind('/')); }

}  // namespace

CgroupLayout ParseCgroupLayout(std::string_view mountinfo, std::string_view own_cgroups) {
  CgroupLayout layout;
  for (const std::string_view line : Split(mountinfo, '\n')) {
    const std::optional<Mount> mount = ParseMount(line);
    if (!mount || (mount->type != "cgroup" && mount->type != "cgroup2")) {
      continue;
    }
    for (const std::string_view own : Split(own_cgroups, '\n')) {
      // "4:memory:/system.slice", "0::/init.scope".
      const std::size_t first = own.find(':');
      const std::size_t second = first == std::string_view::npos ? first : own.find(':', first + 1);
      if (second == std::string_view::npos) {
        continue;
      }
      const std::string_view controllers = own.substr(first + 1, second - first - 1);
      const std::string folder = Folder(*mount, own.substr(second + 1));
      if (mount->type == "cgroup2") {
        // The kernel numbers v2 as 0; where it is mounted more than once, the first that holds us.
        if (own.substr(0, first) == "0" && layout.unified.empty() && !folder.empty()) {
          layout.unified = folder;
          layout.unified_mount = mount->point;
        }
        continue;
      }
      const auto take = [&](std::string_view controller, std::string& into) {
        if (into.empty() && Lists(controllers, ',', controller) && Lists(mount->options, ',', controller)) {
          into = folder;
        }
      };
      take("memory", layout.memory);
      take("pids", layout.pids);
      take("freezer", layout.freezer);
      take("cpu", layout.cpu);
    }
  }
  return layout;
}

std::optional<double> CpuQuota(const CgroupLayout& layout) {
  std::optional<double> least;
  const auto take = [&least](std::string_view quota, std::string_view period) {
    const std::optional<std::uint64_t> some = Number(quota);
    const std::optional<std::uint64_t> of = Number(period);
    if (some && of && *of > 0) {  // "max" and -1 are none.
      const double cpus = static_cast<double>(*some) / static_cast<double>(*of);
      least = least ? std::min(*least, cpus) : cpus;
    }
  };
  for (std::string folder = layout.unified; folder.size() >= layout.unified_mount.size() && !folder.empty();
       folder = ParentFolder(folder)) {
    const std::string text = Text(folder + "/cpu.max");  // "200000 100000".
    const std::size_t space = text.find(' ');
    if (space != std::string::npos) {
      take(std::string_view(text).substr(0, space), std::string_view(text).substr(space + 1));
    }
  }
  std::string folder = layout.cpu;
  for (std::string quota = Text(folder + "/cpu.cfs_quota_us"); !quota.empty();
       quota = Text(folder + "/cpu.cfs_quota_us")) {
    take(quota, Text(folder + "/cpu.cfs_period_us"));
    folder = ParentFolder(folder);
  }
  return least;
}

CgroupLayout ReadCgroupLayout() { return ParseCgroupLayout(Text("/proc/self/mountinfo"), Text("/proc/self/cgroup")); }

absl::Status HandOnControllers(const CgroupLayout& layout) {
  const std::string& own = layout.unified;
  const std::string above = ParentFolder(own);
  if (own.substr(own.rfind('/') + 1) != kAgentCgroup || above.size() < layout.unified_mount.size() ||
      !MayMakeIn(above)) {
    return absl::OkStatus();
  }
  const std::string had = Text(above + "/cgroup.controllers");
  const std::string given = Text(above + "/cgroup.subtree_control");
  std::string wanted;
  for (const char* const controller : {"memory", "pids"}) {
    if (Lists(had, ' ', controller) && !Lists(given, ' ', controller)) {
      wanted += std::string(wanted.empty() ? "+" : " +") + controller;
    }
  }
  if (wanted.empty()) {
    return absl::OkStatus();
  }
  if (!Text(above + "/cgroup.procs").empty()) {
    return absl::FailedPreconditionError("cgroup " + above + " holds processes beside the agent's");
  }
  return WriteCgroupFile(above + "/cgroup.subtree_control", wanted);
}

CgroupParents FindCgroupParents(const CgroupLayout& layout) {
  CgroupParents parents;
  for (std::string folder = layout.unified; folder.size() >= layout.unified_mount.size() && !folder.empty();
       folder = ParentFolder(folder)) {
    if (!MayMakeIn(folder)) {
      continue;
    }
    const std::string given = Text(folder + "/cgroup.subtree_control");
    const bool memory = Lists(given, ' ', "memory");
    const bool pids = Lists(given, ' ', "pids");
    if (parents.unified.empty() || (memory && pids)) {
      parents.unified = folder;
      parents.unified_memory = memory;
      parents.unified_pids = pids;
    }
    if (memory && pids) {
      break;
    }
  }
  if (!parents.unified_memory && MayMakeIn(layout.memory)) {
    parents.memory = layout.memory;
  }
  if (!parents.unified_pids && MayMakeIn(layout.pids)) {
    parents.pids = layout.pids;
  }
  if (parents.unified.empty() && parents.pids.empty() && MayMakeIn(layout.freezer)) {
    parents.freezer = layout.freezer;
  }
  return parents;
}

std::vector<std::string> CgroupRemarks(const CgroupParents& parents) {
  std::vector<std::string> remarks;
  constexpr std::string_view kHow =
      " (no cgroup controller that this user may use; run the agent as root, as a service of the user's own systemd, "
      "or "
      "with Delegate=yes and DelegateSubgroup=agent, which systemd has since version 254)";
  if (!parents.LimitsMemory()) {
    remarks.push_back("memory requests are accounted for, but not enforced here" + std::string(kHow));
  }
  if (!parents.LimitsPids()) {
    remarks.push_back("the number of processes of a job is not limited here" + std::string(kHow));
  }
  if (!parents.Tracks()) {
    remarks.emplace_back("what jobs leave behind is found by parents and environment only: there is no cgroup to use");
  }
  return remarks;
}

std::optional<std::uint64_t> CgroupCounter(const std::string& file, std::string_view key) {
  const std::string text = Text(file);
  for (const std::string_view line : Split(text, '\n')) {
    std::uint64_t value = 0;
    if (line.size() > key.size() && line.substr(0, key.size()) == key && line[key.size()] == ' ' &&
        std::from_chars(line.data() + key.size() + 1, line.data() + line.size(), value).ec == std::errc()) {
      return value;
    }
  }
  return std::nullopt;
}

std::optional<std::uint64_t> CgroupNumber(const std::string& file) { return Number(Text(file)); }

absl::Status WriteCgroupFile(const std::string& file, std::string_view value) {
  const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd.valid() || ::write(fd.get(), value.data(), value.size()) != static_cast<ssize_t>(value.size())) {
    return ErrnoStatus("writing " + std::string(value) + " to " + file, errno);
  }
  return absl::OkStatus();
}

std::vector<pid_t> CgroupProcesses(const std::string& folder) {
  std::vector<pid_t> found;
  AddProcesses(folder, 0, found);
  return found;
}

void KillCgroup(const std::string& folder) {
  if (WriteCgroupFile(folder + "/cgroup.kill", "1").ok()) {
    return;
  }
  if (CgroupProcesses(folder).empty()) {
    return;
  }
  StopForks(folder);
  std::vector<std::pair<pid_t, std::uint64_t>> killed;
  // Until a look finds nobody new: one of them may have forked between the look and the signal.
  for (int look = 0; look < kKillLooksMax; ++look) {
    bool found = false;
    for (const pid_t pid : CgroupProcesses(folder)) {
      const std::pair<pid_t, std::uint64_t> who{pid, StartTicks(pid)};
      if (std::find(killed.begin(), killed.end(), who) == killed.end()) {
        killed.push_back(who);
        ::kill(pid, SIGKILL);
        found = true;
      }
    }
    if (!found) {
      break;
    }
  }
  Thaw(folder);
}

absl::Status RemoveCgroup(const std::string& folder) { return RemoveBelow(folder, 0); }

absl::Status EndCgroup(const std::string& folder) {
  if (!IsOurs(folder)) {
    return absl::InvalidArgumentError(folder + " is no cgroup of a job");
  }
  if (RemoveCgroup(folder).ok()) {
    return absl::OkStatus();
  }
  const SystemClock clock;
  const SteadyTime end = clock.Read().steady + kCgroupEndWait;
  while (true) {
    const std::vector<pid_t> living = CgroupProcesses(folder);
    std::vector<UniqueFd> ends;
    ends.reserve(living.size());
    for (const pid_t pid : living) {
      ends.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    }
    KillCgroup(folder);
    for (const UniqueFd& process : ends) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - clock.Read().steady);
      pollfd wait{process.get(), POLLIN, 0};
      if (process.valid() && left.count() > 0) {
        ::poll(&wait, 1, static_cast<int>(left.count()));
      }
    }
    absl::Status removed = RemoveCgroup(folder);
    if (removed.ok() || living.empty() || clock.Read().steady >= end) {
      return removed;
    }
  }
}

}  // namespace rayctl::process
