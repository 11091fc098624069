#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/clock.h"

namespace rayctl {

// "90", "90s", "5m", "2h", "1d", "1.5h"; plain numbers are seconds. INVALID_ARGUMENT: anything else, negative, or more
// than 10 years.
absl::StatusOr<Duration> ParseDuration(std::string_view text);

// Bytes: "1048576", "2GiB", "1.5 GB"; units KiB MiB GiB TiB kB MB GB TB. INVALID_ARGUMENT: anything else.
absl::StatusOr<std::int64_t> ParseBytes(std::string_view text);

// "512 B", "2 GiB", "1.5 GiB".
std::string FormatBytes(std::int64_t bytes);

// "0.3 s", "12 s", "3m 20s", "2h 5m", "4d 3h".
std::string FormatDuration(Duration duration);

// RFC 3339, UTC, milliseconds: "2026-03-01T12:00:00.250Z".
std::string FormatTime(WallTime time);

}  // namespace rayctl
