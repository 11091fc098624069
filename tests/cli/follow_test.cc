#include "cli/follow.h"

#include <catch2/catch.hpp>
#include <string>

namespace rayctl::cli {
namespace {

// Prints into two strings.
struct Printed {
  explicit Printed(bool prefixed)
      : printer(
            [this](v1::OutputStream stream, std::string_view bytes) {
              (stream == v1::OUTPUT_STREAM_STDERR ? err : out) += bytes;
              return open;
            },
            prefixed) {}
  bool Add(std::uint32_t rank, std::string_view data, v1::OutputStream stream = v1::OUTPUT_STREAM_STDOUT,
           std::uint32_t attempt = 0) {
    v1::JobOutput output;
    output.set_attempt(attempt);
    output.set_rank(rank);
    output.set_stream(stream);
    output.set_data(std::string(data));
    output.set_next_offset(next_offset);
    return printer.Print(output);
  }
  std::string out;
  std::string err;
  bool open = true;
  std::uint64_t next_offset = 0;
  OutputPrinter printer;
};

TEST_CASE("one rank is printed byte for byte", "[cli]") {
  Printed printed(/*prefixed=*/false);
  const std::string bytes("a\0b\r\n\xFF no end", 13);
  printed.Add(0, bytes);
  printed.Add(0, "oops", v1::OUTPUT_STREAM_STDERR);
  CHECK(printed.out == bytes);
  CHECK(printed.err == "oops");
  printed.printer.Flush();
  CHECK(printed.out == bytes);
}

TEST_CASE("lines of several ranks are prefixed and never torn", "[cli]") {
  Printed printed(/*prefixed=*/true);
  printed.Add(0, "hel");
  printed.Add(1, "one\ntw");
  CHECK(printed.out == "[rank 1] one\n");
  printed.Add(0, "lo\n\n");
  CHECK(printed.out == "[rank 1] one\n[rank 0] hello\n[rank 0] \n");
  printed.Add(1, "err of 1\n", v1::OUTPUT_STREAM_STDERR);
  CHECK(printed.err == "[rank 1] err of 1\n");
  printed.Add(1, "o");
  printed.printer.Flush();
  CHECK(printed.out == "[rank 1] one\n[rank 0] hello\n[rank 0] \n[rank 1] two\n");
}

TEST_CASE("who follows a job is told why an attempt ended, once, and of the next", "[cli]") {
  AttemptTeller teller;
  v1::Job job;
  job.mutable_spec()->mutable_run_config()->mutable_failure_config()->set_max_failures(2);
  v1::JobStatus& status = *job.mutable_status();
  const auto told = [&](v1::JobState state, std::uint32_t attempt, v1::Reason reason, const std::string& message) {
    status.set_state(state);
    status.set_attempt(attempt);
    status.set_reason(reason);
    status.set_message(message);
    return teller.Take(job);
  };
  CHECK(told(v1::JOB_STATE_QUEUED, 0, v1::REASON_UNSPECIFIED, "").empty());
  CHECK(told(v1::JOB_STATE_STARTING, 0, v1::REASON_UNSPECIFIED, "").empty());
  CHECK(told(v1::JOB_STATE_RUNNING, 0, v1::REASON_UNSPECIFIED, "").empty());
  // Its other ranks still end: why is not known.
  status.set_failures(1);
  CHECK(told(v1::JOB_STATE_RECOVERING, 0, v1::REASON_UNSPECIFIED, "").empty());
  CHECK(told(v1::JOB_STATE_RECOVERING, 1, v1::REASON_EXITED, "rank 1 on a exited with code 3") ==
        "attempt 0 ended: rank 1 on a exited with code 3; attempt 1 begins (1 of 2 allowed failures)");
  // The same message again, while the new attempt starts.
  CHECK(told(v1::JOB_STATE_RECOVERING, 1, v1::REASON_EXITED, "rank 1 on a exited with code 3").empty());
  CHECK(told(v1::JOB_STATE_RUNNING, 1, v1::REASON_UNSPECIFIED, "").empty());
  status.set_failures(2);
  CHECK(told(v1::JOB_STATE_RECOVERING, 1, v1::REASON_NODE_LOST, "node b is dead") ==
        "attempt 1 ended: node b is dead; attempt 2 begins when its nodes have room (2 of 2 allowed failures)");
  CHECK(told(v1::JOB_STATE_RECOVERING, 1, v1::REASON_NODE_LOST, "node b is dead").empty());
  CHECK(told(v1::JOB_STATE_RECOVERING, 2, v1::REASON_NODE_LOST, "node b is dead") ==
        "attempt 2 begins (2 of 2 allowed failures)");
  CHECK(told(v1::JOB_STATE_RUNNING, 2, v1::REASON_UNSPECIFIED, "").empty());
  CHECK(told(v1::JOB_STATE_FAILED, 2, v1::REASON_EXITED, "rank 0 on a exited with code 1").empty());
}

TEST_CASE("who comes late is told of nothing that was before", "[cli]") {
  AttemptTeller teller;
  v1::Job job;
  job.mutable_status()->set_state(v1::JOB_STATE_RUNNING);
  job.mutable_status()->set_attempt(4);
  CHECK(teller.Take(job).empty());
}

TEST_CASE("a line without an end is printed in pieces rather than kept for ever", "[cli]") {
  Printed printed(/*prefixed=*/true);
  printed.Add(3, std::string(64 * 1024, 'x'));
  CHECK(printed.out.size() == std::string("[rank 3] \n").size() + 64 * 1024);
}

TEST_CASE("the printer knows where each stream goes on after a reconnect", "[cli]") {
  Printed printed(/*prefixed=*/true);
  printed.next_offset = 3;
  printed.Add(0, "a\nb");
  printed.next_offset = 9;
  printed.Add(0, "oops\n", v1::OUTPUT_STREAM_STDERR);
  printed.next_offset = 2;
  printed.Add(1, "x\n", v1::OUTPUT_STREAM_STDOUT, /*attempt=*/1);
  printed.next_offset = 0;  // An agent that does not tell.
  printed.Add(2, "y\n");
  const std::vector<v1::OutputPosition> positions = printed.printer.Positions();
  REQUIRE(positions.size() == 3);
  CHECK(positions[0].ShortDebugString() == "stream: OUTPUT_STREAM_STDOUT offset: 3");
  CHECK(positions[1].ShortDebugString() == "stream: OUTPUT_STREAM_STDERR offset: 9");
  CHECK(positions[2].ShortDebugString() == "attempt: 1 rank: 1 stream: OUTPUT_STREAM_STDOUT offset: 2");
  printed.Add(0, "c\n");  // What comes then follows the begun line.
  CHECK(printed.out == "[rank 0] a\n[rank 1] x\n[rank 2] y\n[rank 0] bc\n");
}

TEST_CASE("a reader that went away is noticed", "[cli]") {
  Printed printed(/*prefixed=*/true);
  printed.open = false;
  CHECK_FALSE(printed.Add(0, "line\n"));
}

v1::Job Ended(v1::JobState state, v1::Reason reason, std::int32_t code) {
  v1::Job job;
  job.set_id(7);
  job.mutable_status()->set_state(state);
  job.mutable_status()->set_reason(reason);
  job.mutable_status()->set_exit_code(code);
  return job;
}

TEST_CASE("a job that failed is told in words, with last lines unless they were seen", "[cli]") {
  v1::Job job = Ended(v1::JOB_STATE_FAILED, v1::REASON_SIGNALED, 139);
  job.mutable_status()->set_message("rank 2 on node-a: killed by SIGSEGV");
  job.mutable_status()->set_failed_rank(2);
  job.mutable_status()->set_last_output("boom\n");
  CHECK(Obituary(job, false) ==
        "job 7 FAILED/SIGNALED: rank 2 on node-a: killed by SIGSEGV\nlast lines of rank 2:\nboom");
  CHECK(Obituary(job, true) == "job 7 FAILED/SIGNALED: rank 2 on node-a: killed by SIGSEGV");
  CHECK(JobExitCode(job) == 139);
}

TEST_CASE("a job that succeeded is not spoken of", "[cli]") {
  const v1::Job job = Ended(v1::JOB_STATE_SUCCEEDED, v1::REASON_UNSPECIFIED, 0);
  CHECK(Obituary(job, false).empty());
  CHECK(JobExitCode(job) == 0);
}

}  // namespace
}  // namespace rayctl::cli
