#include "base/units.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace rayctl {
namespace {

using namespace std::chrono_literals;

TEST_CASE("durations are read as people write them", "[base]") {
  const auto [text, want] = GENERATE(table<std::string, Duration>({{"0", 0s},
                                                                   {"90", 90s},
                                                                   {"90s", 90s},
                                                                   {"250ms", 250ms},
                                                                   {"5m", 5min},
                                                                   {"2h", 2h},
                                                                   {"1.5h", 90min},
                                                                   {"1d", 24h},
                                                                   {" 3m ", 3min}}));
  CAPTURE(text);
  const absl::StatusOr<Duration> duration = ParseDuration(text);
  REQUIRE(duration.ok());
  CHECK(*duration == want);
}

TEST_CASE("what is no duration is refused and named", "[base]") {
  const std::string text =
      GENERATE("", "s", "-1", "+1", "-5m", "5 weeks", "1h30m", "5M", "nan", "inf", "1e3", "0x10", "11000d");
  CAPTURE(text);
  const absl::StatusOr<Duration> duration = ParseDuration(text);
  REQUIRE_FALSE(duration.ok());
  CHECK(duration.status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("bytes are read with binary and decimal units", "[base]") {
  const auto [text, want] = GENERATE(table<std::string, std::int64_t>({{"0", 0},
                                                                       {"1048576", 1'048'576},
                                                                       {"512B", 512},
                                                                       {"2GiB", std::int64_t{2} << 30},
                                                                       {"1.5 GB", 1'500'000'000},
                                                                       {"1kB", 1000},
                                                                       {"1KiB", 1024},
                                                                       {"3MB", 3'000'000},
                                                                       {"1TiB", std::int64_t{1} << 40}}));
  CAPTURE(text);
  const absl::StatusOr<std::int64_t> bytes = ParseBytes(text);
  REQUIRE(bytes.ok());
  CHECK(*bytes == want);
}

TEST_CASE("what is no number of bytes is refused", "[base]") {
  const std::string text = GENERATE("", "GiB", "-1", "2 gib", "2G", "1e9", "inf", "1 GiB x", "9000000TiB");
  CAPTURE(text);
  const absl::StatusOr<std::int64_t> bytes = ParseBytes(text);
  REQUIRE_FALSE(bytes.ok());
  CHECK(bytes.status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("bytes are shown in the largest unit that keeps them readable", "[base]") {
  CHECK(FormatBytes(0) == "0 B");
  CHECK(FormatBytes(512) == "512 B");
  CHECK(FormatBytes(1536) == "1.5 KiB");
  CHECK(FormatBytes(std::int64_t{2} << 30) == "2 GiB");
  CHECK(FormatBytes(std::int64_t{3} << 40) == "3 TiB");
}

TEST_CASE("what was shown in whole units reads back the same", "[base]") {
  const std::int64_t bytes = GENERATE(std::int64_t{512}, std::int64_t{4} << 10, std::int64_t{7} << 20,
                                      std::int64_t{2} << 30, std::int64_t{3} << 40);
  const absl::StatusOr<std::int64_t> again = ParseBytes(FormatBytes(bytes));
  REQUIRE(again.ok());
  CHECK(*again == bytes);
}

TEST_CASE("durations are shown with two parts at most", "[base]") {
  CHECK(FormatDuration(300ms) == "0.3 s");
  CHECK(FormatDuration(12s) == "12 s");
  CHECK(FormatDuration(3min + 20s) == "3m 20s");
  CHECK(FormatDuration(2h + 5min + 59s) == "2h 5m");
  CHECK(FormatDuration(24h * 4 + 3h) == "4d 3h");
}

TEST_CASE("times are RFC 3339 in UTC with milliseconds", "[base][golden]") {
  const auto at = [](std::int64_t millis) { return WallTime(std::chrono::milliseconds(millis)); };
  CHECK(FormatTime(at(0)) == "1970-01-01T00:00:00.000Z");
  CHECK(FormatTime(at(1'772'366'400'250)) == "2026-03-01T12:00:00.250Z");
  CHECK(FormatTime(at(-1)) == "1969-12-31T23:59:59.999Z");
}

}  // namespace
}  // namespace rayctl
