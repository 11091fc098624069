#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rayctl::client {

inline constexpr std::uint32_t kApiVersion = 1;  // Of rayctl/v1, as GetVersion and /version tell it.

// gRPC metadata: `authorization: Bearer rct_…`.
inline constexpr char kAuthorizationKey[] = "authorization";
// gRPC metadata of an agent of a head that runs with --insecure: its node id in decimal. A head with TLS ignores it and
// believes the certificate alone.
inline constexpr char kInsecureNodeKey[] = "rayctl-node";

// The largest message on any channel. A registration carries the facts of every rank of its node, its answer every job
// there; bulk data goes in chunks of at most 1 MiB.
inline constexpr int kMessageBytesMax = 64 << 20;

inline constexpr std::chrono::milliseconds kFetchCaTimeout{5000};

// The CA certificate of the head at `address` ("host:port", "[v6]:port"), found in the chain that its handshake shows,
// as PEM. Nothing is sent before the certificate hashes to `ca_sha256` (hex, from a token). UNAVAILABLE: nobody answers
// there, or what answers does not speak TLS. UNAUTHENTICATED: it is another cluster's head.
absl::StatusOr<std::string> FetchCa(const std::string& address, std::string_view ca_sha256,
                                    std::chrono::milliseconds timeout = kFetchCaTimeout);

struct ChannelOptions {
  std::string address;  // "host:port".
  std::string ca_pem;
  std::string cert_pem;  // An agent's own; empty for people.
  std::string key_pem;
  bool insecure = false;        // Plain text, for a head that runs with --insecure.
  bool own_connection = false;  // Share no connection with other channels of equal arguments (several agents, benches).
};

// Connects on first use. The head must prove that it is `rayctl-head` of `ca_pem`; its address plays no part. Never
// uses a proxy, retries at least once a second, sends no keepalive pings.
std::shared_ptr<grpc::Channel> MakeChannel(const ChannelOptions& options);

// Puts the token on one call. Nothing for an empty token.
void Authorize(grpc::ClientContext& context, std::string_view token);
// Names the node on one call to a head that runs with --insecure.
void IdentifyNode(grpc::ClientContext& context, std::uint64_t node_id);

// A call's status with the same code and message. UNAVAILABLE names the address when one is given.
absl::Status FromGrpc(const grpc::Status& status, std::string_view address = {});

}  // namespace rayctl::client
