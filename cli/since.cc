#include "cli/since.h"

#include <fmt/format.h>
#include <google/protobuf/util/time_util.h>

#include <chrono>

#include "base/units.h"

namespace rayctl::cli {

absl::StatusOr<WallTime> ParseSince(const std::string& text, WallTime now) {
  if (const absl::StatusOr<Duration> ago = ParseDuration(text); ago.ok()) {
    return now - *ago;
  }
  google::protobuf::Timestamp time;
  if (google::protobuf::util::TimeUtil::FromString(text, &time)) {
    return WallTime(std::chrono::nanoseconds(google::protobuf::util::TimeUtil::TimestampToNanoseconds(time)));
  }
  return absl::InvalidArgumentError(fmt::format(
      "expected a duration such as 30s, 10m or 2h, or a time such as 2026-03-01T12:00:00Z, not '{}'", text));
}

}  // namespace rayctl::cli
