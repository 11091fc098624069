#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"

namespace rayctl::cli {

// A point in the past as people give it: a duration before `now` ("90", "10m", "2h"), or a time with its zone in the
// form of RFC 3339 ("2026-03-01T12:00:00Z", "2026-03-01T13:00:00.5+01:00"). INVALID_ARGUMENT: anything else.
absl::StatusOr<WallTime> ParseSince(const std::string& text, WallTime now);

}  // namespace rayctl::cli
