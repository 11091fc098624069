#include "worker/process/cgroups.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "tests/worker/temp_dir.h"
#include "worker/process/job_cgroup.h"

namespace rayctl::process {
namespace {

struct Recorded {
  std::string machine;
  std::string mountinfo;
  std::string own;
  std::string unified;
  std::string memory;
  std::string pids;
};

TEST_CASE("the folders of this process are found in every layout", "[cgroups]") {
  const auto recorded = GENERATE(values<Recorded>({
      {"v1 with a v2 mount without controllers beside it",
       "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
       "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
       "39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n"
       "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
       "8:pids:/\n4:memory:/api/62b2\n0::/\n", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory/api/62b2",
       "/sys/fs/cgroup/pids"},
      {"Ubuntu 20.04, hybrid by systemd",
       "32 24 0:28 / /sys/fs/cgroup ro,nosuid,nodev,noexec shared:9 - tmpfs tmpfs ro,mode=755\n"
       "33 32 0:29 / /sys/fs/cgroup/unified rw,nosuid,nodev,noexec,relatime shared:10 - cgroup2 cgroup2 rw,nsdelegate\n"
       "34 32 0:30 / /sys/fs/cgroup/systemd rw,nosuid,nodev,noexec,relatime shared:11 - cgroup cgroup "
       "rw,xattr,name=systemd\n"
       "38 32 0:34 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid,nodev,noexec,relatime shared:15 - cgroup cgroup "
       "rw,cpu,cpuacct\n"
       "40 32 0:36 / /sys/fs/cgroup/memory rw,nosuid,nodev,noexec,relatime shared:17 - cgroup cgroup rw,memory\n"
       "43 32 0:39 / /sys/fs/cgroup/pids rw,nosuid,nodev,noexec,relatime shared:20 - cgroup cgroup rw,pids\n",
       "12:pids:/user.slice/user-1000.slice/session-3.scope\n5:memory:/user.slice/user-1000.slice/session-3.scope\n"
       "4:cpu,cpuacct:/user.slice\n1:name=systemd:/user.slice/user-1000.slice/session-3.scope\n"
       "0::/user.slice/user-1000.slice/session-3.scope\n",
       "/sys/fs/cgroup/unified/user.slice/user-1000.slice/session-3.scope",
       "/sys/fs/cgroup/memory/user.slice/user-1000.slice/session-3.scope",
       "/sys/fs/cgroup/pids/user.slice/user-1000.slice/session-3.scope"},
      {"Fedora, v2, a delegated user slice",
       "29 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 "
       "rw,seclabel,nsdelegate,memory_recursiveprot\n",
       "0::/user.slice/user-1000.slice/user@1000.service/app.slice/rayctl.service\n",
       "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/rayctl.service", "", ""},
      {"Docker on v2, a cgroup namespace of its own",
       "1203 1192 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw,nsdelegate\n", "0::/\n",
       "/sys/fs/cgroup", "", ""},
      {"Docker on v1, the machine's namespace",
       "712 711 0:32 /docker/6fc1 /sys/fs/cgroup/memory ro,nosuid,nodev,noexec,relatime master:17 - cgroup cgroup "
       "rw,memory\n"
       "715 711 0:36 /docker/6fc1 /sys/fs/cgroup/pids ro,nosuid,nodev,noexec,relatime master:20 - cgroup cgroup "
       "rw,pids\n",
       "6:pids:/docker/6fc1\n4:memory:/docker/6fc1/below\n", "", "/sys/fs/cgroup/memory/below", "/sys/fs/cgroup/pids"},
      {"Kubernetes on v2, the pod seen from the machine",
       "2102 2090 0:26 /kubepods.slice/pod7 /sys/fs/cgroup ro,relatime - cgroup2 cgroup rw\n",
       "0::/kubepods.slice/pod7/cri-containerd-1.scope\n", "/sys/fs/cgroup/cri-containerd-1.scope", "", ""},
      {"a neighbour's name that begins alike is not ours",
       "712 711 0:32 /docker/6fc1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", "4:memory:/docker/6fc12\n", "",
       "", ""},
      {"outside of its cgroup namespace", "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/../../other\n",
       "", "", ""},
      {"a mount point with a blank in its name", "29 23 0:26 / /mnt/c\\040g rw - cgroup2 cgroup2 rw\n", "0::/a\n",
       "/mnt/c g/a", "", ""},
      {"no cgroups", "23 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n", "", "", "", ""},
      {"what is no mountinfo", "\n\n- - -\ncgroup2\n", "::\n0::\n:", "", "", ""},
  }));
  CAPTURE(recorded.machine);
  const CgroupLayout layout = ParseCgroupLayout(recorded.mountinfo, recorded.own);
  CHECK(layout.unified == recorded.unified);
  CHECK(layout.memory == recorded.memory);
  CHECK(layout.pids == recorded.pids);
}

// Folders with the files that a kernel would put there.
class Tree {
 public:
  std::string Folder(const std::string& path, const std::vector<std::pair<std::string, std::string>>& files) {
    const std::string folder = dir_.path() + path;
    ::mkdir(folder.c_str(), 0700);
    for (const auto& [name, text] : files) {
      std::ofstream(std::string(folder).append("/").append(name)) << text;
    }
    return folder;
  }
  std::string Read(const std::string& path) const {
    std::ifstream file(dir_.path() + path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  std::string path() const { return dir_.path(); }

 private:
  TempDir dir_;
};

TEST_CASE("in v2 the nearest folder that hands on its controllers is used", "[cgroups]") {
  Tree tree;
  tree.Folder("/top", {{"cgroup.procs", ""}, {"cgroup.subtree_control", "cpu memory pids\n"}});
  tree.Folder("/top/app.slice", {{"cgroup.procs", ""}, {"cgroup.subtree_control", "memory pids\n"}});
  const std::string own =
      tree.Folder("/top/app.slice/own.scope", {{"cgroup.procs", "1\n"}, {"cgroup.subtree_control", "\n"}});
  const CgroupParents parents = FindCgroupParents({own, tree.path() + "/top", "", "", ""});
  CHECK(parents.unified == tree.path() + "/top/app.slice");
  CHECK(parents.LimitsMemory());
  CHECK(parents.LimitsPids());
  CHECK(CgroupRemarks(parents).empty());
}

TEST_CASE("an agent in a cgroup of its own has its unit's controllers handed to the jobs beside it", "[cgroups]") {
  Tree tree;
  const std::string unit = tree.Folder(
      "/unit", {{"cgroup.procs", ""}, {"cgroup.controllers", "cpu memory pids\n"}, {"cgroup.subtree_control", ""}});
  const std::string own = tree.Folder("/unit/agent", {{"cgroup.procs", "7\n"}, {"cgroup.subtree_control", ""}});
  const CgroupLayout layout{own, tree.path(), "", "", ""};
  CHECK(FindCgroupParents(layout).LimitsMemory() == false);
  REQUIRE(HandOnControllers(layout).ok());
  CHECK(tree.Read("/unit/cgroup.subtree_control") == "+memory +pids");
  tree.Folder("/unit", {{"cgroup.subtree_control", "memory pids\n"}});  // As the kernel then says.
  REQUIRE(HandOnControllers(layout).ok());
  CHECK(tree.Read("/unit/cgroup.subtree_control") == "memory pids\n");
  const CgroupParents parents = FindCgroupParents(layout);
  CHECK(parents.unified == unit);
  CHECK(CgroupRemarks(parents).empty());
}

TEST_CASE("controllers are handed on only where that is what the unit wants", "[cgroups]") {
  Tree tree;
  tree.Folder("/unit",
              {{"cgroup.procs", "1\n"}, {"cgroup.controllers", "memory pids\n"}, {"cgroup.subtree_control", ""}});
  const std::string agent = tree.Folder("/unit/agent", {{"cgroup.procs", "7\n"}});
  const std::string other = tree.Folder("/unit/other", {{"cgroup.procs", "7\n"}});
  CHECK(HandOnControllers({other, tree.path(), "", "", ""}).ok());
  CHECK(HandOnControllers({agent, agent, "", "", ""}).ok());  // What is above is not seen from here.
  CHECK(HandOnControllers({"", "", "", "", ""}).ok());
  CHECK(tree.Read("/unit/cgroup.subtree_control").empty());
  CHECK(HandOnControllers({agent, tree.path(), "", "", ""}).code() == absl::StatusCode::kFailedPrecondition);
  tree.Folder("/unit", {{"cgroup.procs", ""}, {"cgroup.controllers", "memory\n"}});
  REQUIRE(HandOnControllers({agent, tree.path(), "", "", ""}).ok());
  CHECK(tree.Read("/unit/cgroup.subtree_control") == "+memory");
}

TEST_CASE("where no controller can be had the node says so", "[cgroups]") {
  Tree tree;
  const std::string own = tree.Folder("/own", {{"cgroup.procs", "1\n"}, {"cgroup.subtree_control", "\n"}});
  const CgroupParents tracks = FindCgroupParents({own, own, "", "", ""});
  CHECK(tracks.unified == own);
  CHECK(CgroupRemarks(tracks).size() == 2);
  const CgroupParents none = FindCgroupParents({tree.path() + "/gone", tree.path(), tree.path() + "/gone", "", ""});
  CHECK_FALSE(none.Tracks());
  CHECK(CgroupRemarks(none).size() == 3);
}

TEST_CASE("a rank with limits is put into leaves of v2", "[cgroups]") {
  Tree tree;
  tree.Folder("/rayctl-1", {{"pids.max", ""}, {"cgroup.subtree_control", ""}, {"pids.events", "max 3\n"}});
  tree.Folder("/rayctl-1/rank-0", {{"memory.max", ""},
                                   {"memory.swap.max", ""},
                                   {"memory.oom.group", ""},
                                   {"memory.peak", "2048\n"},
                                   {"memory.events", "low 0\nmax 5\noom 1\noom_kill 2\n"}});
  CgroupParents parents;
  parents.unified = tree.path();
  parents.unified_memory = true;
  parents.unified_pids = true;
  JobCgroup job(parents, "rayctl-1");
  CHECK(job.Folders() == std::vector<std::string>{tree.path() + "/rayctl-1"});
  const auto place = job.Enter("rank-0", {.memory_bytes_max = 2048, .pids_max = 64});
  REQUIRE(place.ok());
  CHECK(place->clone_into == tree.path() + "/rayctl-1/rank-0");
  CHECK(place->task_files.empty());
  CHECK(tree.Read("/rayctl-1/pids.max") == "64");
  CHECK(tree.Read("/rayctl-1/cgroup.subtree_control") == "+memory");
  CHECK(tree.Read("/rayctl-1/rank-0/memory.max") == "2048");
  CHECK(tree.Read("/rayctl-1/rank-0/memory.swap.max") == "0");
  CHECK(tree.Read("/rayctl-1/rank-0/memory.oom.group") == "1");
  const JobCgroup::Usage usage = job.Ask("rank-0");
  CHECK(usage.out_of_memory);
  CHECK(usage.memory_peak_bytes == 2048);
  CHECK(usage.memory_bytes_max == 2048);
  CHECK(usage.pids_max_reached == 64);
}

TEST_CASE("in v1 memory and processes have folders of their own", "[cgroups]") {
  Tree tree;
  tree.Folder("/unified", {});
  tree.Folder("/pids", {});
  tree.Folder("/memory", {});
  tree.Folder("/pids/rayctl-1", {{"pids.max", ""}, {"pids.events", "max 0\n"}});
  tree.Folder("/memory/rayctl-1", {});
  tree.Folder("/memory/rayctl-1/rank-0", {{"memory.limit_in_bytes", ""},
                                          {"memory.memsw.limit_in_bytes", ""},
                                          {"memory.max_usage_in_bytes", "1000\n"},
                                          {"memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"}});
  CgroupParents parents;
  parents.unified = tree.path() + "/unified";
  parents.memory = tree.path() + "/memory";
  parents.pids = tree.path() + "/pids";
  JobCgroup job(parents, "rayctl-1");
  const auto place = job.Enter("rank-0", {.memory_bytes_max = 2048, .pids_max = 64});
  REQUIRE(place.ok());
  CHECK(place->clone_into == tree.path() + "/unified/rayctl-1");
  CHECK(place->task_files ==
        std::vector<std::string>{tree.path() + "/pids/rayctl-1/tasks", tree.path() + "/memory/rayctl-1/rank-0/tasks"});
  CHECK(tree.Read("/memory/rayctl-1/rank-0/memory.limit_in_bytes") == "2048");
  CHECK(tree.Read("/memory/rayctl-1/rank-0/memory.memsw.limit_in_bytes") == "2048");
  const JobCgroup::Usage usage = job.Ask("rank-0");
  CHECK_FALSE(usage.out_of_memory);
  CHECK(usage.memory_peak_bytes == 1000);
  CHECK(usage.pids_max_reached == 0);
  // A rank without a limit has no folder of its own, and nothing is said of its memory.
  const auto free = job.Enter("rank-1", {});
  REQUIRE(free.ok());
  CHECK(free->task_files == std::vector<std::string>{tree.path() + "/pids/rayctl-1/tasks"});
  CHECK(job.Ask("rank-1").memory_bytes_max == 0);
}

TEST_CASE("the least quota of CPU time counts, wherever it stands above", "[cgroups]") {
  Tree tree;
  const std::string mount = tree.Folder("/v2", {});
  tree.Folder("/v2/slice", {{"cpu.max", "150000 100000\n"}});
  const std::string own = tree.Folder("/v2/slice/service", {{"cpu.max", "max 100000\n"}});
  CHECK_FALSE(CpuQuota({}).has_value());
  CHECK(CpuQuota({.unified = own, .unified_mount = mount}) == 1.5);
  CHECK_FALSE(CpuQuota({.unified = own, .unified_mount = own}).has_value());  // What is above cannot be seen.
  tree.Folder("/v1", {{"cpu.cfs_quota_us", "200000\n"}, {"cpu.cfs_period_us", "100000\n"}});
  const std::string v1 = tree.Folder("/v1/pod", {{"cpu.cfs_quota_us", "-1\n"}, {"cpu.cfs_period_us", "100000\n"}});
  CHECK(CpuQuota({.cpu = v1}) == 2.0);
  CHECK(CpuQuota({.unified = own, .unified_mount = mount, .cpu = v1}) == 1.5);
}

TEST_CASE("only a folder of a job is ever ended", "[cgroups]") {
  Tree tree;
  const std::string other = tree.Folder("/system.slice", {{"cgroup.kill", ""}});
  CHECK(EndCgroup(other).code() == absl::StatusCode::kInvalidArgument);
  CHECK(EndCgroup("").code() == absl::StatusCode::kInvalidArgument);
  CHECK(tree.Read("/system.slice/cgroup.kill").empty());
  CHECK(EndCgroup(tree.path() + "/rayctl-gone").ok());
}

}  // namespace
}  // namespace rayctl::process
