#include "daemon/agent/head_link.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <utility>

#include "base/status_text.h"
#include "client/channel.h"
#include "client/identity.h"
#include "client/token.h"
#include "daemon/rpc/translate.h"
#include "fmt/format.h"
#include "rayctl/v1/agent.grpc.pb.h"
#include "spdlog/spdlog.h"

namespace rayctl::agent {
namespace {

namespace asio = boost::asio;
namespace v1 = ::rayctl::v1;

constexpr std::chrono::seconds kJoinTimeout{5};
constexpr std::chrono::seconds kFinishTimeout{1};
// A head that reads nothing for so long gets a fresh registration instead.
constexpr std::size_t kWaitingMessagesMax = 100'000;

// The head knows us no more, or trusts another CA now: join again.
bool IdentityIsRefused(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnauthenticated || status.code() == absl::StatusCode::kPermissionDenied ||
         status.code() == absl::StatusCode::kNotFound;
}

}  // namespace

// One Connect call. Loop only, but for the On… call-backs, which gRPC's threads make and which post to the loop. Holds
// itself until OnDone.
class HeadLink::Stream : public grpc::ClientBidiReactor<v1::AgentToHead, v1::HeadToAgent>,
                         public std::enable_shared_from_this<HeadLink::Stream> {
 public:
  Stream(HeadLink& link, std::shared_ptr<grpc::Channel> channel)
      : link_(link), gate_(link.gate_), stub_(v1::AgentService::NewStub(std::move(channel))) {}

  void Start(const Identity& identity, bool insecure) {
    self_ = shared_from_this();
    if (insecure) {
      client::IdentifyNode(context_, identity.node_id);
    }
    stub_->async()->Connect(&context_, this);
    AddHold();  // Writes start outside of call-backs.
    StartRead(&incoming_);
    StartCall();
  }

  void Send(const link::AgentToHead& message) {
    if (ended_) {
      return;
    }
    if (waiting_.size() >= kWaitingMessagesMax) {
      Cancel();
      return;
    }
    waiting_.push_back(rpc::ToProto(message));
    if (waiting_.size() == 1) {
      StartWrite(&waiting_.front());
    }
  }

  // Once what waits is sent, says that nothing more comes; the head then ends the call.
  void FinishWriting() {
    finishing_ = true;
    if (waiting_.empty() && !ended_ && !writes_done_) {
      writes_done_ = true;
      StartWritesDone();
    }
  }

  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      gate_->Post([self = shared_from_this()] { self->ReadEnded(); });
      return;
    }
    auto message = std::make_shared<v1::HeadToAgent>();
    message->Swap(&incoming_);
    gate_->Post([self = shared_from_this(), message] { self->Take(*message); });
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    gate_->Post([self = shared_from_this(), ok] { self->Written(ok); });
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<LoopGate> gate = gate_;  // The loop may drop the last hold of this before Post returns.
    gate->Post([self = std::move(self_), status] {
      absl::Status why = client::FromGrpc(status, self->link_.options_.address);
      if (!self->fault_.ok()) {
        why = self->fault_;
      } else if (why.ok()) {
        why = absl::UnavailableError("the head ended the stream");
      }
      self->link_.Ended(self.get(), why);
    });
  }

 private:
  void Take(const v1::HeadToAgent& message) {
    if (ended_ || link_.stream_.get() != this) {
      return;  // Closed meanwhile.
    }
    absl::StatusOr<link::HeadToAgent> value = rpc::FromProto(message);
    if (!value.ok()) {
      fault_ = Annotate(value.status(), "a message of the head");
      Cancel();
      return;
    }
    link_.deliver_(HeadMessage{*std::move(value)});
  }

  void Written(bool ok) {
    if (!ok || ended_) {
      return;  // The read fails too, and ends the call.
    }
    waiting_.pop_front();
    if (!waiting_.empty()) {
      StartWrite(&waiting_.front());
    } else if (finishing_) {
      FinishWriting();
    }
  }

  void ReadEnded() {
    ended_ = true;
    RemoveHold();
  }

  HeadLink& link_;
  const std::shared_ptr<LoopGate> gate_;
  std::unique_ptr<v1::AgentService::Stub> stub_;
  grpc::ClientContext context_;
  v1::HeadToAgent incoming_;
  std::deque<v1::AgentToHead> waiting_;  // The first is being written.
  absl::Status fault_;
  bool finishing_ = false;
  bool writes_done_ = false;
  bool ended_ = false;
  std::shared_ptr<Stream> self_;
};

HeadLink::HeadLink(asio::io_context& loop, Options options, Deliver deliver)
    : loop_(loop),
      gate_(std::make_shared<LoopGate>(loop)),
      options_(std::move(options)),
      deliver_(std::move(deliver)) {}

HeadLink::~HeadLink() {
  pool_.join();
  gate_->Close();
}

absl::Status HeadLink::LoadIdentity() {
  if (loaded_) {
    return absl::OkStatus();
  }
  absl::StatusOr<std::optional<Identity>> saved = agent::LoadIdentity(options_.state_dir);
  if (!saved.ok()) {
    return saved.status();
  }
  if (*saved && !options_.insecure && !(*saved)->cert_pem.empty()) {
    const Identity& identity = **saved;
    const absl::Status whole = client::CheckIdentity(identity.ca_pem, identity.cert_pem, identity.key_pem);
    if (!whole.ok() && options_.token_file.empty()) {
      return Annotate(whole, fmt::format("the files in {}/agent are damaged; start with --token-file to join anew",
                                         options_.state_dir));
    }
    if (!whole.ok()) {
      spdlog::warn("joins anew, the node's files are damaged why={}", Text(whole));
      saved->reset();
    } else if (TokenIsOfAnotherCa(identity)) {
      saved->reset();  // The cluster behind the address is a new one.
    }
  }
  loaded_ = true;
  identity_ = *std::move(saved);
  return absl::OkStatus();
}

bool HeadLink::TokenIsOfAnotherCa(const Identity& identity) const {
  if (options_.token_file.empty()) {
    return false;
  }
  const absl::StatusOr<std::string> text = client::ReadTokenFile(options_.token_file);
  const absl::StatusOr<client::Token> token = text.ok() ? client::ParseToken(*text) : text.status();
  const absl::StatusOr<std::string> ca = client::CertificateSha256(identity.ca_pem);
  return token.ok() && (!ca.ok() || *ca != token->ca_sha256);
}

void HeadLink::Connect() {
  wanted_ = true;
  if (const absl::Status status = LoadIdentity(); !status.ok()) {
    wanted_ = false;
    asio::post(loop_, [this, status] { deliver_(HeadClosed{status}); });
    return;
  }
  if (identity_ && (options_.insecure || !identity_->cert_pem.empty())) {
    OpenStream();
    return;
  }
  if (joining_) {
    return;  // Its end opens the stream.
  }
  joining_ = true;
  asio::post(pool_, [this] {
    absl::StatusOr<Identity> joined = Join();
    asio::post(loop_, [this, joined = std::move(joined)] {
      joining_ = false;
      if (joined.ok()) {
        identity_ = *joined;
      }
      if (finished_) {
        Ended(nullptr, absl::OkStatus());
        return;
      }
      if (!wanted_) {
        return;
      }
      if (!joined.ok()) {
        wanted_ = false;
        deliver_(HeadClosed{joined.status()});
        return;
      }
      OpenStream();
    });
  });
}

// The agent beside the head finds the CA in their folder; the token's hash says whether it is the one.
absl::StatusOr<std::string> HeadLink::FindCa(const std::string& ca_sha256) const {
  if (options_.is_head_node) {
    absl::StatusOr<std::string> beside = ReadWholeFile(options_.state_dir + "/head/ca.pem");
    if (beside.ok()) {
      const absl::StatusOr<std::string> hash = client::CertificateSha256(*beside);
      if (hash.ok() && *hash == ca_sha256) {
        return beside;
      }
    }
  }
  return client::FetchCa(options_.address, ca_sha256);
}

absl::Status HeadLink::CheckCluster() const {
  return options_.insecure ? absl::OkStatus() : FindCa(options_.cluster).status();
}

absl::StatusOr<Identity> HeadLink::Join() {
  if (options_.token_file.empty() && !options_.insecure) {
    return absl::UnauthenticatedError(
        "this node has not joined yet and needs a token: give --token-file (on the head's machine: rayctl token create "
        "--role join)");
  }
  std::string text;
  if (!options_.token_file.empty()) {
    absl::StatusOr<std::string> read = client::ReadTokenFile(options_.token_file);
    if (!read.ok()) {
      return read.status();
    }
    text = *std::move(read);
  }
  Identity identity;
  client::KeyAndRequest key;
  if (!options_.insecure) {
    const absl::StatusOr<client::Token> token = client::ParseToken(text);
    if (!token.ok()) {
      return token.status();
    }
    if (token->ca_sha256 != options_.cluster) {
      return absl::FailedPreconditionError(
          fmt::format("the token in {} is of another cluster than the jobs that run here; `rayctl stop --state-dir {}` "
                      "and a new start move this node there",
                      options_.token_file, options_.state_dir));
    }
    absl::StatusOr<std::string> ca = FindCa(token->ca_sha256);
    if (!ca.ok()) {
      return ca.status();
    }
    identity.ca_pem = *std::move(ca);
    absl::StatusOr<client::KeyAndRequest> made = client::MakeKeyAndRequest(options_.node_name);
    if (!made.ok()) {
      return made.status();
    }
    key = *std::move(made);
  }

  client::ChannelOptions channel;
  channel.address = options_.address;
  channel.ca_pem = identity.ca_pem;
  channel.insecure = options_.insecure;
  channel.own_connection = true;
  const auto stub = v1::AgentService::NewStub(client::MakeChannel(channel));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kJoinTimeout);
  client::Authorize(context, text);
  v1::JoinRequest request;
  request.set_protocol(link::kProtocol);
  request.set_version(options_.version);
  request.set_node_name(options_.node_name);
  request.set_certificate_request_pem(key.request_pem);
  request.set_is_head_node(options_.is_head_node);
  if (const absl::StatusOr<std::optional<Identity>> before = agent::LoadIdentity(options_.state_dir);
      before.ok() && before->has_value()) {
    request.set_node_id((*before)->node_id);
  }
  v1::JoinResponse response;
  const grpc::Status status = stub->Join(&context, request, &response);
  if (!status.ok()) {
    return Annotate(client::FromGrpc(status, options_.address), "joining the cluster");
  }
  identity.node_id = response.node_id();
  identity.node_name = response.node_name();
  identity.cert_pem = response.certificate_pem();
  identity.key_pem = key.key_pem;
  if (const absl::Status saved = SaveIdentity(options_.state_dir, identity); !saved.ok()) {
    return saved;
  }
  spdlog::info("joined node={} name={}", identity.node_id, identity.node_name);
  return identity;
}

void HeadLink::OpenStream() {
  client::ChannelOptions options;
  options.address = options_.address;
  options.ca_pem = identity_->ca_pem;
  options.cert_pem = identity_->cert_pem;
  options.key_pem = identity_->key_pem;
  options.insecure = options_.insecure;
  options.own_connection = true;  // Dials at once, whatever an earlier channel's back-off says.
  channel_ = client::MakeChannel(options);
  stream_ = std::make_shared<Stream>(*this, channel_);
  ++streams_alive_;
  stream_->Start(*identity_, options_.insecure);
  // What is sent now waits in the call for the connection; one that fails ends the call.
  asio::post(loop_, [this, opened = stream_] {
    if (stream_ == opened) {
      deliver_(HeadConnected{});
    }
  });
}

void HeadLink::Close(const std::string& why) {
  wanted_ = false;
  if (stream_) {
    spdlog::info("stream closed why={}", why);
    std::exchange(stream_, nullptr)->Cancel();
  }
}

void HeadLink::Send(const link::AgentToHead& message) {
  if (stream_) {
    stream_->Send(message);
  }
}

void HeadLink::Ended(const Stream* stream, const absl::Status& status) {
  if (stream != nullptr) {
    --streams_alive_;
    if (stream_.get() == stream) {
      stream_.reset();
      channel_.reset();
      wanted_ = false;
      if (IdentityIsRefused(status) && !options_.token_file.empty()) {
        identity_.reset();
      }
      deliver_(HeadClosed{status});
    }
  }
  if (finished_ && streams_alive_ == 0 && !joining_) {
    std::exchange(finished_, nullptr)();
  }
}

void HeadLink::Finish(std::function<void()> done) {
  finished_ = std::move(done);
  wanted_ = false;
  if (stream_) {
    stream_->FinishWriting();
    auto timer = std::make_shared<asio::steady_timer>(loop_, kFinishTimeout);
    timer->async_wait([this, timer, last = stream_](boost::system::error_code) {
      if (stream_ == last) {
        last->Cancel();
      }
    });
  }
  asio::post(loop_, [this] { Ended(nullptr, absl::OkStatus()); });
}

}  // namespace rayctl::agent
