#include "daemon/rpc/server.h"

#include <catch2/catch.hpp>
#include <future>
#include <string>
#include <thread>

#include "daemon/net/port_owner.h"
#include "tests/daemon/rpc/head_fixture.h"

namespace rayctl::rpc {
namespace {

namespace v1 = ::rayctl::v1;
using test::Context;
using test::FakeAgent;
using test::Ref;
using test::Submit;
using test::TestHead;

TEST_CASE("a job goes to an agent and its end answers who waits", "[server]") {
  TestHead head;
  FakeAgent agent(head, "a");
  const std::string ann = head.CreateToken("ann", Role::kUser);
  const std::uint64_t job = Submit(head, ann);
  v1::WaitJobRequest request;
  *request.mutable_job() = Ref(job);
  auto waited = std::async(std::launch::async, [&] {
    v1::WaitJobResponse response;
    const auto context = Context(ann);
    const grpc::Status status = v1::JobService::NewStub(head.Channel())->WaitJob(context.get(), request, &response);
    return std::pair(status.error_code(), response);
  });
  const v1::HeadToAgent start = agent.Next(v1::HeadToAgent::kStart);
  CHECK(start.start().job_id() == job);
  CHECK(start.start().spec().argv(0) == "true");
  agent.SayRank(job, v1::WORKER_STATE_RUNNING);
  agent.SayRank(job, v1::WORKER_STATE_EXITED, 3);
  const auto [code, response] = waited.get();
  CHECK(code == grpc::StatusCode::OK);
  CHECK(response.job().status().state() == v1::JOB_STATE_FAILED);
  CHECK(response.job().status().exit_code() == 3);
  CHECK(response.job().status().user() == "ann");
  CHECK(response.job().status().nodes(0) == "a");
}

TEST_CASE("only an admin or its owner cancels a job", "[server]") {
  TestHead head;
  const std::string ann = head.CreateToken("ann", Role::kUser);
  const std::string bob = head.CreateToken("bob", Role::kUser);
  const std::uint64_t job = Submit(head, ann);
  v1::CancelJobRequest request;
  *request.mutable_job() = Ref(job);
  const auto cancel = [&](const std::string& token) {
    v1::CancelJobResponse response;
    const auto context = Context(token);
    return v1::JobService::NewStub(head.Channel())->CancelJob(context.get(), request, &response).error_code();
  };
  CHECK(cancel(bob) == grpc::StatusCode::PERMISSION_DENIED);
  CHECK(cancel(head.admin) == grpc::StatusCode::OK);
}

TEST_CASE("jobs are listed newest first, page by page", "[server]") {
  TestHead head;
  for (int i = 0; i < 5; ++i) {
    Submit(head, head.admin, "job" + std::to_string(i));
  }
  v1::ListJobsRequest request;
  request.set_page_size(2);
  std::vector<std::uint64_t> ids;
  do {
    v1::ListJobsResponse response;
    const auto context = Context(head.admin);
    REQUIRE(v1::JobService::NewStub(head.Channel())->ListJobs(context.get(), request, &response).ok());
    for (const v1::Job& job : response.jobs()) {
      ids.push_back(job.id());
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  CHECK(ids == std::vector<std::uint64_t>{5, 4, 3, 2, 1});
}

TEST_CASE("what there is not is not found", "[server]") {
  TestHead head;
  v1::GetJobRequest request;
  *request.mutable_job() = Ref(9);
  v1::GetJobResponse response;
  const auto context = Context(head.admin);
  const auto stub = v1::JobService::NewStub(head.Channel());
  CHECK(stub->GetJob(context.get(), request, &response).error_code() == grpc::StatusCode::NOT_FOUND);
  const auto again = Context(head.admin);
  CHECK(stub->GetJob(again.get(), {}, &response).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_CASE("status counts nodes, jobs and those that wait", "[server]") {
  TestHead head;
  FakeAgent agent(head, "a");
  Submit(head, head.admin);
  v1::GetStatusResponse response;
  const auto context = Context(head.admin);
  REQUIRE(v1::ClusterService::NewStub(head.Channel())->GetStatus(context.get(), {}, &response).ok());
  CHECK(response.nodes().at("alive") == 1);
  CHECK(response.nodes().at("dead") == 0);
  CHECK(response.workers_ready() == 1);
  CHECK(response.workers_total() == 1);
  CHECK(response.resources().at("CPU").total() == 4);
  CHECK(response.resources().at("CPU").used() == 1);
  CHECK(response.jobs().at("STARTING") == 1);
}

TEST_CASE("a token that was made opens, one that was revoked does not", "[server]") {
  TestHead head;
  const auto stub = v1::TokenService::NewStub(head.Channel());
  v1::CreateTokenRequest create;
  create.set_name("vera");
  create.set_role(v1::ROLE_VIEWER);
  v1::CreateTokenResponse created;
  REQUIRE(stub->CreateToken(Context(head.admin).get(), create, &created).ok());
  CHECK(client::ParseToken(created.secret())->ca_sha256 == head.authority().sha256());
  const auto status_code = [&] {
    v1::GetStatusResponse response;
    const auto context = Context(created.secret());
    return v1::ClusterService::NewStub(head.Channel())->GetStatus(context.get(), {}, &response).error_code();
  };
  CHECK(status_code() == grpc::StatusCode::OK);
  v1::RevokeTokenRequest revoke;
  revoke.set_name("vera");
  v1::RevokeTokenResponse revoked;
  REQUIRE(stub->RevokeToken(Context(head.admin).get(), revoke, &revoked).ok());
  CHECK(status_code() == grpc::StatusCode::UNAUTHENTICATED);
}

TEST_CASE("a stream of nobody is refused, also when it is cancelled meanwhile", "[server]") {
  constexpr int kStreams = 200;
  TestHead head(/*insecure=*/true);
  const auto stub = v1::AgentService::NewStub(head.Channel());
  for (int i = 0; i < kStreams; ++i) {
    const auto context = Context("");
    const auto stream = stub->Connect(context.get());
    if (i + 1 < kStreams) {
      context->TryCancel();
    }
    const grpc::StatusCode code = stream->Finish().error_code();
    if (code != grpc::StatusCode::CANCELLED || i + 1 == kStreams) {
      CHECK(code == grpc::StatusCode::UNAUTHENTICATED);
    }
  }
}

TEST_CASE("a full disk refuses new jobs by name and the cluster goes on when there is room", "[server]") {
  TestHead head;
  head.OnLoop([&] { head.store().broken = true; });
  v1::GetStatusResponse status;
  const auto look = [&] {
    const auto asking = Context(head.admin);
    REQUIRE(v1::ClusterService::NewStub(head.Channel())->GetStatus(asking.get(), {}, &status).ok());
  };
  // The first that meets it is answered like those after it.
  for (int time = 0; time < 2; ++time) {
    v1::SubmitJobRequest request;
    request.mutable_spec()->add_argv("true");
    v1::SubmitJobResponse response;
    const auto context = Context(head.admin);
    const grpc::Status refused = v1::JobService::NewStub(head.Channel())->SubmitJob(context.get(), request, &response);
    CHECK(refused.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
    CHECK(refused.error_message().find("cannot write its journal") != std::string::npos);
    look();
    REQUIRE(status.remarks_size() == 1);
    CHECK(status.remarks(0).find("cannot write its journal") != std::string::npos);
    CHECK(status.jobs().empty());
  }
  head.OnLoop([&] { head.store().broken = false; });
  while (status.remarks_size() != 0) {
    look();
  }
  CHECK(status.jobs().empty());  // What was refused does not come to be.
  CHECK(Submit(head, head.admin) == 2);
}

TEST_CASE("a heartbeat writes nothing", "[server]") {
  TestHead head;
  FakeAgent agent(head, "a");
  std::uint64_t before = 0;
  head.OnLoop([&] { before = head.loop().commits(); });
  for (int i = 0; i < 10; ++i) {
    v1::AgentToHead message;
    message.mutable_heartbeat();
    REQUIRE(agent.Say(message));
  }
  // A job started after them shows that they were taken: one commit to record it, and no other.
  Submit(head, head.admin);
  agent.Next(v1::HeadToAgent::kStart);
  std::uint64_t after = 0;
  head.OnLoop([&] { after = head.loop().commits(); });
  CHECK(after == before + 1);
}

TEST_CASE("a port that is taken says by whom and which flag changes it", "[server]") {
  TestHead head;
  const auto port = static_cast<std::uint16_t>(std::stoi(head.address().substr(head.address().rfind(':') + 1)));
  boost::asio::io_context io;
  SystemClock clock;
  test::BreakableStore store;
  HeadLoop loop({io, clock, store,
                 std::make_unique<head::Head>(head::HeadConfig{}, std::vector<head::Record>{}, "c", clock.Read())});
  const auto second = Server::Start({.host = "127.0.0.1", .port = port}, loop, std::make_shared<SystemClock>(),
                                    &head.authority(), *head.authority().MakeServerIdentity(clock.Read().wall));
  REQUIRE(absl::IsAlreadyExists(second.status()));
  const std::string message(second.status().message());
  CHECK(message.find("--port") != std::string::npos);
  CHECK(message.find("(pid " + std::to_string(::getpid()) + ")") != std::string::npos);
}

TEST_CASE("an insecure head listens on loopback only and lets everybody in there", "[server]") {
  TestHead head(/*insecure=*/true);
  v1::GetVersionResponse version;
  const auto context = Context("");
  REQUIRE(v1::ClusterService::NewStub(head.Channel())->GetVersion(context.get(), {}, &version).ok());
  CHECK(version.api() == client::kApiVersion);
  boost::asio::io_context io;
  SystemClock clock;
  test::BreakableStore store;
  HeadLoop loop({io, clock, store,
                 std::make_unique<head::Head>(head::HeadConfig{}, std::vector<head::Record>{}, "c", clock.Read())});
  CHECK(absl::IsInvalidArgument(
      Server::Start({.host = "0.0.0.0", .insecure = true}, loop, std::make_shared<SystemClock>(), nullptr, {})
          .status()));
}

TEST_CASE("an agent of another protocol is told which version to run", "[server]") {
  TestHead head;
  v1::JoinRequest request;
  request.set_protocol(99);
  v1::JoinResponse response;
  const auto context = Context(head.CreateToken("j", Role::kJoin));
  CHECK(v1::AgentService::NewStub(head.Channel())->Join(context.get(), request, &response).error_code() ==
        grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_CASE("output that nobody asked for is refused", "[server]") {
  TestHead head;
  FakeAgent agent(head, "a");
  const auto context = Context("");
  v1::SendOutputResponse response;
  const auto writer = agent.stub->SendOutput(context.get(), &response);
  v1::SendOutputRequest message;
  message.set_transfer_id(123);
  writer->Write(message);
  CHECK(writer->Finish().error_code() == grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace rayctl::rpc
