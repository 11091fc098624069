#pragma once

#include <grpcpp/impl/service_type.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "daemon/rpc/auth.h"
#include "daemon/rpc/authority.h"
#include "daemon/rpc/follow.h"
#include "daemon/rpc/head_loop.h"
#include "daemon/rpc/server.h"
#include "daemon/rpc/working_dir_store.h"
#include "rayctl/v1/cluster.pb.h"

namespace rayctl::rpc {

// What the services share. All but `loop.Post` and `Identify` is for the loop's thread.
struct ServiceContext {
  HeadLoop& loop;
  OutputRelay& relay;
  ServerOptions& options;
  const Authority* authority = nullptr;           // Null with --insecure.
  std::shared_ptr<Gatekeeper> gatekeeper;         // Null with --insecure.
  std::unique_ptr<WorkingDirStore> working_dirs;  // Null where ServerOptions names no folder for them.

  // Address, version, begin and remarks: what only the daemon knows.
  void FillOwn(::rayctl::v1::GetStatusResponse& response) const;
  grpc::Status Identify(const grpc::CallbackServerContext& call, Caller& caller) const {
    if (gatekeeper == nullptr) {
      caller = InsecureCaller(call.client_metadata());
      return grpc::Status::OK;
    }
    return gatekeeper->Identify(call.client_metadata(), *call.auth_context(), caller);
  }
};

inline grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

// Runs a handler on the loop with the caller and a function that answers the call, once.
using Finish = std::function<void(const absl::Status&)>;
inline grpc::ServerUnaryReactor* OnLoop(ServiceContext& services, grpc::CallbackServerContext* call,
                                        std::function<void(const Caller&, Finish)> handler) {
  grpc::ServerUnaryReactor* const reactor = call->DefaultReactor();
  Caller caller;
  if (grpc::Status known = services.Identify(*call, caller); !known.ok()) {
    reactor->Finish(std::move(known));
    return reactor;
  }
  services.loop.Post([reactor, caller = std::move(caller), handler = std::move(handler)] {
    handler(caller, [reactor](const absl::Status& status) { reactor->Finish(ToGrpc(status)); });
  });
  return reactor;
}

// The services, each made once by the server.
std::unique_ptr<grpc::Service> MakeJobService(ServiceContext& services);
std::unique_ptr<grpc::Service> MakeClusterService(ServiceContext& services);
std::unique_ptr<grpc::Service> MakeTokenService(ServiceContext& services);
std::unique_ptr<grpc::Service> MakeWorkingDirService(ServiceContext& services);

// Agents' streams as the loop reaches them.
class AgentConnections : public AgentLinks {
 public:
  virtual std::size_t size() const = 0;
  virtual void WhenEmpty(std::function<void()> handler) = 0;
};
struct AgentServiceParts {
  std::unique_ptr<grpc::Service> service;
  AgentConnections* connections;  // Owned by the service.
};
AgentServiceParts MakeAgentService(ServiceContext& services);

}  // namespace rayctl::rpc
