#include <memory>
#include <utility>

#include "base/names.h"
#include "base/status_text.h"
#include "client/channel.h"
#include "client/token.h"
#include "daemon/rpc/service_context.h"
#include "daemon/rpc/translate.h"
#include "daemon/rpc/views.h"
#include "fmt/format.h"
#include "rayctl/v1/cluster.grpc.pb.h"
#include "rayctl/v1/token.grpc.pb.h"

namespace rayctl::rpc {

void ServiceContext::FillOwn(::rayctl::v1::GetStatusResponse& response) const {
  response.set_address(options.address);
  response.set_version(options.version);
  *response.mutable_started_at() = ToProto(options.started_at);
  if (const absl::Status& journal = loop.journal_status(); !journal.ok()) {
    response.add_remarks(Text(journal));
  }
}

namespace {

// Stands for the CA's hash in tokens of a head that has no CA.
std::string NoCa() { return std::string(2 * client::kSecretBytes, '0'); }

class ClusterService final : public v1::ClusterService::CallbackService {
 public:
  explicit ClusterService(ServiceContext& services) : services_(services) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* call, const v1::GetStatusRequest*,
                                      v1::GetStatusResponse* response) override {
    return OnLoop(services_, call, [this, response](const Caller&, const Finish& finish) {
      services_.FillOwn(*response);
      FillStatus(services_.loop.head(), *response);
      finish(absl::OkStatus());
    });
  }

  grpc::ServerUnaryReactor* GetVersion(grpc::CallbackServerContext* call, const v1::GetVersionRequest*,
                                       v1::GetVersionResponse* response) override {
    return OnLoop(services_, call, [this, response](const Caller&, const Finish& finish) {
      response->set_version(services_.options.version);
      response->set_api(client::kApiVersion);
      finish(absl::OkStatus());
    });
  }

  grpc::ServerUnaryReactor* ListNodes(grpc::CallbackServerContext* call, const v1::ListNodesRequest* request,
                                      v1::ListNodesResponse* response) override {
    return OnLoop(services_, call, [this, request, response](const Caller&, const Finish& finish) {
      finish(rpc::ListNodes(services_.loop.head(), *request, *response));
    });
  }

 private:
  ServiceContext& services_;
};

class TokenService final : public v1::TokenService::CallbackService {
 public:
  explicit TokenService(ServiceContext& services) : services_(services) {}

  grpc::ServerUnaryReactor* CreateToken(grpc::CallbackServerContext* call, const v1::CreateTokenRequest* request,
                                        v1::CreateTokenResponse* response) override {
    return OnLoop(services_, call, [this, request, response](const Caller&, const Finish& finish) {
      head::CreateToken event{.name = request->name()};
      if (!IsName(event.name)) {
        finish(absl::InvalidArgumentError(fmt::format("name: {}", kNameRule)));
        return;
      }
      const absl::StatusOr<Role> role = FromProto(request->role());
      if (!role.ok()) {
        finish(absl::InvalidArgumentError("role: expected admin, user, viewer or join"));
        return;
      }
      event.role = *role;
      if (request->has_expires_at()) {
        const absl::StatusOr<WallTime> expires_at = FromProto(request->expires_at());
        if (!expires_at.ok() || *expires_at <= services_.loop.clock().Read().wall) {
          finish(absl::InvalidArgumentError("expires_at: expected a time to come"));
          return;
        }
        event.expires_at = *expires_at;
      }
      const absl::StatusOr<client::Token> token =
          client::MakeToken(services_.authority == nullptr ? NoCa() : services_.authority->sha256());
      if (!token.ok()) {
        finish(token.status());
        return;
      }
      event.sha256 = client::HashSecret(token->secret);
      services_.loop.Call(std::move(event),
                          [response, finish, text = FormatToken(*token)](const absl::StatusOr<head::Answer>& answer) {
                            if (answer.ok()) {
                              *response->mutable_token() = TokenView(std::get<head::TokenAnswer>(*answer).token);
                              response->set_secret(text);
                            }
                            finish(answer.status());
                          });
    });
  }

  grpc::ServerUnaryReactor* ListTokens(grpc::CallbackServerContext* call, const v1::ListTokensRequest* request,
                                       v1::ListTokensResponse* response) override {
    return OnLoop(services_, call, [this, request, response](const Caller&, const Finish& finish) {
      finish(rpc::ListTokens(services_.loop.head(), *request, *response));
    });
  }

  grpc::ServerUnaryReactor* RevokeToken(grpc::CallbackServerContext* call, const v1::RevokeTokenRequest* request,
                                        v1::RevokeTokenResponse*) override {
    return OnLoop(services_, call, [this, request](const Caller&, const Finish& finish) {
      services_.loop.Call(head::RevokeToken{.name = request->name()},
                          [finish](const absl::StatusOr<head::Answer>& answer) { finish(answer.status()); });
    });
  }

 private:
  ServiceContext& services_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeClusterService(ServiceContext& services) {
  return std::make_unique<ClusterService>(services);
}

std::unique_ptr<grpc::Service> MakeTokenService(ServiceContext& services) {
  return std::make_unique<TokenService>(services);
}

}  // namespace rayctl::rpc
