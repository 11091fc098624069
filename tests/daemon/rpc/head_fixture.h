#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client/channel.h"
#include "client/identity.h"
#include "client/token.h"
#include "daemon/rpc/authority.h"
#include "daemon/rpc/head_loop.h"
#include "daemon/rpc/server.h"
#include "daemon/store/store.h"
#include "rayctl/v1/agent.grpc.pb.h"
#include "rayctl/v1/cluster.grpc.pb.h"
#include "rayctl/v1/job.grpc.pb.h"
#include "rayctl/v1/token.grpc.pb.h"

namespace rayctl::rpc::test {

inline constexpr std::chrono::seconds kDeadline{20};

// A store whose disk can be made full.
class BreakableStore final : public store::Store {
 public:
  absl::Status Commit(const std::vector<store::Write>& writes) override {
    return broken ? absl::ResourceExhaustedError("the disk is full") : inner_->Commit(writes);
  }
  absl::StatusOr<std::vector<head::Record>> Load() override { return inner_->Load(); }

  bool broken = false;  // Head loop only.

 private:
  std::unique_ptr<store::Store> inner_ = store::MakeMemoryStore();
};

// The real head over TLS on a port that the system picks, on a thread of its own.
class TestHead {
 public:
  explicit TestHead(bool insecure = false, Duration transfer_patience = kTransferPatience)
      : authority_(*Authority::Create(std::chrono::system_clock::now())), insecure_(insecure) {
    const Now now = clock_->Read();
    loop_ = std::make_unique<HeadLoop>(HeadLoop::Deps{
        io_, *clock_, store_, std::make_unique<head::Head>(head::HeadConfig{}, std::vector<head::Record>{}, "c", now)});
    const Identity identity = *authority_.MakeServerIdentity(now.wall);
    auto server =
        Server::Start({.host = "127.0.0.1", .port = 0, .insecure = insecure, .transfer_patience = transfer_patience},
                      *loop_, clock_, &authority_, identity);
    if (!server.ok()) {
      throw std::runtime_error(std::string(server.status().message()));
    }
    server_ = *std::move(server);
    address_ = "127.0.0.1:" + std::to_string(server_->port());
    thread_ = std::thread([this] { io_.run(); });
    if (!insecure) {
      admin = CreateToken("root", Role::kAdmin);
    }
  }
  ~TestHead() {
    std::promise<void> done;
    OnLoop([&] {
      loop_->Stop();
      server_->Shutdown([&] { done.set_value(); });
    });
    done.get_future().wait();
    work_.reset();
    thread_.join();
  }

  // Runs on the loop and waits for it.
  template <class Fn>
  void OnLoop(Fn fn) {
    std::promise<void> done;
    loop_->Post([&] {
      fn();
      done.set_value();
    });
    done.get_future().wait();
  }

  std::string CreateToken(const std::string& name, Role role, WallTime expires_at = {}) {
    const client::Token token = *client::MakeToken(authority_.sha256());
    std::promise<absl::Status> done;
    loop_->Post([&] {
      loop_->Call(
          head::CreateToken{
              .name = name, .role = role, .sha256 = client::HashSecret(token.secret), .expires_at = expires_at},
          [&](const absl::StatusOr<head::Answer>& answer) { done.set_value(answer.status()); });
    });
    const absl::Status status = done.get_future().get();
    if (!status.ok()) {
      throw std::runtime_error(std::string(status.message()));
    }
    return client::FormatToken(token);
  }
  void RevokeToken(const std::string& name) {
    std::promise<void> done;
    loop_->Post([&] {
      loop_->Call(head::RevokeToken{.name = name}, [&](const absl::StatusOr<head::Answer>&) { done.set_value(); });
    });
    done.get_future().wait();
  }

  std::shared_ptr<grpc::Channel> Channel() const {
    return client::MakeChannel({.address = address_,
                                .ca_pem = authority_.identity().certificate_pem,
                                .insecure = insecure_,
                                .own_connection = true});
  }
  std::shared_ptr<grpc::Channel> AgentChannel(NodeId node) const {
    const auto request = *client::MakeKeyAndRequest("test");
    return client::MakeChannel(
        {.address = address_,
         .ca_pem = authority_.identity().certificate_pem,
         .cert_pem = *authority_.SignAgent(request.request_pem, node, std::chrono::system_clock::now()),
         .key_pem = request.key_pem,
         .own_connection = true});
  }

  const std::string& address() const { return address_; }
  const Authority& authority() const { return authority_; }
  HeadLoop& loop() { return *loop_; }
  BreakableStore& store() { return store_; }

  std::string admin;  // An admin's token.

 private:
  Authority authority_;
  bool insecure_;
  std::shared_ptr<const Clock> clock_ = std::make_shared<SystemClock>();
  BreakableStore store_;
  boost::asio::io_context io_{1};
  std::optional<boost::asio::executor_work_guard<boost::asio::io_context::executor_type>> work_{io_.get_executor()};
  std::unique_ptr<HeadLoop> loop_;
  std::unique_ptr<Server> server_;
  std::string address_;
  std::thread thread_;
};

// A call's context with the token and a deadline.
inline std::unique_ptr<grpc::ClientContext> Context(const std::string& token) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + kDeadline);
  client::Authorize(*context, token);
  return context;
}

// An agent made of bare calls: joins, registers, and says what the test tells it to.
class FakeAgent {
 public:
  FakeAgent(TestHead& head, const std::string& name) {
    const auto request = *client::MakeKeyAndRequest(name);
    ::rayctl::v1::JoinRequest join;
    join.set_protocol(link::kProtocol);
    join.set_node_name(name);
    join.set_certificate_request_pem(request.request_pem);
    ::rayctl::v1::JoinResponse joined;
    const auto token = head.CreateToken("join-" + name, Role::kJoin);
    const auto join_context = Context(token);
    const grpc::Status status =
        ::rayctl::v1::AgentService::NewStub(head.Channel())->Join(join_context.get(), join, &joined);
    if (!status.ok()) {
      throw std::runtime_error(status.error_message());
    }
    node = NodeId{joined.node_id()};
    channel = client::MakeChannel({.address = head.address(),
                                   .ca_pem = head.authority().identity().certificate_pem,
                                   .cert_pem = joined.certificate_pem(),
                                   .key_pem = request.key_pem,
                                   .own_connection = true});
    stub = ::rayctl::v1::AgentService::NewStub(channel);
    Connect();
  }
  ~FakeAgent() { Disconnect(); }

  void Connect() {
    context_ = Context("");
    stream_ = stub->Connect(context_.get());
    sequence_ = 0;
    incarnation_ = 0;
    ::rayctl::v1::AgentToHead message;
    ::rayctl::v1::Register& reg = *message.mutable_register_();
    reg.set_protocol(link::kProtocol);
    reg.set_boot_id("boot");
    reg.set_address("127.0.0.1");
    (*reg.mutable_resources()->mutable_amounts())["CPU"] = 4;
    reg.set_port_min(20000);
    reg.set_port_max(20100);
    Say(message);
    incarnation_ = Next().incarnation();
  }
  void Disconnect() {
    if (stream_ != nullptr) {
      context_->TryCancel();
      stream_->Finish();
      stream_.reset();
    }
  }
  bool Say(::rayctl::v1::AgentToHead message) {
    message.set_incarnation(incarnation_);
    message.set_sequence(++sequence_);
    return stream_->Write(message);
  }
  void SayRank(std::uint64_t job, ::rayctl::v1::WorkerState state, int exit_code = 0) {
    ::rayctl::v1::AgentToHead message;
    ::rayctl::v1::RankFacts& facts = *message.mutable_rank_changed()->mutable_facts();
    facts.set_job_id(job);
    facts.set_state(state);
    facts.set_pid(77);
    if (state == ::rayctl::v1::WORKER_STATE_EXITED) {
      facts.mutable_end()->set_exit_code(exit_code);
    }
    Say(message);
  }
  // The next message; an empty one when the stream ended.
  ::rayctl::v1::HeadToAgent Next() {
    ::rayctl::v1::HeadToAgent message;
    if (!stream_->Read(&message)) {
      message.Clear();
    }
    return message;
  }
  // The next message of that kind, past others.
  ::rayctl::v1::HeadToAgent Next(::rayctl::v1::HeadToAgent::BodyCase wanted) {
    while (true) {
      ::rayctl::v1::HeadToAgent message = Next();
      if (message.body_case() == wanted || message.body_case() == ::rayctl::v1::HeadToAgent::BODY_NOT_SET) {
        return message;
      }
    }
  }

  NodeId node;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<::rayctl::v1::AgentService::Stub> stub;

 private:
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReaderWriter<::rayctl::v1::AgentToHead, ::rayctl::v1::HeadToAgent>> stream_;
  std::uint64_t sequence_ = 0;
  std::uint64_t incarnation_ = 0;
};

// Submits a job of one rank and gives its id.
inline std::uint64_t Submit(TestHead& head, const std::string& token, const std::string& name = "job") {
  ::rayctl::v1::SubmitJobRequest request;
  request.mutable_spec()->add_argv("true");
  request.mutable_spec()->set_name(name);
  ::rayctl::v1::SubmitJobResponse response;
  const auto context = Context(token);
  const grpc::Status status =
      ::rayctl::v1::JobService::NewStub(head.Channel())->SubmitJob(context.get(), request, &response);
  if (!status.ok()) {
    throw std::runtime_error(status.error_message());
  }
  return response.job_id();
}

inline ::rayctl::v1::JobRef Ref(std::uint64_t job) {
  ::rayctl::v1::JobRef ref;
  ref.set_id(job);
  return ref;
}

}  // namespace rayctl::rpc::test
