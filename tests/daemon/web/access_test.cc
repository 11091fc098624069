#include "daemon/web/access.h"

#include <catch2/catch.hpp>
#include <functional>
#include <vector>

namespace rayctl::web {
namespace {

AccessFacts OwnReader() { return {.on_loopback = true, .peer = 1000, .own = 1000, .host = "127.0.0.1:8265"}; }

enum class Outcome { kAllowed, kToken, kUnauthorized, kForbidden };

Outcome Of(const AccessFacts& facts) {
  const Access access = Decide(facts);
  if (access.refused) {
    CHECK_FALSE(access.token);
    CHECK_FALSE(access.refused->why.empty());
    return access.refused->token_helps ? Outcome::kUnauthorized : Outcome::kForbidden;
  }
  return access.token ? Outcome::kToken : Outcome::kAllowed;
}

TEST_CASE("without a token only this user reads, from loopback, under a loopback name, from no foreign page", "[web]") {
  struct Case {
    const char* what;
    std::function<void(AccessFacts&)> change;
    Outcome outcome;
  };
  const std::vector<Case> cases{
      {"as is", [](AccessFacts&) {}, Outcome::kAllowed},
      {"localhost", [](AccessFacts& f) { f.host = "localhost"; }, Outcome::kAllowed},
      {"IPv6", [](AccessFacts& f) { f.host = "[::1]:8265"; }, Outcome::kAllowed},
      {"IPv6 without a port", [](AccessFacts& f) { f.host = "[::1]"; }, Outcome::kAllowed},
      {"our own page", [](AccessFacts& f) { f.origin = "http://127.0.0.1:8265"; }, Outcome::kAllowed},
      {"another port's page", [](AccessFacts& f) { f.origin = "http://127.0.0.1:3000"; }, Outcome::kForbidden},
      {"a foreign page", [](AccessFacts& f) { f.origin = "http://evil.example"; }, Outcome::kForbidden},
      {"a page of no origin", [](AccessFacts& f) { f.origin = "null"; }, Outcome::kForbidden},
      {"a name made to resolve here", [](AccessFacts& f) { f.host = "evil.example:8265"; }, Outcome::kForbidden},
      {"a name that begins like ours", [](AccessFacts& f) { f.host = "127.0.0.1.evil.example"; }, Outcome::kForbidden},
      {"no name", [](AccessFacts& f) { f.host = ""; }, Outcome::kForbidden},
      {"half a bracket", [](AccessFacts& f) { f.host = "[::1"; }, Outcome::kForbidden},
      {"another user", [](AccessFacts& f) { f.peer = 1001; }, Outcome::kUnauthorized},
      {"a user that /proc does not tell", [](AccessFacts& f) { f.peer.reset(); }, Outcome::kUnauthorized},
      {"another machine", [](AccessFacts& f) { f.on_loopback = false; }, Outcome::kUnauthorized},
      {"a POST", [](AccessFacts& f) { f.reads = false; }, Outcome::kUnauthorized},
      {"a token", [](AccessFacts& f) { f.authorization = "Bearer rct_x"; }, Outcome::kToken},
      {"a password", [](AccessFacts& f) { f.authorization = "Basic eDp5"; }, Outcome::kUnauthorized},
  };
  for (const Case& one : cases) {
    CAPTURE(one.what);
    AccessFacts facts = OwnReader();
    one.change(facts);
    CHECK(Of(facts) == one.outcome);
  }
}

TEST_CASE("a token is asked whatever else there is", "[web]") {
  AccessFacts facts{
      .reads = false, .on_loopback = false, .own = 1000, .host = "gpu-1:8265", .authorization = "Bearer t"};
  const Access access = Decide(facts);
  REQUIRE(access.token);
  CHECK(access.token->bearer == "t");
}

TEST_CASE("an insecure head lets every user of the machine read, but no foreign page", "[web]") {
  AccessFacts facts = OwnReader();
  facts.insecure = true;
  facts.peer = 1001;
  CHECK(Of(facts) == Outcome::kAllowed);
  facts.authorization = "Bearer whatever";
  CHECK(Of(facts) == Outcome::kAllowed);
  facts.origin = "http://evil.example";
  CHECK(Of(facts) == Outcome::kForbidden);
}

}  // namespace
}  // namespace rayctl::web
