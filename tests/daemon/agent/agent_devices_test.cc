// What the agent says of its devices, and in which order: before the end of a rank that held one the head must know
// that it is not to be lent yet.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>

#include "daemon/agent/agent.h"

namespace rayctl::agent {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

constexpr JobId kJob{7};

class Node {
 public:
  Node() : agent_(Config(), now_) {
    On(ShimsScanned{});
    On(HeadConnected{});
    registered_ = std::get<link::Register>(Sent().at(0));
    Head(link::Registered{.heartbeat_interval = seconds(2)});
  }

  static AgentConfig Config() {
    AgentConfig config;
    config.state_dir = "/state";
    config.registration.devices = {{.vendor = "nvidia", .id = "GPU-a"}, {.vendor = "nvidia", .id = "GPU-b"}};
    return config;
  }

  void On(const Event& event) {
    effects_ = agent_.On(event, now_);
    for (const Effect& effect : effects_) {
      if (const auto* look = std::get_if<LookAtDevices>(&effect)) {
        look_ = look->look;
      }
    }
  }
  template <class Body>
  void Head(Body body) {
    On(HeadMessage{{1, ++sequence_, std::move(body)}});
  }
  void Looked(const std::vector<DeviceHolder>& holders = {}) { On(DevicesLooked{look_, {{"", holders}, {}}}); }

  // Rank 0 runs on device 0.
  void Run() {
    link::StartGroup group;
    group.job = kJob;
    group.ranks = {{0, 0, {{0, Amount::Units(1)}}}};
    Head(group);
    local::ShimToAgent hello;
    hello.mutable_hello()->set_protocol(1);
    On(ShimMessage{kJob, hello});
    local::ShimToAgent started = About();
    started.mutable_started()->set_pid(100);
    On(ShimMessage{kJob, started});
  }
  void End() {
    local::ShimToAgent exited = About();
    exited.mutable_exited()->set_exit_code(0);
    On(ShimMessage{kJob, exited});
  }
  void Advance(Duration by) {
    now_.steady += by;
    On(Tick{});
  }

  // To the head, by the last event.
  using Message = decltype(link::AgentToHead::body);
  std::vector<Message> Sent() const {
    std::vector<Message> sent;
    for (const Effect& effect : effects_) {
      if (const auto* send = std::get_if<SendHead>(&effect)) {
        sent.push_back(send->message.body);
      }
    }
    return sent;
  }
  bool Looks() const {
    return std::any_of(effects_.begin(), effects_.end(),
                       [](const Effect& effect) { return std::holds_alternative<LookAtDevices>(effect); });
  }
  const link::Register& registered() const { return registered_; }

 private:
  local::ShimToAgent About() {
    local::ShimToAgent message;
    message.mutable_id()->set_job_id(kJob.value);
    message.mutable_id()->set_sequence(++event_);
    return message;
  }

  Now now_{SteadyTime(hours(1)), WallTime(hours(1))};
  Agent agent_;
  std::vector<Effect> effects_;
  link::Register registered_;
  std::uint64_t look_ = 0;
  std::uint64_t sequence_ = 0;
  std::uint64_t event_ = 0;
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
  REQUIRE(node.registered().devices.size() == 2);
  CHECK_FALSE(node.registered().devices[0].problem.empty());
  node.Looked();
  REQUIRE(node.Sent().size() == 1);
  CHECK(Problems(node.Sent()[0]) == kAllFree);
}

TEST_CASE("the end of a rank comes after the word that its device is not to be lent yet", "[agent]") {
  Node node;
  node.Looked();
  node.Run();
  node.End();
  CHECK(node.Looks());
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
          std::vector<std::string>{"held by process 4711 (python3), left over from rank 0 of job 7", ""});
    node.Advance(seconds(1));
    REQUIRE(node.Looks());
    node.Looked();
    REQUIRE(node.Sent().size() == 1);
    CHECK(Problems(node.Sent()[0]) == kAllFree);
  }
}

TEST_CASE("who holds a device that a living rank has whole is that rank's affair", "[agent]") {
  Node node;
  node.Looked();
  node.Run();
  node.Advance(seconds(10));
  REQUIRE(node.Looks());
  node.Looked({{100, "python3", link::RankKey{kJob, 0, 0}}, {101, "helper", std::nullopt}});
  CHECK(node.Sent().empty());
}

TEST_CASE("a node that is being stopped looks at no device any more", "[agent]") {
  Node node;
  node.Looked();
  node.Run();
  node.On(Stop{"stop"});
  node.End();
  CHECK_FALSE(node.Looks());
}

}  // namespace
}  // namespace rayctl::agent
