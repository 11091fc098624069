#include "cli/since.h"

#include <catch2/catch.hpp>
#include <chrono>

namespace rayctl::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE("a duration counts back from now, a time stands for itself", "[cli]") {
  const WallTime now(seconds(1'772'366'400));  // 2026-03-01T12:00:00Z.
  CHECK(*ParseSince("90", now) == now - seconds(90));
  CHECK(*ParseSince("10m", now) == now - seconds(600));
  CHECK(*ParseSince("1d", now) == now - seconds(86'400));
  CHECK(*ParseSince("2026-03-01T12:00:00Z", WallTime{}) == now);
  CHECK(*ParseSince("2026-03-01T13:00:00.250+01:00", WallTime{}) == now + milliseconds(250));
  for (const char* const wrong : {"yesterday", "-5m", "2026-03-01", "10 parsecs", ""}) {
    CAPTURE(wrong);
    const auto parsed = ParseSince(wrong, now);
    REQUIRE(absl::IsInvalidArgument(parsed.status()));
    CHECK(parsed.status().message().find("expected a duration such as") != std::string::npos);
  }
}

}  // namespace
}  // namespace rayctl::cli
