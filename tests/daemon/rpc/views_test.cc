#include "daemon/rpc/views.h"

#include <catch2/catch.hpp>

#include "tests/daemon/head/head_driver.h"

namespace rayctl::rpc {
namespace {

TEST_CASE("a job whose node is dead says why it stands still, until the node is back", "[views]") {
  head::HeadDriver driver;
  const NodeId a = driver.AddNode("a");
  JobSpec spec = head::HeadDriver::Spec();
  spec.agent_grace = std::chrono::seconds(10);
  spec.grace_period = std::chrono::seconds(10);
  const JobId id = driver.Submit(spec);
  driver.RunAll(id);
  const auto message = [&] { return JobView(driver.head(), driver.Job(id), Detail::kFull).status().message(); };
  CHECK(message().empty());
  driver.Disconnect(a);
  driver.Pass(spec.agent_grace + spec.grace_period);
  REQUIRE(driver.StateOf(a) == NodeState::kDead);
  REQUIRE(driver.Job(id).state == JobState::kRunning);
  CHECK(message().find("node a is dead") == 0);
  driver.Connect(a, {driver.Running(id, 0)});
  CHECK(message().empty());
}

}  // namespace
}  // namespace rayctl::rpc
