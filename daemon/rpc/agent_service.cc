#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/names.h"
#include "daemon/rpc/service_context.h"
#include "daemon/rpc/translate.h"
#include "fmt/format.h"
#include "rayctl/v1/agent.grpc.pb.h"
#include "spdlog/spdlog.h"

namespace rayctl::rpc {
namespace {

// An agent that does not read for so long that this many messages wait is cut off; registering settles what it missed.
constexpr std::size_t kStreamQueueMax = 100'000;

class AgentService;

class ConnectReactor final : public grpc::ServerBidiReactor<v1::AgentToHead, v1::HeadToAgent> {
 public:
  // What the loop holds of a stream. Head loop only.
  struct State {
    ConnectReactor* reactor = nullptr;  // Null once finished.
    StreamId stream;
    NodeId node;
    std::deque<v1::HeadToAgent> queue;  // The first is being written.
    bool registered = false;
  };

  ConnectReactor(AgentService& service, NodeId node);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { delete this; }
  void Read() { StartRead(&incoming_); }

 private:
  AgentService& service_;
  v1::AgentToHead incoming_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

class SendOutputReactor final : public grpc::ServerReadReactor<v1::SendOutputRequest> {
 public:
  struct State final : OutputSource {
    SendOutputReactor* reactor = nullptr;  // Null once finished. Head loop only.
    NodeId node;
    TransferId transfer;

    void Next() override {
      if (reactor != nullptr) {
        reactor->Read();
      }
    }
    void End(const absl::Status& status) override {
      if (SendOutputReactor* const ending = std::exchange(reactor, nullptr)) {
        ending->Finish(ToGrpc(status));
      }
    }
  };

  SendOutputReactor(ServiceContext& services, grpc::CallbackServerContext* call, NodeId node)
      : services_(services), call_(call) {
    state_->reactor = this;
    state_->node = node;
    Read();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      const bool complete = !call_->IsCancelled();
      services_.loop.Post([&services = services_, complete, state = state_] {
        if (state->reactor == nullptr) {
          return;
        }
        if (state->transfer) {
          services.relay.OnSourceEnd(state->transfer, complete);
        }
        state->End(complete ? absl::OkStatus() : absl::CancelledError("the agent went away"));
      });
      return;
    }
    services_.loop.Post([&services = services_, message = std::move(incoming_), state = state_]() mutable {
      if (state->reactor == nullptr) {
        return;
      }
      if (!state->transfer) {
        const TransferId transfer{message.transfer_id()};
        if (const absl::Status attached = services.relay.Attach(transfer, state->node, state); !attached.ok()) {
          state->End(attached);
          return;
        }
        state->transfer = transfer;
      }
      services.relay.OnData(state->transfer, std::move(message));
    });
  }
  void OnDone() override { delete this; }

 private:
  void Read() {
    incoming_.Clear();
    StartRead(&incoming_);
  }

  ServiceContext& services_;
  grpc::CallbackServerContext* call_;
  v1::SendOutputRequest incoming_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// A call that is answered at once; the loop never hears of it.
template <class Reactor>
class Refused final : public Reactor {
 public:
  explicit Refused(const grpc::Status& why) { this->Finish(why); }
  void OnDone() override { delete this; }
};

class AgentService final : public v1::AgentService::CallbackService, public AgentConnections {
 public:
  explicit AgentService(ServiceContext& services) : services_(services) {}

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* call, const v1::JoinRequest* request,
                                 v1::JoinResponse* response) override {
    return OnLoop(services_, call, [this, request, response](const Caller&, const Finish& finish) {
      if (request->protocol() != link::kProtocol) {
        finish(absl::FailedPreconditionError(
            fmt::format("this agent speaks protocol {} and the head {} (rayctl {}); run the same version on both",
                        request->protocol(), link::kProtocol, services_.options.version)));
        return;
      }
      if (!IsName(request->node_name())) {
        finish(absl::InvalidArgumentError(fmt::format("node name: {}", kNameRule)));
        return;
      }
      services_.loop.Call(head::JoinNode{.node_name = request->node_name(),
                                         .known = {request->node_id()},
                                         .is_head_node = request->is_head_node()},
                          [this, request, response, finish](const absl::StatusOr<head::Answer>& answer) {
                            if (!answer.ok()) {
                              finish(answer.status());
                              return;
                            }
                            const auto& joined = std::get<head::JoinAnswer>(*answer);
                            response->set_node_id(joined.node.value);
                            response->set_node_name(joined.node_name);
                            if (services_.authority != nullptr) {
                              const absl::StatusOr<std::string> certificate = services_.authority->SignAgent(
                                  request->certificate_request_pem(), joined.node, services_.loop.clock().Read().wall);
                              if (!certificate.ok()) {
                                finish(certificate.status());
                                return;
                              }
                              response->set_certificate_pem(*certificate);
                            }
                            spdlog::info("node joined node={} name={}", joined.node.value, joined.node_name);
                            finish(absl::OkStatus());
                          });
    });
  }

  grpc::ServerBidiReactor<v1::AgentToHead, v1::HeadToAgent>* Connect(grpc::CallbackServerContext* call) override {
    NodeId node;
    if (const grpc::Status known = IdentifyNode(*call, node); !known.ok()) {
      return new Refused<grpc::ServerBidiReactor<v1::AgentToHead, v1::HeadToAgent>>(known);
    }
    auto* const reactor = new ConnectReactor(*this, node);
    reactor->Read();
    return reactor;
  }

  grpc::ServerReadReactor<v1::SendOutputRequest>* SendOutput(grpc::CallbackServerContext* call,
                                                             v1::SendOutputResponse*) override {
    NodeId node;
    if (const grpc::Status known = IdentifyNode(*call, node); !known.ok()) {
      return new Refused<grpc::ServerReadReactor<v1::SendOutputRequest>>(known);
    }
    return new SendOutputReactor(services_, call, node);
  }

  // AgentConnections, on the loop.
  void Send(StreamId stream, const link::HeadToAgent& message) override {
    const auto found = streams_.find(stream);
    if (found == streams_.end()) {
      return;  // It closed meanwhile; registering settles what is missing.
    }
    const std::shared_ptr<ConnectReactor::State> state = found->second;
    if (state->queue.size() >= kStreamQueueMax) {
      Close(stream, absl::ResourceExhaustedError("the agent does not read what the head sends"));
      return;
    }
    state->queue.push_back(ToProto(message));
    if (state->queue.size() == 1) {
      state->reactor->StartWrite(&state->queue.front());
    }
    if (std::holds_alternative<link::Registered>(message.body)) {
      state->registered = true;
      stream_of_[state->node] = stream;
      spdlog::info("node registered node={} stream={}", state->node.value, stream.value);
      services_.relay.OnNodeConnected(state->node);
    }
  }
  void Close(StreamId stream, const absl::Status& why) override {
    const auto found = streams_.find(stream);
    if (found != streams_.end()) {
      spdlog::info("stream closed by the head node={} why={}", found->second->node.value, std::string(why.message()));
      End(found->second, ToGrpc(why));
    }
  }
  std::size_t size() const override { return streams_.size(); }
  void WhenEmpty(std::function<void()> handler) override {
    when_empty_ = std::move(handler);
    TellIfEmpty();
  }

  // From the streams, on the loop.
  void Opened(const std::shared_ptr<ConnectReactor::State>& state) {
    if (state->reactor == nullptr || state->stream) {
      return;
    }
    state->stream = StreamId{++last_stream_};
    streams_.emplace(state->stream, state);
  }
  void Received(const std::shared_ptr<ConnectReactor::State>& state, absl::StatusOr<link::AgentToHead> message) {
    if (state->reactor == nullptr) {
      return;
    }
    Opened(state);
    if (!message.ok()) {
      End(state, ToGrpc(message.status()));
      return;
    }
    services_.loop.Deliver(
        head::AgentMessage{.stream = state->stream, .node = state->node, .message = *std::move(message)});
    state->reactor->Read();
  }
  void Written(const std::shared_ptr<ConnectReactor::State>& state, bool ok) {
    if (state->reactor == nullptr) {
      return;
    }
    if (!ok) {
      End(state, grpc::Status(grpc::StatusCode::UNAVAILABLE, "the agent went away"));
      return;
    }
    state->queue.pop_front();
    if (!state->queue.empty()) {
      state->reactor->StartWrite(&state->queue.front());
    }
  }
  void End(const std::shared_ptr<ConnectReactor::State>& state, const grpc::Status& status) {
    ConnectReactor* const reactor = std::exchange(state->reactor, nullptr);
    if (reactor == nullptr) {
      return;
    }
    if (state->stream) {
      streams_.erase(state->stream);
      services_.loop.Deliver(head::AgentClosed{state->stream});
      const auto current = stream_of_.find(state->node);
      if (current != stream_of_.end() && current->second == state->stream) {
        stream_of_.erase(current);
        spdlog::info("node disconnected node={} stream={}", state->node.value, state->stream.value);
        services_.relay.OnNodeDisconnected(state->node);
      }
    }
    reactor->Finish(status);
    TellIfEmpty();
  }

  HeadLoop& loop() { return services_.loop; }

 private:
  grpc::Status IdentifyNode(const grpc::CallbackServerContext& call, NodeId& node) const {
    Caller caller;
    if (grpc::Status known = services_.Identify(call, caller); !known.ok()) {
      return known;
    }
    if (!caller.node) {
      return {grpc::StatusCode::UNAUTHENTICATED, "only an agent that joined may call this"};
    }
    node = caller.node;
    return grpc::Status::OK;
  }
  void TellIfEmpty() {
    if (streams_.empty() && when_empty_) {
      std::exchange(when_empty_, nullptr)();
    }
  }

  ServiceContext& services_;
  std::uint64_t last_stream_ = 0;
  std::unordered_map<StreamId, std::shared_ptr<ConnectReactor::State>> streams_;
  std::map<NodeId, StreamId> stream_of_;  // Of registered nodes: the newest.
  std::function<void()> when_empty_;
};

ConnectReactor::ConnectReactor(AgentService& service, NodeId node) : service_(service) {
  state_->reactor = this;
  state_->node = node;
}

void ConnectReactor::OnReadDone(bool ok) {
  if (!ok) {
    service_.loop().Post([&service = service_, state = state_] { service.End(state, grpc::Status::OK); });
    return;
  }
  // Translated here, so that the loop does not.
  service_.loop().Post([&service = service_, state = state_, message = FromProto(incoming_)]() mutable {
    service.Received(state, std::move(message));
  });
}

void ConnectReactor::OnWriteDone(bool ok) {
  service_.loop().Post([&service = service_, state = state_, ok] { service.Written(state, ok); });
}

void ConnectReactor::OnCancel() {
  service_.loop().Post([&service = service_, state = state_] {
    service.End(state, grpc::Status(grpc::StatusCode::CANCELLED, "the agent went away"));
  });
}

}  // namespace

AgentServiceParts MakeAgentService(ServiceContext& services) {
  auto service = std::make_unique<AgentService>(services);
  AgentConnections* const connections = service.get();
  return {std::move(service), connections};
}

}  // namespace rayctl::rpc
