// What the agent says of its devices, and in which order: before the end of a rank that held one the head must know
// that it is not to be lent yet.
#include <catch2/catch.hpp>
#include <chrono>

#include "tests/daemon/agent/agent_bench.h"

namespace rayctl::agent {
namespace {

using std::chrono::seconds;

using test::Bench;
using test::kJob;

// A node with two devices, looked at when a test says so.
class Node : public Bench {
 public:
  Node() : Bench(ConfigWithDevices()) {}

  static AgentConfig ConfigWithDevices() {
    AgentConfig config = Config();
    config.registration.devices = {{.vendor = "nvidia", .id = "GPU-a"}, {.vendor = "nvidia", .id = "GPU-b"}};
    return config;
  }

  // Nobody looks twice before an answer, so their numbers count up.
  void Looked(const std::vector<DeviceHolder>& holders = {}) { On(DevicesLooked{++look_, {{"", holders}, {}}}); }
  // Rank 0 runs on device 0.
  void RunOnDevice() {
    link::StartGroup group = test::Group(0, {});
    group.ranks = {{0, 0, {{0, Amount::Units(1)}}}};
    Head(group);
    ShimHello();
    Started(0, 0);
  }

  // To the head, by the last event.
  using Message = decltype(link::AgentToHead::body);
  std::vector<Message> Sent() const {
    std::vector<Message> bodies;
    for (const SendHead& send : All<SendHead>()) {
      bodies.push_back(send.message.body);
    }
    return bodies;
  }

 private:
  std::uint64_t look_ = 0;
};

// What a message says of each device; empty: it is about something else.
std::vector<std::string> Problems(const Node::Message& message) {
  std::vector<std::string> problems;
  if (const auto* changed = std::get_if<link::DevicesChanged>(&message)) {
    for (const link::Device& device : changed->devices) {
      problems.push_back(device.problem);
    }
  }
  return problems;
}

const std::vector<std::string> kAllFree(2);

TEST_CASE("a node registers with devices that nobody has looked at yet, and offers them after the look", "[agent]") {
  Node node;
  const link::Register registered = std::get<link::Register>(node.sent.at(0).body);
  REQUIRE(registered.devices.size() == 2);
  CHECK_FALSE(registered.devices[0].problem.empty());
  node.Looked();
  REQUIRE(node.Sent().size() == 1);
  CHECK(Problems(node.Sent()[0]) == kAllFree);
}

TEST_CASE("the end of a rank comes after the word that its device is not to be lent yet", "[agent]") {
  Node node;
  node.Looked();
  node.RunOnDevice();
  node.Exited(0, 0);
  CHECK(node.Has<LookAtDevices>());
  REQUIRE(node.Sent().size() == 2);
  REQUIRE(Problems(node.Sent()[0]).size() == 2);
  CHECK_FALSE(Problems(node.Sent()[0])[0].empty());
  CHECK(Problems(node.Sent()[0])[1].empty());
  CHECK(std::holds_alternative<link::RankChanged>(node.Sent()[1]));
  SECTION("free at once") {
    node.Looked();
    REQUIRE(node.Sent().size() == 1);
    CHECK(Problems(node.Sent()[0]) == kAllFree);
  }
  SECTION("or fenced while something holds it") {
    node.Looked({{4711, "python3", link::RankKey{kJob, 0, 0}}});
    REQUIRE(node.Sent().size() == 1);
    CHECK(Problems(node.Sent()[0]) ==
          std::vector<std::string>{"held by process 4711 (python3), left over from rank 0 of job 5", ""});
    node.Advance(seconds(1));
    REQUIRE(node.Has<LookAtDevices>());
    node.Looked();
    REQUIRE(node.Sent().size() == 1);
    CHECK(Problems(node.Sent()[0]) == kAllFree);
  }
}

TEST_CASE("who holds a device that a living rank has whole is that rank's affair", "[agent]") {
  Node node;
  node.Looked();
  node.RunOnDevice();
  node.Advance(seconds(10));
  REQUIRE(node.Has<LookAtDevices>());
  node.Looked({{100, "python3", link::RankKey{kJob, 0, 0}}, {101, "helper", std::nullopt}});
  CHECK(node.Sent().empty());
}

TEST_CASE("a node that is being stopped looks at no device any more", "[agent]") {
  Node node;
  node.Looked();
  node.RunOnDevice();
  node.On(Stop{"stop"});
  node.Exited(0, 0);
  CHECK_FALSE(node.Has<LookAtDevices>());
}

}  // namespace
}  // namespace rayctl::agent
