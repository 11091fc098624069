// A device whose agent names a problem is out of what may be lent until the agent says that it is free.
#include <catch2/catch.hpp>

#include "tests/daemon/head/head_driver.h"

namespace rayctl::head {
namespace {

std::vector<link::Device> Devices(std::vector<std::string> problems) {
  std::vector<link::Device> devices;
  for (std::string& problem : problems) {
    link::Device device{.vendor = "nvidia", .id = "GPU-" + std::to_string(devices.size()), .name = "H100"};
    device.problem = std::move(problem);
    devices.push_back(std::move(device));
  }
  return devices;
}

JobSpec OnGpus(std::int64_t raw, std::uint32_t workers = 1) {
  JobSpec spec = HeadDriver::Spec(workers);
  spec.resources_per_worker.Set(kGpu, Amount{raw});
  return spec;
}

constexpr std::int64_t kOne = Amount::kUnit;
constexpr std::int64_t kHalf = Amount::kUnit / 2;

// One node with as many devices as problems.
struct OneNode {
  explicit OneNode(const std::vector<std::string>& problems) {
    node = driver.AddNode("a", {.cpus = 8, .gpus = static_cast<std::int64_t>(problems.size())});
    driver.Registration(node).devices = Devices(problems);
    driver.Disconnect(node);
    driver.Connect(node);
  }
  void Tell(const std::vector<std::string>& problems) { driver.Say(node, link::DevicesChanged{Devices(problems)}); }
  std::vector<std::uint32_t> DevicesOf(JobId job) {
    std::vector<std::uint32_t> found;
    for (const RankRecord& rank : driver.Job(job).attempt.ranks) {
      for (const scheduler::DeviceShare& device : rank.devices) {
        found.push_back(device.index);
      }
    }
    return found;
  }
  Head::NodeStatus Status() { return driver.head().Nodes().at(0); }

  HeadDriver driver;
  NodeId node;
};

TEST_CASE("a device with a problem is passed over", "[head][devices]") {
  OneNode n({"held by process 9", "", ""});
  const JobId job = n.driver.Submit(OnGpus(2 * kOne));
  CHECK(n.driver.Job(job).state == JobState::kStarting);
  CHECK(n.DevicesOf(job) == std::vector<std::uint32_t>{1, 2});
  const Head::NodeStatus status = n.Status();
  CHECK(status.devices.at(0).problem == "held by process 9");
  CHECK(status.device_jobs == std::vector<std::vector<JobId>>{{}, {job}, {job}});
}

TEST_CASE("a job waits for a fenced device, says so, and starts when it is free", "[head][devices]") {
  OneNode n({""});
  n.Tell({"held by process 9"});
  const JobId job = n.driver.Submit(OnGpus(kOne));
  CHECK(n.driver.Job(job).state == JobState::kQueued);
  CHECK(n.driver.Job(job).reason == Reason::kNone);  // It could be held: not infeasible.
  CHECK(n.driver.head().WaitingReason(job) ==
        "needs GPU: 1; node a has GPU: 0 free of 1; 1 device is not lent now, see `rayctl describe --node a`");
  n.Tell({""});
  CHECK(n.driver.Job(job).state == JobState::kStarting);
}

TEST_CASE("a device that is fenced under its holder stays with it and goes to nobody else", "[head][devices]") {
  OneNode n({"", ""});
  const JobId holder = n.driver.Submit(OnGpus(kHalf));
  n.driver.RunAll(holder);
  n.Tell({"rows wait to be remapped", ""});
  CHECK(n.driver.Job(holder).state == JobState::kRunning);
  const JobId half = n.driver.Submit(OnGpus(kHalf));
  CHECK(n.DevicesOf(half) == std::vector<std::uint32_t>{1});
  const JobId whole = n.driver.Submit(OnGpus(kOne));
  CHECK(n.driver.Job(whole).state == JobState::kQueued);
  n.driver.End(holder, 0);
  CHECK(n.driver.Job(holder).state == JobState::kSucceeded);
  CHECK(n.driver.Job(whole).state == JobState::kQueued);
  n.Tell({"", ""});
  CHECK(n.DevicesOf(whole) == std::vector<std::uint32_t>{0});
}

TEST_CASE("a device that is fenced just before its holder's end is not lent at that end", "[head][devices]") {
  OneNode n({""});
  const JobId first = n.driver.Submit(OnGpus(kOne));
  n.driver.RunAll(first);
  const JobId second = n.driver.Submit(OnGpus(kOne));
  n.Tell({"it is looked for what still holds it"});
  n.driver.End(first, 0);
  CHECK(n.driver.Job(second).state == JobState::kQueued);
  n.Tell({""});
  CHECK(n.driver.Job(second).state == JobState::kStarting);
}

TEST_CASE("a gang whose node died is not moved for a device that is fenced", "[head][devices]") {
  HeadDriver driver;
  const NodeId a = driver.AddNode("a", {.cpus = 4, .gpus = 1});
  const NodeId b = driver.AddNode("b", {.cpus = 4, .gpus = 1});
  for (const NodeId node : {a, b}) {
    driver.Registration(node).devices = Devices({""});
    driver.Disconnect(node);
    driver.Connect(node);
  }
  JobSpec spec = OnGpus(kOne);
  spec.max_failures = 3;
  const JobId job = driver.Submit(spec);
  driver.RunAll(job);
  REQUIRE(driver.NodeOf(job, 0) == a);
  driver.Say(b, link::DevicesChanged{Devices({"held by process 9"})});
  driver.Disconnect(a);
  driver.PassWithHeartbeats(std::chrono::seconds(100), {b});
  REQUIRE(driver.StateOf(a) == NodeState::kDead);
  CHECK(driver.Job(job).attempt.number == 0);
  driver.Say(b, link::DevicesChanged{Devices({""})});
  CHECK(driver.Job(job).attempt.number == 1);
  CHECK(driver.NodeOf(job, 0) == b);
}

TEST_CASE("what a gang holds on a fenced device is not room for it to move to", "[head][devices]") {
  HeadDriver driver;
  const NodeId a = driver.AddNode("a", {.cpus = 4, .gpus = 1});
  const NodeId b = driver.AddNode("b", {.cpus = 4, .gpus = 2});
  driver.Registration(a).devices = Devices({""});
  driver.Registration(b).devices = Devices({"", ""});
  for (const NodeId node : {a, b}) {
    driver.Disconnect(node);
    driver.Connect(node);
  }
  JobSpec spec = OnGpus(kOne, 2);
  spec.placement_strategy = PlacementStrategy::kSpread;
  spec.max_failures = 3;
  const JobId job = driver.Submit(spec);
  driver.RunAll(job);
  const Rank on_b = driver.NodeOf(job, 0) == b ? 0 : 1;
  REQUIRE(driver.NodeOf(job, on_b) == b);
  // Its own device there is failing: only the other one could be had.
  std::vector<link::Device> devices = Devices({"", ""});
  devices.at(driver.Job(job).attempt.ranks.at(on_b).devices.at(0).index).problem = "fallen off the bus";
  driver.Say(b, link::DevicesChanged{devices});
  driver.Disconnect(a);
  driver.PassWithHeartbeats(std::chrono::seconds(100), {b});
  REQUIRE(driver.StateOf(a) == NodeState::kDead);
  CHECK(driver.Job(job).attempt.number == 0);
  CHECK_FALSE(driver.Job(job).attempt.ended);
}

TEST_CASE("a restarted head lends nothing before it knows what is fenced", "[head][devices]") {
  OneNode n({""});
  n.driver.Registration(n.node).devices = Devices({"held by process 9"});
  n.Tell({"held by process 9"});
  const JobId job = n.driver.Submit(OnGpus(kOne));
  n.driver.Restart();
  CHECK(n.driver.Job(job).state == JobState::kQueued);
  n.driver.Connect(n.node);
  CHECK(n.driver.Job(job).state == JobState::kQueued);
  n.Tell({""});
  CHECK(n.driver.Job(job).state == JobState::kStarting);
}

TEST_CASE("an agent that tells of other devices than it registered registers again", "[head][devices]") {
  OneNode n({"", ""});
  const StreamId stream = n.driver.StreamOf(n.node);
  n.Tell({""});
  REQUIRE_FALSE(n.driver.closed().empty());
  CHECK(n.driver.closed().back().first == stream);
}

}  // namespace
}  // namespace rayctl::head
