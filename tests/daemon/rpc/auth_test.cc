#include "daemon/rpc/auth.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <future>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "rayctl/v1/working_dir.pb.h"
#include "tests/daemon/rpc/head_fixture.h"

namespace rayctl::rpc {
namespace {

using test::TestHead;

std::vector<std::string> EveryPath() {
  std::vector<std::string> paths;
  for (const google::protobuf::FileDescriptor* file :
       {::rayctl::v1::SubmitJobRequest::descriptor()->file(), ::rayctl::v1::GetStatusRequest::descriptor()->file(),
        ::rayctl::v1::CreateTokenRequest::descriptor()->file(), ::rayctl::v1::JoinRequest::descriptor()->file(),
        ::rayctl::v1::FindWorkingDirRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        paths.push_back("/" + file->service(s)->full_name() + "/" + file->service(s)->method(m)->name());
      }
    }
  }
  return paths;
}

// Opens the call with one empty message and gives what the gate says: OK when the call went past it.
grpc::StatusCode Knock(const std::shared_ptr<grpc::Channel>& channel, const std::string& path,
                       const std::string& token) {
  const auto context = test::Context(token);
  grpc::GenericStub stub(channel);
  grpc::ByteBuffer request;
  grpc::Slice empty;
  request = grpc::ByteBuffer(&empty, 1);
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(context.get(), path, &queue);
  const auto step = [&](int id) {
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return ok && tag == reinterpret_cast<void*>(static_cast<std::intptr_t>(id));
  };
  const auto tag = [](int id) { return reinterpret_cast<void*>(static_cast<std::intptr_t>(id)); };
  call->StartCall(tag(1));
  grpc::Status status;
  if (step(1)) {
    call->WriteLast(request, grpc::WriteOptions(), tag(2));
    step(2);
    // An answer must be read before the status that follows it comes.
    do {
      call->Read(&request, tag(4));
    } while (step(4));
  }
  call->Finish(&status, tag(3));
  step(3);
  queue.Shutdown();
  void* rest = nullptr;
  bool ok = false;
  while (queue.Next(&rest, &ok)) {
  }
  return status.error_code();
}

bool Refused(grpc::StatusCode code) {
  return code == grpc::StatusCode::UNAUTHENTICATED || code == grpc::StatusCode::PERMISSION_DENIED;
}

// DESIGN's roles, written down again so that a slip in the table is seen.
std::set<std::string> AllowedTo(const std::string& caller) {
  const std::set<std::string> reads{"GetJob",    "ListJobs",  "ListWorkers", "WaitJob",
                                    "FollowJob", "GetStatus", "ListNodes",   "GetVersion"};
  std::set<std::string> allowed;
  if (caller == "viewer" || caller == "user" || caller == "admin") {
    allowed = reads;
  }
  if (caller == "user" || caller == "admin") {
    allowed.insert({"SubmitJob", "CancelJob", "FindWorkingDir", "PutWorkingDir"});
  }
  if (caller == "admin") {
    allowed.insert({"CreateToken", "ListTokens", "RevokeToken", "Join"});
  }
  if (caller == "join") {
    allowed = {"Join", "GetVersion"};
  }
  if (caller == "agent") {
    allowed = {"Connect", "SendOutput", "GetWorkingDir", "GetVersion"};
  }
  return allowed;
}

TEST_CASE("the table names every call and nothing else", "[auth]") {
  std::vector<std::string> paths = EveryPath();
  std::vector<std::string> ruled;
  for (const Rule& rule : Rules()) {
    ruled.emplace_back(rule.path);
  }
  std::sort(paths.begin(), paths.end());
  std::sort(ruled.begin(), ruled.end());
  CHECK(paths == ruled);
}

TEST_CASE("every call refuses every caller that the table does not allow", "[auth]") {
  TestHead head;
  const WallTime soon = std::chrono::system_clock::now() + std::chrono::hours(1);
  const WallTime past = std::chrono::system_clock::now() - std::chrono::hours(1);
  std::map<std::string, std::string> tokens{
      {"nobody", ""},
      {"wrong", client::FormatToken(*client::MakeToken(head.authority().sha256()))},
      {"garbage", "rct_garbage"},
      {"expired", head.CreateToken("old", Role::kAdmin, past)},
      {"revoked", head.CreateToken("gone", Role::kAdmin)},
      {"viewer", head.CreateToken("vera", Role::kViewer, soon)},
      {"user", head.CreateToken("ulla", Role::kUser)},
      {"admin", head.admin},
      {"join", head.CreateToken("jo", Role::kJoin)},
  };
  head.RevokeToken("gone");
  const auto channel = head.Channel();
  const auto agent_channel = head.AgentChannel(NodeId{5});
  for (const std::string& path : EveryPath()) {
    const std::string method = path.substr(path.rfind('/') + 1);
    for (const auto& [caller, token] : tokens) {
      CAPTURE(path, caller);
      const bool known = AllowedTo(caller).size() != 0;
      const grpc::StatusCode code = Knock(channel, path, token);
      CHECK(Refused(code) != AllowedTo(caller).contains(method));
      if (!known) {
        CHECK(code == grpc::StatusCode::UNAUTHENTICATED);
      } else if (Refused(code)) {
        CHECK(code == grpc::StatusCode::PERMISSION_DENIED);
      }
    }
    if (method == "Connect" || method == "SendOutput") {
      continue;  // Held open or answered by their handlers: below, and in server_test.
    }
    CAPTURE(path);
    CHECK(Refused(Knock(agent_channel, path, "")) != AllowedTo("agent").contains(method));
  }
  CHECK_FALSE(Refused(Knock(agent_channel, "/rayctl.v1.AgentService/SendOutput", "")));
  CHECK(Knock(agent_channel, "/rayctl.v1.JobService/SubmitJob", tokens["viewer"]) ==
        grpc::StatusCode::PERMISSION_DENIED);
}

TEST_CASE("a call that does not exist is refused", "[auth]") {
  TestHead head;
  CHECK(Knock(head.Channel(), "/rayctl.v1.JobService/Nonsense", head.admin) == grpc::StatusCode::PERMISSION_DENIED);
  CHECK(Knock(head.Channel(), "/nonsense", "") == grpc::StatusCode::UNAUTHENTICATED);
}

TEST_CASE("a refusal says how to get in", "[auth]") {
  TestHead head;
  const auto stub = ::rayctl::v1::ClusterService::NewStub(head.Channel());
  ::rayctl::v1::GetStatusResponse response;
  const auto context = test::Context("");
  const grpc::Status status = stub->GetStatus(context.get(), {}, &response);
  CHECK(status.error_message().find("rayctl token create") != std::string::npos);
}

TEST_CASE("a certificate of another CA, a client of another CA and plain text do not get through", "[auth]") {
  TestHead head;
  const TestHead other;
  const auto tries = [&](const client::ChannelOptions& options, const std::string& token) {
    return Knock(client::MakeChannel(options), "/rayctl.v1.ClusterService/GetVersion", token);
  };
  const std::string ca = head.authority().identity().certificate_pem;
  CHECK(tries({.address = head.address(), .ca_pem = ca, .own_connection = true}, head.admin) == grpc::StatusCode::OK);
  CHECK(
      tries({.address = head.address(), .ca_pem = other.authority().identity().certificate_pem, .own_connection = true},
            head.admin) == grpc::StatusCode::UNAVAILABLE);
  CHECK(tries({.address = head.address(), .insecure = true, .own_connection = true}, head.admin) ==
        grpc::StatusCode::UNAVAILABLE);
  const auto request = *client::MakeKeyAndRequest("x");
  CHECK(
      tries({.address = head.address(),
             .ca_pem = ca,
             .cert_pem = *other.authority().SignAgent(request.request_pem, NodeId{5}, std::chrono::system_clock::now()),
             .key_pem = request.key_pem,
             .own_connection = true},
            "") != grpc::StatusCode::OK);
}

TEST_CASE("two callers on one connection stay two", "[auth]") {
  TestHead head;
  const std::string viewer = head.CreateToken("vera", Role::kViewer);
  const auto channel = head.Channel();
  CHECK(Knock(channel, "/rayctl.v1.TokenService/ListTokens", head.admin) == grpc::StatusCode::OK);
  CHECK(Knock(channel, "/rayctl.v1.TokenService/ListTokens", viewer) == grpc::StatusCode::PERMISSION_DENIED);
  CHECK(Knock(channel, "/rayctl.v1.TokenService/ListTokens", "") == grpc::StatusCode::UNAUTHENTICATED);
}

}  // namespace
}  // namespace rayctl::rpc
