#include "daemon/rpc/head_loop.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/daemon/rpc/head_fixture.h"

namespace rayctl::rpc {
namespace {

// The loop without gRPC, turned by the test.
struct Loop {
  boost::asio::io_context io;
  SystemClock clock;
  test::BreakableStore store;
  HeadLoop loop{{io, clock, store,
                 std::make_unique<head::Head>(head::HeadConfig{}, std::vector<head::Record>{}, "c", clock.Read())}};

  void Turn() {
    io.restart();
    io.poll();
  }
  // Turns until the journal has been written again.
  void Heal() {
    store.broken = false;
    io.restart();
    while (!loop.journal_status().ok()) {
      REQUIRE(io.run_one_for(test::kDeadline) == 1);  // The retry's timer.
    }
  }
  void Submit(std::optional<absl::Status>& answer, const std::string& request_id = "") {
    JobSpec spec;
    spec.argv = {"true"};
    spec.resources_per_worker.Set(kCpu, Amount::Units(1));
    loop.Call(head::SubmitJob{.request_id = request_id, .spec = spec, .user = "ann"},
              [&](const absl::StatusOr<head::Answer>& result) { answer = result.status(); });
  }
  std::size_t JobsOnDisk() {
    std::size_t jobs = 0;
    const std::vector<head::Record> records = *store.Load();  // Named: a loop does not keep a temporary alive.
    for (const head::Record& record : records) {
      jobs += std::holds_alternative<head::JobRecord>(record) ? 1 : 0;
    }
    return jobs;
  }
};

// A node of the loop's cluster, and what it was told.
class AgentPlay final : public AgentLinks {
 public:
  explicit AgentPlay(Loop& test) : test_(test) {
    test.loop.set_links(this);
    test.loop.Call(head::JoinNode{.node_name = "a"}, [this](const absl::StatusOr<head::Answer>& answer) {
      node_ = std::get<head::JoinAnswer>(*answer).node;
    });
    test.Turn();
    link::Register registration;
    registration.boot_id = "boot";
    registration.address = "10.0.0.1";
    registration.resources.Set(kCpu, Amount::Units(1));
    Say(std::move(registration));
    incarnation_ = sent.at(0).incarnation;
  }
  ~AgentPlay() override { test_.loop.set_links(nullptr); }

  void Say(decltype(link::AgentToHead::body) body) {
    test_.loop.Deliver(head::AgentMessage{StreamId{1}, node_, {incarnation_, ++sequence_, std::move(body)}});
    test_.Turn();
  }
  void Send(StreamId, const link::HeadToAgent& message) override { sent.push_back(message); }
  void Close(StreamId, const absl::Status& why) override { FAIL(why.message()); }

  std::vector<link::HeadToAgent> sent;

 private:
  Loop& test_;
  NodeId node_;
  Incarnation incarnation_ = 0;
  std::uint64_t sequence_ = 0;
};

TEST_CASE("an answer follows the commit", "[head_loop]") {
  Loop test;
  std::optional<absl::Status> answer;
  test.Submit(answer);
  CHECK_FALSE(answer);
  CHECK(test.JobsOnDisk() == 0);
  test.Turn();
  REQUIRE(answer);
  CHECK(answer->ok());
  CHECK(test.JobsOnDisk() == 1);
}

TEST_CASE("events that wait together share a transaction", "[head_loop]") {
  Loop test;
  std::vector<std::optional<absl::Status>> answers(20);
  const std::uint64_t before = test.loop.commits();
  for (auto& answer : answers) {
    test.loop.Post([&] { test.Submit(answer); });
  }
  test.Turn();
  CHECK(test.loop.commits() == before + 1);
  CHECK(test.JobsOnDisk() == answers.size());
  for (const auto& answer : answers) {
    CHECK((answer && answer->ok()));
  }
}

TEST_CASE("what cannot be recorded is refused at once, and is as if it had never been asked", "[head_loop]") {
  Loop test;
  AgentPlay agent(test);
  test.store.broken = true;
  const std::size_t said = agent.sent.size();
  for (int time = 0; time < 2; ++time) {  // The call that meets the full disk, and one that comes later.
    std::optional<absl::Status> answer;
    test.Submit(answer, "request");
    test.Turn();
    REQUIRE(answer);
    CHECK(absl::IsResourceExhausted(*answer));
    CHECK(std::string(answer->message()).find("cannot write its journal") != std::string::npos);
    CHECK(test.loop.head().jobs().empty());
    test.loop.head().CheckInvariants();
  }
  CHECK(agent.sent.size() == said);

  test.Heal();
  CHECK(test.loop.head().jobs().empty());
  CHECK(test.JobsOnDisk() == 0);
  for (std::size_t i = said; i < agent.sent.size(); ++i) {
    CHECK(agent.sent[i].sequence == i + 1);  // No gap, for which the agent would give up the stream.
    CHECK_FALSE(std::holds_alternative<link::StartGroup>(agent.sent[i].body));
  }
  std::optional<absl::Status> again;
  test.Submit(again, "request");
  test.Turn();
  REQUIRE(again);
  CHECK(again->ok());
  CHECK(test.JobsOnDisk() == 1);
  CHECK(std::holds_alternative<link::StartGroup>(agent.sent.back().body));
}

TEST_CASE("a token that could not be recorded is nobody's", "[head_loop]") {
  Loop test;
  test.store.broken = true;
  const auto create = [&](std::optional<absl::Status>& answer) {
    test.loop.Call(head::CreateToken{.name = "eve", .role = Role::kUser, .sha256 = std::string(32, 'x')},
                   [&answer](const absl::StatusOr<head::Answer>& result) { answer = result.status(); });
    test.Turn();
  };
  std::optional<absl::Status> refused;
  create(refused);
  REQUIRE(refused);
  CHECK(absl::IsResourceExhausted(*refused));
  test.Heal();
  for (const auto& [id, token] : test.loop.head().tokens()) {
    CHECK(token.revoked);
  }
  std::optional<absl::Status> again;
  create(again);
  CHECK((again && again->ok()));
}

TEST_CASE("an end is shown and told when it is recorded, not before", "[head_loop]") {
  Loop test;
  AgentPlay agent(test);
  std::optional<absl::Status> answer;
  test.Submit(answer);
  test.Turn();
  agent.Say(link::RankChanged{{{JobId{1}, 0, 0}, WorkerState::kRunning, 77, {}}});
  REQUIRE(test.loop.head().FindJob(JobId{1})->state == JobState::kRunning);
  int seen = 0;
  const HeadLoop::Watch watch = test.loop.WatchJob(JobId{1}, [&] { ++seen; });

  test.store.broken = true;
  agent.Say(link::RankChanged{{{JobId{1}, 0, 0}, WorkerState::kExited, 77, {}}});
  CHECK(seen == 0);
  CHECK(test.loop.head().FindJob(JobId{1})->state == JobState::kRunning);
  CHECK(test.loop.head().jobs().at(JobId{1}).state == JobState::kRunning);
  CHECK(test.loop.head().FindJobByName("true-1")->state == JobState::kRunning);
  CHECK(test.loop.head().FindJobByName("true-2") == nullptr);

  test.Heal();
  CHECK(seen > 0);
  CHECK(test.loop.head().FindJob(JobId{1})->state == JobState::kSucceeded);
  CHECK(test.JobsOnDisk() == 1);
}

TEST_CASE("the cluster is stopped though the journal cannot be written", "[head_loop]") {
  const bool known_before = GENERATE(false, true);  // Whether the stop is what meets the full disk first.
  Loop test;
  AgentPlay agent(test);
  std::optional<absl::Status> answer;
  test.Submit(answer);
  test.Turn();
  agent.Say(link::RankChanged{{{JobId{1}, 0, 0}, WorkerState::kRunning, 77, {}}});
  bool stopped = false;
  test.loop.set_on_cluster_stopped([&] { stopped = true; });
  test.store.broken = true;
  if (known_before) {
    std::optional<absl::Status> refused;
    test.Submit(refused);
    test.Turn();
  }
  test.loop.Deliver(head::StopCluster{"stop"});
  test.Turn();
  REQUIRE(std::holds_alternative<link::StopGroup>(agent.sent.back().body));
  CHECK_FALSE(stopped);
  link::RankEnd end;
  end.signal = 15;
  end.stop_requested = true;
  agent.Say(link::RankChanged{{{JobId{1}, 0, 0}, WorkerState::kExited, 77, end}});
  CHECK(stopped);
  CHECK(std::any_of(agent.sent.begin(), agent.sent.end(), [](const link::HeadToAgent& message) {
    return std::holds_alternative<link::LeaveCluster>(message.body);
  }));
  CHECK(test.loop.head().FindJob(JobId{1})->state == JobState::kRunning);  // As the journal has it.
}

TEST_CASE("a watch sees the job's changes until it is dropped", "[head_loop]") {
  Loop test;
  std::optional<absl::Status> answer;
  test.Submit(answer);
  test.Turn();
  int seen = 0;
  HeadLoop::Watch watch = test.loop.WatchJob(JobId{1}, [&] {
    ++seen;
    watch = {};  // From inside.
  });
  test.loop.Call(head::CancelJob{.job = {1}, .user = "ann"}, [](const absl::StatusOr<head::Answer>&) {});
  test.Turn();
  CHECK(seen == 1);
}

TEST_CASE("calls that wait when the loop stops are answered", "[head_loop]") {
  Loop test;
  std::optional<absl::Status> answer;
  test.Submit(answer);
  test.loop.Stop();
  REQUIRE(answer);
  CHECK(absl::IsUnavailable(*answer));
  std::optional<absl::Status> late;
  test.Submit(late);
  REQUIRE(late);
  CHECK(absl::IsUnavailable(*late));
}

}  // namespace
}  // namespace rayctl::rpc
