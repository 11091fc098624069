#include "daemon/agent/rank_env.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace rayctl::agent {
namespace {

using Entries = std::vector<std::string>;

link::Register Node() {
  link::Register node;
  node.interface_name = "eth0";
  node.devices = {{.vendor = "nvidia", .id = "GPU-aaaa"}, {.vendor = "nvidia", .id = "GPU-bbbb"}};
  return node;
}

link::StartGroup Group() {
  link::StartGroup group;
  group.job = JobId{7};
  group.attempt = 2;
  group.spec.name = "digits-7";
  group.spec.argv = {"./train", "a b"};
  group.spec.storage_path = "/results";
  group.spec.max_failures = 3;
  group.spec.train_loop_config_json = R"({"lr":0.001})";
  group.spec.resources_per_worker = Resources{{"CPU", Amount::Units(4)}};
  group.ranks = {{2, 0, {{1, Amount::Units(1)}}}, {3, 1, {}}};
  group.world_size = 4;
  group.node_rank = 1;
  group.node_count = 2;
  group.master_addr = "10.0.0.1";
  group.master_port = 20005;
  return group;
}

const JobPaths kPaths = JobPaths::Of("/state", JobId{7});

Entries EnvironmentOf(const link::Register& node, const Entries& base, const link::StartGroup& group,
                      std::size_t rank = 0) {
  return RankEnvironment(node, base, kPaths, group, group.ranks[rank]);
}

bool Has(const Entries& entries, const std::string& entry) {
  return std::find(entries.begin(), entries.end(), entry) != entries.end();
}

bool Sets(const Entries& entries, const std::string& name) {
  return std::any_of(entries.begin(), entries.end(),
                     [&name](const std::string& entry) { return entry.starts_with(name + "="); });
}

TEST_CASE("the whole environment of a rank on the second of two nodes", "[agent]") {
  CHECK(EnvironmentOf(Node(), {"PATH=/bin", "HOME=/root"}, Group()) == Entries{
                                                                           "CUDA_VISIBLE_DEVICES=GPU-bbbb",
                                                                           "GLOO_SOCKET_IFNAME=eth0",
                                                                           "GROUP_RANK=1",
                                                                           "GROUP_WORLD_SIZE=2",
                                                                           "HOME=/root",
                                                                           "LOCAL_RANK=0",
                                                                           "LOCAL_WORLD_SIZE=2",
                                                                           "MASTER_ADDR=10.0.0.1",
                                                                           "MASTER_PORT=20005",
                                                                           "NCCL_SOCKET_IFNAME=eth0",
                                                                           "NODE_RANK=1",
                                                                           "OMP_NUM_THREADS=4",
                                                                           "PATH=/bin",
                                                                           "RANK=2",
                                                                           "RAYCTL_ATTEMPT=2",
                                                                           "RAYCTL_CONFIG={\"lr\":0.001}",
                                                                           "RAYCTL_JOB_ID=7",
                                                                           "RAYCTL_RUN_DIR=/results/digits-7",
                                                                           "ROLE_NAME=default",
                                                                           "ROLE_RANK=2",
                                                                           "ROLE_WORLD_SIZE=4",
                                                                           "TORCHELASTIC_MAX_RESTARTS=3",
                                                                           "TORCHELASTIC_RESTART_COUNT=2",
                                                                           "TORCHELASTIC_RUN_ID=7",
                                                                           "TORCH_FR_BUFFER_SIZE=200",
                                                                           "TP_SOCKET_IFNAME=eth0",
                                                                           "WORLD_SIZE=4",
                                                                       });
}

TEST_CASE("a rank that asked for no device sees none", "[agent]") {
  CHECK(Has(EnvironmentOf(Node(), {"CUDA_VISIBLE_DEVICES=0,1"}, Group(), 1), "CUDA_VISIBLE_DEVICES="));
}

TEST_CASE("a gang on one node talks over the loopback", "[agent]") {
  link::StartGroup group = Group();
  group.node_count = 1;
  CHECK(Has(EnvironmentOf(Node(), {}, group), "GLOO_SOCKET_IFNAME=lo"));
}

TEST_CASE("a job's variables win over inherited ones, and rayctl's over both", "[agent]") {
  link::StartGroup group = Group();
  group.spec.env_vars = {{"OMP_NUM_THREADS", "1"}, {"HOME", "/job"}, {"NCCL_SOCKET_IFNAME", "ib0"}, {"RANK", "99"}};
  const Entries entries = EnvironmentOf(Node(), {"HOME=/root", "WORLD_SIZE=1"}, group);
  CHECK(Has(entries, "OMP_NUM_THREADS=1"));
  CHECK(Has(entries, "HOME=/job"));
  CHECK(Has(entries, "NCCL_SOCKET_IFNAME=ib0"));
  CHECK(Has(entries, "RANK=2"));
  CHECK(Has(entries, "WORLD_SIZE=4"));
}

TEST_CASE("tokens and torchelastic's store never reach a rank", "[agent]") {
  link::StartGroup group = Group();
  group.spec.env_vars = {{"RAYCTL_TOKEN", "rct_x"}};
  const Entries entries =
      EnvironmentOf(Node(), {"RAYCTL_TOKEN=rct_y", "TORCHELASTIC_USE_AGENT_STORE=True", "RAYCTL_SOCKET=/x"}, group);
  CHECK_FALSE(Sets(entries, "RAYCTL_TOKEN"));
  CHECK_FALSE(Sets(entries, "TORCHELASTIC_USE_AGENT_STORE"));
  CHECK_FALSE(Sets(entries, "RAYCTL_SOCKET"));
}

TEST_CASE("AMD devices are shown by one variable alone", "[agent]") {
  link::Register node = Node();
  node.devices = {{.vendor = "amd", .id = ""}, {.vendor = "amd", .id = ""}};
  const Entries entries = EnvironmentOf(node, {"HIP_VISIBLE_DEVICES=0"}, Group());
  CHECK(Has(entries, "ROCR_VISIBLE_DEVICES=1"));
  CHECK_FALSE(Sets(entries, "HIP_VISIBLE_DEVICES"));
  CHECK_FALSE(Sets(entries, "CUDA_VISIBLE_DEVICES"));
}

TEST_CASE("devices that only a flag counts are shown by their index", "[agent]") {
  link::Register node = Node();
  node.devices = {{.vendor = "", .id = "0"}, {.vendor = "", .id = "1"}};
  CHECK(Has(EnvironmentOf(node, {}, Group()), "CUDA_VISIBLE_DEVICES=1"));
}

TEST_CASE("a fraction of a CPU is one thread, and max_failures without end is a number", "[agent]") {
  link::StartGroup group = Group();
  group.spec.resources_per_worker = Resources{{"CPU", Amount{Amount::kUnit / 2}}};
  group.spec.max_failures = -1;
  const Entries entries = EnvironmentOf(Node(), {}, group);
  CHECK(Has(entries, "OMP_NUM_THREADS=1"));
  CHECK(Has(entries, "TORCHELASTIC_MAX_RESTARTS=2147483647"));
}

TEST_CASE("a long configuration is named, not passed", "[agent]") {
  link::StartGroup group = Group();
  group.spec.train_loop_config_json = std::string(kConfigBytesInEnv, ' ');
  CHECK_FALSE(ConfigNeedsFile(group.spec));
  group.spec.train_loop_config_json += ' ';
  CHECK(ConfigNeedsFile(group.spec));
  CHECK(Has(EnvironmentOf(Node(), {}, group), "RAYCTL_CONFIG=@/state/jobs/7/config.json"));
}

TEST_CASE("an entrypoint runs under a shell, argv without one", "[agent]") {
  link::StartGroup group = Group();
  local::v1::RankStart start = MakeRankStart(Node(), {}, kPaths, group, group.ranks[0]);
  CHECK(Entries(start.argv().begin(), start.argv().end()) == Entries{"./train", "a b"});
  CHECK(start.working_dir() == "/state/jobs/7/work");
  CHECK(start.log_path() == "/state/jobs/7/logs/attempt_2/rank_2.log");

  group.spec.argv.clear();
  group.spec.entrypoint = "echo $RANK";
  start = MakeRankStart(Node(), {}, kPaths, group, group.ranks[0]);
  CHECK(Entries(start.argv().begin(), start.argv().end()) == Entries{"/bin/sh", "-c", "echo $RANK"});
}

TEST_CASE("a variable that is not UTF-8 reaches the shim as it is", "[agent]") {
  const link::StartGroup group = Group();
  const local::v1::RankStart made = MakeRankStart(Node(), {"ODD=caf\xe9"}, kPaths, group, group.ranks[0]);
  local::v1::RankStart read;
  REQUIRE(read.ParseFromString(made.SerializeAsString()));
  CHECK(Has(Entries(read.env().begin(), read.env().end()), "ODD=caf\xe9"));
}

}  // namespace
}  // namespace rayctl::agent
