#include "daemon/rpc/follow.h"

#include <catch2/catch.hpp>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "daemon/rpc/follow_request.h"
#include "tests/daemon/rpc/head_fixture.h"

namespace rayctl::rpc {
namespace {

namespace v1 = ::rayctl::v1;
using test::Context;
using test::FakeAgent;
using test::Ref;
using test::Submit;
using test::TestHead;

// A SendOutput call, and what it needs as long as it lives.
struct Sent {
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<v1::SendOutputResponse> response;
  std::unique_ptr<grpc::ClientWriter<v1::SendOutputRequest>> writer;
};

Sent SendPiece(FakeAgent& agent, std::uint64_t transfer, std::uint32_t attempt, const std::string& text,
               std::uint64_t next_offset, bool complete) {
  Sent sent{Context(""), std::make_unique<v1::SendOutputResponse>(), nullptr};
  sent.writer = agent.stub->SendOutput(sent.context.get(), sent.response.get());
  v1::SendOutputRequest message;
  message.set_transfer_id(transfer);
  message.mutable_output()->set_attempt(attempt);
  message.mutable_output()->set_stream(v1::OUTPUT_STREAM_STDOUT);
  message.mutable_output()->set_data(text);
  message.mutable_output()->set_next_offset(next_offset);
  CHECK(sent.writer->Write(message));
  if (complete) {
    sent.writer->WritesDone();
  }
  return sent;
}

// The byte at that place of the output, so that a lost, doubled or swapped piece shows.
char ByteAt(std::uint64_t i) { return static_cast<char>((i * 2654435761U) >> 13); }

TEST_CASE("output comes byte for byte at the reader's pace", "[server]") {
  constexpr std::uint64_t kBytes = 50 << 20;
  constexpr std::uint64_t kAheadMax =
      16 << 20;  // What may be on its way between agent and a client that reads nothing.
  TestHead head;
  FakeAgent agent(head, "a");
  const std::uint64_t job = Submit(head, head.admin);
  agent.Next(v1::HeadToAgent::kStart);
  agent.SayRank(job, v1::WORKER_STATE_RUNNING);

  const auto context = Context(head.admin);
  const auto stub = v1::JobService::NewStub(head.Channel());
  v1::FollowJobRequest request;
  *request.mutable_job() = Ref(job);
  request.set_follow(true);
  const auto follow = stub->FollowJob(context.get(), request);
  const v1::HeadToAgent open = agent.Next(v1::HeadToAgent::kOpenOutput);
  CHECK(open.open_output().job_id() == job);
  CHECK(open.open_output().follow());

  std::mutex mutex;
  std::condition_variable blocked;
  std::uint64_t sent = 0;
  std::thread sender([&] {
    const auto send_context = Context("");
    v1::SendOutputResponse response;
    const auto writer = agent.stub->SendOutput(send_context.get(), &response);
    for (std::uint64_t at = 0; at < kBytes;) {
      v1::SendOutputRequest message;
      message.set_transfer_id(at == 0 ? open.open_output().transfer_id() : 0);
      v1::JobOutput& output = *message.mutable_output();
      output.set_stream(v1::OUTPUT_STREAM_STDOUT);
      std::string& data = *output.mutable_data();
      for (std::uint64_t end = std::min<std::uint64_t>(kBytes, at + (64 << 10)); at < end; ++at) {
        data.push_back(ByteAt(at));
      }
      if (!writer->Write(message)) {
        break;
      }
      const std::lock_guard lock(mutex);
      sent = at;
      blocked.notify_one();
    }
    writer->WritesDone();
    writer->Finish();
    agent.SayRank(job, v1::WORKER_STATE_EXITED, 0);
  });

  // Nothing is read until the sender has stood still for a while, or has sent far too much.
  {
    std::unique_lock lock(mutex);
    std::uint64_t before = 0;
    do {
      before = sent;
    } while (blocked.wait_for(lock, std::chrono::milliseconds(300), [&] { return sent != before; }) &&
             sent < kAheadMax);
    CHECK(sent > 0);
    CHECK(sent < kAheadMax);
  }
  std::uint64_t received = 0;
  bool exact = true;
  v1::FollowJobResponse response;
  v1::Job last;
  while (follow->Read(&response)) {
    if (response.has_output()) {
      for (const char byte : response.output().data()) {
        exact = exact && byte == ByteAt(received++);
      }
    } else if (response.has_job()) {
      last = response.job();
    }
  }
  const grpc::Status status = follow->Finish();
  sender.join();
  INFO(status.error_message());
  CHECK(status.ok());
  CHECK(received == kBytes);
  CHECK(exact);
  CHECK(last.status().state() == v1::JOB_STATE_SUCCEEDED);
}

TEST_CASE("an agent that comes back, or whose call broke, is asked for what is missing", "[server]") {
  TestHead head;
  FakeAgent agent(head, "a");
  const std::uint64_t job = Submit(head, head.admin);
  agent.Next(v1::HeadToAgent::kStart);
  agent.SayRank(job, v1::WORKER_STATE_RUNNING);
  const auto context = Context(head.admin);
  v1::FollowJobRequest request;
  *request.mutable_job() = Ref(job);
  request.set_follow(true);
  request.set_grep("[a-z]");
  const auto stub = v1::JobService::NewStub(head.Channel());
  const auto follow = stub->FollowJob(context.get(), request);
  const auto send = [&](const std::string& text, std::uint64_t from, std::uint64_t next, bool complete) {
    const v1::OpenOutput open = agent.Next(v1::HeadToAgent::kOpenOutput).open_output();
    CHECK(open.grep() == "[a-z]");
    REQUIRE(open.resume_size() == (from == 0 ? 0 : 1));
    if (from != 0) {
      CHECK(open.resume(0).stream() == v1::OUTPUT_STREAM_STDOUT);
      CHECK(open.resume(0).offset() == from);
    }
    return SendPiece(agent, open.transfer_id(), 0, text, next, complete);
  };
  std::string output;
  std::vector<std::string> remarks;
  v1::FollowJobResponse response;
  const auto read_until = [&](const auto& enough) {
    while (!enough() && follow->Read(&response)) {
      output += response.output().data();
      if (!response.remark().empty()) {
        remarks.push_back(response.remark());
      }
    }
  };
  Sent first = send("one\ntwo\n", 0, 11, /*complete=*/false);  // Three bytes of another stream came before.
  read_until([&] { return output == "one\ntwo\n"; });
  first.context->TryCancel();  // The call alone; the agent is asked again at once.
  first.writer->Finish();
  Sent second = send("three\n", 11, 17, /*complete=*/false);
  read_until([&] { return output == "one\ntwo\nthree\n"; });
  CHECK(remarks.empty());
  agent.Disconnect();
  read_until([&] { return !remarks.empty(); });
  REQUIRE(remarks.size() == 1);
  CHECK(remarks[0].find("node a is away") != std::string::npos);
  second.context->TryCancel();
  second.writer->Finish();
  agent.Connect();
  Sent third = send("four\n", 17, 22, /*complete=*/true);
  read_until([&] { return output.size() >= 19; });
  CHECK(output == "one\ntwo\nthree\nfour\n");
  CHECK(third.writer->Finish().ok());
}

TEST_CASE("an agent that was asked for output and does not call is asked again", "[server]") {
  TestHead head(/*insecure=*/false, std::chrono::milliseconds(50));
  FakeAgent agent(head, "a");
  const std::uint64_t job = Submit(head, head.admin);
  agent.Next(v1::HeadToAgent::kStart);
  agent.SayRank(job, v1::WORKER_STATE_RUNNING);
  const bool follows = GENERATE(true, false);
  const auto context = Context(head.admin);
  v1::FollowJobRequest request;
  *request.mutable_job() = Ref(job);
  request.set_follow(follows);
  const auto stub = v1::JobService::NewStub(head.Channel());
  const auto follow = stub->FollowJob(context.get(), request);
  const std::uint64_t first = agent.Next(v1::HeadToAgent::kOpenOutput).open_output().transfer_id();
  std::uint64_t asked = first;
  for (std::uint32_t i = 1; i < kTransferTriesMax; ++i) {
    CHECK(agent.Next(v1::HeadToAgent::kCloseOutput).close_output().transfer_id() == asked);
    asked = agent.Next(v1::HeadToAgent::kOpenOutput).open_output().transfer_id();
  }
  CHECK(asked != first);
  v1::FollowJobResponse response;
  std::string remarks;
  std::string output;
  while (remarks.empty() && follow->Read(&response)) {
    remarks += response.remark();
  }
  CHECK(remarks.find("node a does not send its output") != std::string::npos);
  if (follows) {  // It is asked on, and what comes at last is shown.
    asked = agent.Next(v1::HeadToAgent::kOpenOutput).open_output().transfer_id();
    Sent late = SendPiece(agent, asked, 0, "at last\n", 8, /*complete=*/false);
    while (output.empty() && follow->Read(&response)) {
      output += response.output().data();
    }
    CHECK(output == "at last\n");
    late.context->TryCancel();
    late.writer->Finish();
    context->TryCancel();
    follow->Finish();
  } else {
    while (follow->Read(&response)) {
      output += response.output().data();
    }
    CHECK(output.empty());
    CHECK(follow->Finish().ok());
  }
}

TEST_CASE("what several nodes wrote is put in order of time", "[server]") {
  TestHead head;
  FakeAgent a(head, "a");
  FakeAgent b(head, "b");
  v1::SubmitJobRequest submit;
  submit.mutable_spec()->add_argv("true");
  submit.mutable_spec()->mutable_scaling_config()->set_num_workers(8);  // Four CPUs a node.
  v1::SubmitJobResponse submitted;
  const auto stub = v1::JobService::NewStub(head.Channel());
  const auto submit_context = Context(head.admin);
  REQUIRE(stub->SubmitJob(submit_context.get(), submit, &submitted).ok());
  const auto context = Context(head.admin);
  v1::FollowJobRequest request;
  request.mutable_job()->set_id(submitted.job_id());
  const auto follow = stub->FollowJob(context.get(), request);
  const auto send = [&](FakeAgent& agent, std::vector<int> times) {
    const v1::OpenOutput open = agent.Next(v1::HeadToAgent::kOpenOutput).open_output();
    CHECK(open.by_time());
    auto call = Context("");
    v1::SendOutputResponse response;
    const auto writer = agent.stub->SendOutput(call.get(), &response);
    for (const int time : times) {
      v1::SendOutputRequest message;
      message.set_transfer_id(open.transfer_id());
      message.mutable_output()->set_rank(open.ranks(0));
      message.mutable_output()->set_stream(v1::OUTPUT_STREAM_STDOUT);
      message.mutable_output()->set_data(std::to_string(time) + "\n");
      message.mutable_output()->mutable_at()->set_seconds(time / 10);
      message.mutable_output()->mutable_at()->set_nanos(time % 10);
      CHECK(writer->Write(message));
    }
    writer->WritesDone();
    CHECK(writer->Finish().ok());
  };
  auto sends_a = std::async(std::launch::async, [&] { send(a, {1, 2, 12, 30}); });
  auto sends_b = std::async(std::launch::async, [&] { send(b, {3, 11, 13, 31, 32}); });
  std::string output;
  v1::FollowJobResponse response;
  while (follow->Read(&response)) {
    output += response.output().data();
  }
  CHECK(follow->Finish().ok());
  sends_a.get();
  sends_b.get();
  CHECK(output == "1\n2\n3\n11\n12\n13\n30\n31\n32\n");
}

TEST_CASE("ranks, attempts and nodes that there are not, and wrong words, are refused in a sentence", "[server]") {
  TestHead head;
  FakeAgent agent(head, "a");
  FakeAgent idle(head, "idle");
  const std::uint64_t job = Submit(head, head.admin);
  agent.Next(v1::HeadToAgent::kStart);
  const auto stub = v1::JobService::NewStub(head.Channel());
  const auto refused = [&](const std::function<void(v1::FollowJobRequest&)>& change) {
    v1::FollowJobRequest request;
    *request.mutable_job() = Ref(job);
    change(request);
    const auto context = Context(head.admin);
    const auto follow = stub->FollowJob(context.get(), request);
    v1::FollowJobResponse response;
    while (follow->Read(&response)) {
    }
    const grpc::Status status = follow->Finish();
    return std::pair(status.error_code(), status.error_message());
  };
  using Refusal = std::pair<grpc::StatusCode, std::string>;
  CHECK(refused([](auto& request) { request.add_ranks(99); }) ==
        Refusal(grpc::StatusCode::NOT_FOUND, "job 1 has no rank 99; it has one, rank 0"));
  CHECK(refused([](auto& request) { request.set_attempt(3); }) ==
        Refusal(grpc::StatusCode::NOT_FOUND, "job 1 has had no attempt 3; only attempt 0 so far"));
  CHECK(refused([](auto& request) { request.add_nodes("b"); }) ==
        Refusal(grpc::StatusCode::NOT_FOUND, "there is no node named \"b\"; there is a, idle"));
  CHECK(refused([](auto& request) { request.add_nodes("idle"); }) ==
        Refusal(grpc::StatusCode::NOT_FOUND, "no rank of attempt 0 of job 1 was on that node; they were on a"));
  const Refusal grep = refused([](auto& request) { request.set_grep("("); });
  CHECK(grep.first == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(grep.second.starts_with("grep: '(' is no regular expression that RE2 knows: missing )"));
  CHECK(refused([](auto& request) { request.add_streams(static_cast<v1::OutputStream>(7)); }).first ==
        grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_CASE("logs that no node keeps any more are missed in words", "[server]") {
  TestHead head;
  FakeAgent agent(head, "a");
  const std::uint64_t job = Submit(head, head.admin);
  agent.Next(v1::HeadToAgent::kStart);
  agent.SayRank(job, v1::WORKER_STATE_RUNNING);
  agent.SayRank(job, v1::WORKER_STATE_EXITED, 0);
  const bool follows = GENERATE(true, false);
  const auto stub = v1::JobService::NewStub(head.Channel());
  const auto context = Context(head.admin);
  v1::WaitJobRequest wait;
  *wait.mutable_job() = Ref(job);
  v1::WaitJobResponse waited;
  REQUIRE(stub->WaitJob(Context(head.admin).get(), wait, &waited).ok());
  v1::FollowJobRequest request;
  *request.mutable_job() = Ref(job);
  request.set_follow(follows);
  const auto follow = stub->FollowJob(context.get(), request);
  v1::SendOutputRequest message;
  message.set_transfer_id(agent.Next(v1::HeadToAgent::kOpenOutput).open_output().transfer_id());
  message.add_ranks_without_log(0);
  const auto call = Context("");
  v1::SendOutputResponse sent;
  const auto writer = agent.stub->SendOutput(call.get(), &sent);
  CHECK(writer->Write(message));
  writer->WritesDone();
  CHECK(writer->Finish().ok());
  std::string remark;
  v1::FollowJobResponse response;
  while (follow->Read(&response)) {
    remark += response.remark();
  }
  CHECK(follow->Finish().ok());
  CHECK(remark.starts_with("no log is kept of rank 0 of attempt 0 of job 1"));
}

TEST_CASE("what an attempt wrote comes before what the next one writes, whichever call is faster", "[server]") {
  TestHead head;
  FakeAgent agent(head, "a");
  v1::SubmitJobRequest submit;
  submit.mutable_spec()->add_argv("true");
  submit.mutable_spec()->mutable_run_config()->mutable_failure_config()->set_max_failures(1);
  v1::SubmitJobResponse submitted;
  const auto submit_context = Context(head.admin);
  const auto stub = v1::JobService::NewStub(head.Channel());
  REQUIRE(stub->SubmitJob(submit_context.get(), submit, &submitted).ok());
  const std::uint64_t job = submitted.job_id();
  const auto context = Context(head.admin);
  v1::FollowJobRequest request;
  *request.mutable_job() = Ref(job);
  request.set_follow(true);
  const auto follow = stub->FollowJob(context.get(), request);
  const std::uint64_t first = agent.Next(v1::HeadToAgent::kOpenOutput).open_output().transfer_id();
  agent.SayRank(job, v1::WORKER_STATE_RUNNING);
  agent.SayRank(job, v1::WORKER_STATE_EXITED, 1);
  const std::uint64_t second = agent.Next(v1::HeadToAgent::kOpenOutput).open_output().transfer_id();
  Sent late = SendPiece(agent, second, 1, "attempt 1", 9, /*complete=*/true);
  // The same connection carries calls in order, so once this one is answered the head has the newer attempt's output.
  v1::GetVersionResponse version;
  const auto asking = Context(head.admin);
  REQUIRE(v1::ClusterService::NewStub(agent.channel)->GetVersion(asking.get(), {}, &version).ok());
  Sent early = SendPiece(agent, first, 0, "attempt 0", 9, /*complete=*/true);
  std::string output;
  v1::FollowJobResponse response;
  while (output.size() < 18 && follow->Read(&response)) {
    output += response.output().data();
  }
  CHECK(output == "attempt 0attempt 1");
  CHECK(early.writer->Finish().ok());
  CHECK(late.writer->Finish().ok());
  context->TryCancel();
  follow->Finish();
}

TEST_CASE("output of a node that is away is remarked and does not hang", "[server]") {
  TestHead head;
  std::uint64_t job = 0;
  {
    FakeAgent agent(head, "a");
    job = Submit(head, head.admin);
    agent.Next(v1::HeadToAgent::kStart);
  }
  v1::FollowJobRequest request;
  *request.mutable_job() = Ref(job);
  std::string remark;
  while (remark.empty()) {  // Until the head has heard that the agent went.
    const auto context = Context(head.admin);
    const auto stub = v1::JobService::NewStub(head.Channel());
    const auto follow = stub->FollowJob(context.get(), request);
    v1::FollowJobResponse response;
    while (follow->Read(&response)) {
      remark += response.remark();
    }
    CHECK(follow->Finish().ok());
  }
  CHECK(remark.find("node a is away") != std::string::npos);
}

TEST_CASE("ranks are named in few words", "[server]") {
  CHECK(RanksText({}).empty());
  CHECK(RanksText({4}) == "4");
  CHECK(RanksText({0, 1, 2, 3, 7, 9, 10}) == "0-3, 7, 9-10");
}

}  // namespace
}  // namespace rayctl::rpc
