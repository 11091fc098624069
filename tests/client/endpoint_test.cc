#include "client/endpoint.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <map>
#include <string>

#include "client/token.h"
#include "daemon/rpc/authority.h"

namespace rayctl::client {
namespace {

// A machine as FindHead sees it, with files in memory.
struct Machine {
  EndpointSettings settings{.home = "/home/ann", .runtime_root = "/tmp/rayctl-1"};
  std::map<std::string, std::string> files;
  std::vector<RunningDaemon> daemons;
  std::string current;

  absl::StatusOr<Endpoint> Find() const {
    return FindHead(settings, {daemons, current, [this](const std::string& path) -> absl::StatusOr<std::string> {
                                 const auto found = files.find(path);
                                 if (found == files.end()) {
                                   return absl::NotFoundError(path);
                                 }
                                 return found->second;
                               }});
  }
};

const rpc::Authority& Ca() {
  static const rpc::Authority authority = *rpc::Authority::Create(std::chrono::system_clock::now());
  return authority;
}

std::string NewToken() { return FormatToken(*MakeToken(Ca().sha256())); }

RunningDaemon HeadHere() {
  return {.is_head = true,
          .pid = 1,
          .address = "10.0.0.5:7000",
          .local_address = "127.0.0.1:7000",
          .state_dir = "/state/a"};
}

TEST_CASE("the head that runs here is found with its own token", "[endpoint]") {
  Machine machine;
  const std::string token = NewToken();
  machine.daemons = {HeadHere()};
  machine.files = {{"/state/a/head/admin-token", token + "\n"},
                   {"/state/a/head/ca.pem", Ca().identity().certificate_pem}};
  const auto found = machine.Find();
  REQUIRE(found.ok());
  CHECK(found->address == "127.0.0.1:7000");
  CHECK(found->token == token);
  CHECK(found->ca_pem == Ca().identity().certificate_pem);
  CHECK(found->state_dir == "/state/a");
}

TEST_CASE("--address comes before RAYCTL_ADDRESS, both before what runs here", "[endpoint]") {
  Machine machine;
  machine.daemons = {HeadHere()};
  machine.settings.token = NewToken();
  machine.settings.env_address = "far:7001";
  CHECK(machine.Find()->address == "far:7001");
  machine.settings.address = "farther";
  CHECK(machine.Find()->address == "farther:6379");
  CHECK(machine.Find()->ca_pem.empty());
}

TEST_CASE("a token comes from --token, a file, RAYCTL_TOKEN, then this machine", "[endpoint]") {
  Machine machine;
  const std::string stored = NewToken();
  const std::string environment = NewToken();
  const std::string flag = NewToken();
  machine.settings.address = "far:7001";
  machine.files = {{"/home/ann/.rayctl/far_7001/token", stored},
                   {"/home/ann/.rayctl/far_7001/ca.pem", Ca().identity().certificate_pem}};
  CHECK(machine.Find()->token == stored);
  CHECK(machine.Find()->ca_pem == Ca().identity().certificate_pem);
  machine.settings.env_token = environment;
  CHECK(machine.Find()->token == environment);
  machine.settings.token = flag;
  CHECK(machine.Find()->token == flag);
}

TEST_CASE("a stored CA that is not the token's is not believed", "[endpoint]") {
  Machine machine;
  const rpc::Authority other = *rpc::Authority::Create(std::chrono::system_clock::now());
  machine.settings.address = "far:7001";
  machine.settings.token = NewToken();
  machine.files = {{"/home/ann/.rayctl/far_7001/ca.pem", other.identity().certificate_pem}};
  CHECK(machine.Find()->ca_pem.empty());
}

TEST_CASE("without any head the answer is unreachable, without a token how to get one", "[endpoint]") {
  Machine machine;
  CHECK(absl::IsUnavailable(machine.Find().status()));
  machine.current = "far:7001";
  CHECK(absl::IsUnauthenticated(machine.Find().status()));
  machine.settings.token = NewToken();
  CHECK(machine.Find()->address == "far:7001");
  machine.settings.token = "rct_nonsense";
  CHECK(absl::IsInvalidArgument(machine.Find().status()));
  machine.settings.token.clear();
  machine.settings.address = "no address at all";
  CHECK(absl::IsInvalidArgument(machine.Find().status()));
}

TEST_CASE("of several heads here one must be named, or be the current one", "[endpoint]") {
  Machine machine;
  RunningDaemon other = HeadHere();
  other.address = "10.0.0.5:7002";
  other.local_address = "127.0.0.1:7002";
  other.state_dir = "/state/b";
  machine.daemons = {HeadHere(), other};
  machine.settings.token = NewToken();
  CHECK(absl::IsFailedPrecondition(machine.Find().status()));
  machine.current = "10.0.0.5:7002";
  CHECK(machine.Find()->state_dir == "/state/b");
  machine.settings.address = "localhost:7000";
  CHECK(machine.Find()->state_dir == "/state/a");
}

TEST_CASE("a private cluster is nobody's unless it is named", "[endpoint]") {
  Machine machine;
  RunningDaemon other = HeadHere();
  other.address = "127.0.0.1:7002";
  other.local_address = "127.0.0.1:7002";
  other.state_dir = "/state/private";
  other.is_private = true;
  machine.settings.token = NewToken();
  machine.daemons = {other};
  CHECK(absl::IsUnavailable(machine.Find().status()));
  machine.daemons = {other, HeadHere()};
  CHECK(machine.Find()->state_dir == "/state/a");
  machine.settings.address = "127.0.0.1:7002";
  CHECK(machine.Find()->state_dir == "/state/private");
}

TEST_CASE("an agent here names its head, and counts not beside that head", "[endpoint]") {
  Machine machine;
  const RunningDaemon agent{.address = "10.0.0.5:7000", .state_dir = "/state/agent"};
  machine.settings.token = NewToken();
  machine.daemons = {agent};
  machine.files = {{"/state/agent/agent/ca.pem", Ca().identity().certificate_pem}};
  CHECK(machine.Find()->address == "10.0.0.5:7000");
  CHECK(machine.Find()->ca_pem == Ca().identity().certificate_pem);
  machine.daemons = {HeadHere(), agent};
  CHECK(machine.Find()->address == "127.0.0.1:7000");
}

TEST_CASE("an insecure head here wants no token", "[endpoint]") {
  Machine machine;
  RunningDaemon head = HeadHere();
  head.insecure = true;
  machine.daemons = {head};
  REQUIRE(machine.Find().ok());
  CHECK(machine.Find()->insecure);
  CHECK(machine.Find()->token.empty());
}

TEST_CASE("addresses", "[endpoint]") {
  CHECK(*NormaliseAddress(" host ") == "host:6379");
  CHECK(*NormaliseAddress("host:1") == "host:1");
  CHECK(*NormaliseAddress("[::1]") == "[::1]:6379");
  CHECK(SplitAddress("[fe80::1]:70")->host == "fe80::1");
  for (const char* bad : {"", ":1", "host:", "host:0", "host:65536", "host:x", "::1", "http://host", "a b"}) {
    CAPTURE(bad);
    CHECK_FALSE(NormaliseAddress(bad).ok());
  }
}

}  // namespace
}  // namespace rayctl::client
