#include "client/channel.h"

#include <arpa/inet.h>
#include <grpc/grpc_security_constants.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include "client/endpoint.h"
#include "client/identity.h"
#include "fmt/format.h"

namespace rayctl::client {
namespace {

constexpr int kReconnectMillisMin = 100;
constexpr int kReconnectMillisMax = 1000;

// Spares a resolver for what needs none.
std::string Target(const std::string& address) {
  const absl::StatusOr<HostPort> parts = SplitAddress(address);
  in_addr numeric{};
  if (parts.ok() && ::inet_pton(AF_INET, parts->host.c_str(), &numeric) == 1) {
    return "ipv4:" + address;
  }
  return address;
}

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const ChannelOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kReconnectMillisMax);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMillisMin);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMillisMax);
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);  // No TXT look-ups.
  if (options.own_connection) {
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  }
  if (options.insecure) {
    return grpc::CreateCustomChannel(Target(options.address), grpc::InsecureChannelCredentials(), arguments);
  }
  arguments.SetString(GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, kHeadName);
  grpc::SslCredentialsOptions tls;
  tls.pem_root_certs = options.ca_pem;
  tls.pem_cert_chain = options.cert_pem;
  tls.pem_private_key = options.key_pem;
  return grpc::CreateCustomChannel(Target(options.address), grpc::SslCredentials(tls), arguments);
}

void Authorize(grpc::ClientContext& context, std::string_view token) {
  if (!token.empty()) {
    context.AddMetadata(kAuthorizationKey, fmt::format("Bearer {}", token));
  }
}

void IdentifyNode(grpc::ClientContext& context, std::uint64_t node_id) {
  context.AddMetadata(kInsecureNodeKey, fmt::format("{}", node_id));
}

absl::Status FromGrpc(const grpc::Status& status, std::string_view address) {
  if (status.ok()) {
    return absl::OkStatus();
  }
  std::string message = status.error_message();
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE && !address.empty()) {
    message = fmt::format("the head at {} does not answer: {}", address, message);
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), message);
}

}  // namespace rayctl::client
