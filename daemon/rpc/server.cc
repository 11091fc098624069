#include "daemon/rpc/server.h"

#include <grpc/grpc.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "base/addresses.h"
#include "client/channel.h"
#include "daemon/net/port_owner.h"
#include "daemon/rpc/service_context.h"
#include "daemon/rpc/web_api.h"
#include "fmt/format.h"

namespace rayctl::rpc {
namespace {

// Strangers may open connections; what they make the server hold is bounded.
constexpr std::size_t kBufferBytesMax = std::size_t{512} << 20;

// Empty: every address.
std::string ListenHost(const ServerOptions& options) {
  return options.insecure && options.host.empty() ? "127.0.0.1" : options.host;
}

std::string ListenAddress(const ServerOptions& options) {
  const std::string host = ListenHost(options);
  // Of every address both families; gRPC falls back where there is no IPv6.
  return net::JoinAddress(host.empty() ? "::" : host, options.port);
}

}  // namespace

class Server::Impl {
 public:
  Impl(ServerOptions server_options, HeadLoop& loop, const Authority* authority, std::shared_ptr<Gatekeeper> gatekeeper,
       std::unique_ptr<WorkingDirStore> working_dirs)
      : options(std::move(server_options)),
        relay(loop, options.transfer_patience),
        services{loop, relay, options, authority, std::move(gatekeeper), std::move(working_dirs)},
        agents(MakeAgentService(services)) {
    parts.push_back(MakeJobService(services));
    parts.push_back(MakeClusterService(services));
    parts.push_back(MakeTokenService(services));
    parts.push_back(MakeWorkingDirService(services));
  }
  ~Impl() {
    if (closer.joinable()) {
      closer.join();
    }
  }

  ServerOptions options;
  OutputRelay relay;
  ServiceContext services;
  AgentServiceParts agents;
  std::vector<std::unique_ptr<grpc::Service>> parts;
  std::unique_ptr<grpc::Server> server;
  int port = 0;
  std::thread closer;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

absl::StatusOr<std::unique_ptr<Server>> Server::Start(ServerOptions options, HeadLoop& loop,
                                                      std::shared_ptr<const Clock> clock, const Authority* authority,
                                                      const Identity& server_identity) {
  if (options.insecure && !options.host.empty() && !net::IsLoopbackHost(options.host)) {
    return absl::InvalidArgumentError(fmt::format(
        "--insecure listens on loopback only, not on {}; leave --insecure out for a cluster of several machines",
        options.host));
  }
  if (options.port != 0) {
    if (absl::Status free = net::CheckListen(ListenHost(options), options.port, kPortFlag); !free.ok()) {
      return free;
    }
  } else if (net::CheckListen(ListenHost(options), options.preferred_port, kPortFlag).ok()) {
    options.port = options.preferred_port;
  }
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
  std::shared_ptr<Gatekeeper> gatekeeper;
  if (!options.insecure) {
    auto tokens = std::make_shared<TokenTable>();
    for (const auto& [id, token] : loop.head().tokens()) {
      tokens->Put(token);
    }
    loop.set_on_token([tokens](const head::TokenRecord& token) { tokens->Put(token); });
    gatekeeper = std::make_shared<Gatekeeper>(tokens, std::move(clock));
    grpc::SslServerCredentialsOptions tls(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
    tls.pem_root_certs = authority->identity().certificate_pem;
    // With the CA behind it, so that somebody who has only a token finds the CA in the handshake.
    tls.pem_key_cert_pairs.push_back(
        {server_identity.key_pem, server_identity.certificate_pem + authority->identity().certificate_pem});
    credentials = grpc::SslServerCredentials(tls);
    credentials->SetAuthMetadataProcessor(gatekeeper);
  }

  std::unique_ptr<WorkingDirStore> working_dirs;
  if (!options.working_dirs_dir.empty()) {
    absl::StatusOr<std::unique_ptr<WorkingDirStore>> opened = WorkingDirStore::Open(options.working_dirs_dir);
    if (!opened.ok()) {
      return opened.status();
    }
    working_dirs = *std::move(opened);
  }
  auto impl =
      std::make_unique<Impl>(std::move(options), loop, authority, std::move(gatekeeper), std::move(working_dirs));
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(client::kMessageBytesMax);
  grpc::ResourceQuota quota("rayctl-head");
  quota.Resize(kBufferBytesMax);
  builder.SetResourceQuota(quota);
  builder.AddListeningPort(ListenAddress(impl->options), credentials, &impl->port);
  builder.RegisterService(impl->agents.service.get());
  for (const std::unique_ptr<grpc::Service>& part : impl->parts) {
    builder.RegisterService(part.get());
  }
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || impl->port == 0) {
    return absl::UnavailableError(fmt::format("cannot listen on {}; {} and --host choose another address",
                                              ListenAddress(impl->options), kPortFlag));
  }
  loop.set_links(impl->agents.connections);
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

std::uint16_t Server::port() const { return static_cast<std::uint16_t>(impl_->port); }

void Server::set_address(std::string address) { impl_->options.address = std::move(address); }

absl::StatusOr<std::string> Server::WebJson(std::string_view path) const {
  ::rayctl::v1::GetStatusResponse status;
  impl_->services.FillOwn(status);
  return WebApiJson(impl_->services.loop.head(), path, std::move(status));
}

absl::Status Server::MayLook(std::string_view bearer) const {
  return impl_->services.gatekeeper == nullptr ? absl::OkStatus() : impl_->services.gatekeeper->MayLook(bearer);
}

std::size_t Server::agents() const { return impl_->agents.connections->size(); }

void Server::WhenNoAgents(std::function<void()> handler) { impl_->agents.connections->WhenEmpty(std::move(handler)); }

void Server::Shutdown(std::function<void()> done) {
  // Shutdown waits for calls that are finished on the loop, so it must not wait there.
  impl_->closer = std::thread([this, done = std::move(done)] {
    impl_->server->Shutdown(std::chrono::system_clock::now());
    impl_->services.loop.Post(done);
  });
}

}  // namespace rayctl::rpc
