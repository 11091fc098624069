#include "tests/daemon/head/head_driver.h"

namespace rayctl::head {
namespace {

TEST_CASE("a gang is placed, told, runs and succeeds", "[head]") {
  HeadDriver driver;
  const NodeId a = driver.AddNode("a", {.cpus = 2});
  const NodeId b = driver.AddNode("b", {.cpus = 2});
  const JobId job = driver.Submit(HeadDriver::Spec(4, "/opt/bin/train --fast"));
  CHECK(driver.Job(job).spec.name == "train-1");
  CHECK(driver.Job(job).state == JobState::kStarting);
  const auto on_a = driver.TakeSent<link::StartGroup>(a);
  const auto on_b = driver.TakeSent<link::StartGroup>(b);
  REQUIRE(on_a.size() == 1);
  REQUIRE(on_b.size() == 1);
  CHECK(on_a[0].ranks.size() == 2);
  CHECK(on_a[0].checks_master_port);
  CHECK_FALSE(on_b[0].checks_master_port);
  CHECK(on_a[0].master_addr == "10.0.0.1");
  CHECK(on_b[0].master_port == on_a[0].master_port);
  CHECK(on_b[0].node_rank == 1);
  CHECK(on_b[0].node_count == 2);
  CHECK(on_b[0].ranks[0].rank == 2);
  CHECK(on_b[0].ranks[1].local_rank == 1);
  driver.RunAll(job);
  CHECK(driver.Job(job).state == JobState::kRunning);
  for (Rank rank = 0; rank < 4; ++rank) {
    driver.End(job, rank);
  }
  CHECK(driver.Job(job).state == JobState::kSucceeded);
  CHECK(driver.Job(job).exit_code == 0);
  CHECK(driver.TakeSent<link::ForgetJob>(a).size() == 1);
  CHECK(driver.TakeSent<link::ForgetJob>(b).size() == 1);
}

TEST_CASE("all ranks on one node meet on loopback, each living attempt on a port of its own", "[head]") {
  HeadDriver driver;
  const NodeId a = driver.AddNode("a");
  driver.Submit(HeadDriver::Spec(2));
  driver.Submit(HeadDriver::Spec(2));
  const auto groups = driver.TakeSent<link::StartGroup>(a);
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].master_addr == "127.0.0.1");
  CHECK(groups[0].master_port != groups[1].master_port);
  CHECK(groups[0].master_port >= 20'000);
  CHECK(groups[0].master_port <= 20'009);
}

TEST_CASE("the first failure stops the gang and the next attempt starts when it is gone", "[head]") {
  HeadDriver driver;
  const NodeId a = driver.AddNode("a");
  JobSpec spec = HeadDriver::Spec(4);
  spec.max_failures = 1;
  const JobId job = driver.Submit(spec);
  driver.RunAll(job);
  driver.TakeSent<link::StartGroup>(a);
  link::RankEnd killed = HeadDriver::Signal(9);
  killed.last_output = "its last words\n";
  driver.End(job, 2, killed);
  CHECK(driver.Job(job).state == JobState::kRecovering);
  CHECK(driver.Job(job).failures == 1);
  const auto stops = driver.TakeSent<link::StopGroup>(a);
  REQUIRE(stops.size() == 1);
  CHECK(stops[0].attempt == 0);
  CHECK(driver.TakeSent<link::StartGroup>(a).empty());
  driver.End(job, 0, HeadDriver::Stopped());
  driver.End(job, 1, HeadDriver::Stopped());
  CHECK(driver.TakeSent<link::StartGroup>(a).empty());
  driver.End(job, 3, HeadDriver::Stopped());
  CHECK(driver.Job(job).attempt.number == 1);
  CHECK(driver.Job(job).state == JobState::kRecovering);
  CHECK(driver.Job(job).message == "rank 2 on a was killed by signal 9 (SIGKILL)");
  CHECK(driver.Job(job).last_output == "its last words\n");
  CHECK(driver.TakeSent<link::ForgetRanks>(a).size() == 1);
  REQUIRE(driver.TakeSent<link::StartGroup>(a).size() == 1);
  driver.RunAll(job);
  CHECK(driver.Job(job).state == JobState::kRunning);
  CHECK(driver.Job(job).message.empty());
  CHECK(driver.Job(job).last_output.empty());
  CHECK_FALSE(driver.Job(job).failed_rank);

  driver.End(job, 1, HeadDriver::Code(3));
  CHECK(driver.Job(job).state == JobState::kStopping);
  for (const Rank rank : {0u, 2u, 3u}) {
    driver.End(job, rank, HeadDriver::Stopped());
  }
  CHECK(driver.Job(job).state == JobState::kFailed);
  CHECK(driver.Job(job).reason == Reason::kExited);
  CHECK(driver.Job(job).exit_code == 3);
  CHECK(driver.Job(job).failures == 2);
  CHECK(driver.Job(job).failed_rank == 1u);
  CHECK(driver.Job(job).message == "rank 1 on a exited with code 3");
}

}  // namespace
}  // namespace rayctl::head
