#include "daemon/rpc/head_loop.h"

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
  void Submit(std::optional<absl::Status>& answer) {
    JobSpec spec;
    spec.argv = {"true"};
    loop.Call(head::SubmitJob{.spec = spec, .user = "ann"},
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

TEST_CASE("while the journal cannot be written nothing is told and nothing new is taken", "[head_loop]") {
  Loop test;
  test.store.broken = true;
  std::optional<absl::Status> first;
  test.Submit(first);
  test.Turn();
  CHECK_FALSE(first);
  std::optional<absl::Status> second;
  test.Submit(second);
  REQUIRE(second);
  CHECK(absl::IsResourceExhausted(*second));
  CHECK(std::string(second->message()).find("cannot write its journal") != std::string::npos);

  test.store.broken = false;
  test.io.restart();
  while (!first) {
    REQUIRE(test.io.run_one_for(test::kDeadline) == 1);  // The retry's timer.
  }
  CHECK(first->ok());
  CHECK(test.loop.journal_status().ok());
  CHECK(test.JobsOnDisk() == 1);
  std::optional<absl::Status> third;
  test.Submit(third);
  test.Turn();
  CHECK((third && third->ok()));
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
