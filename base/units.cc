#include "base/units.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

namespace rayctl {
namespace {

// A non-negative decimal number at the front of `text`, which is moved behind it.
std::optional<double> TakeNumber(std::string_view& text) {
  if (text.empty() || text.front() == '-' || text.front() == '+') {
    return std::nullopt;
  }
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc{} || !std::isfinite(number)) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') {
    text.remove_prefix(1);
  }
  while (!text.empty() && text.back() == ' ') {
    text.remove_suffix(1);
  }
  return text;
}

constexpr double kDurationSecondsMax = 10.0 * 366 * 86400;

}  // namespace

absl::StatusOr<Duration> ParseDuration(std::string_view text) {
  const auto wrong = [whole = text] {
    return absl::InvalidArgumentError(
        fmt::format("expected a duration such as 90, 90s, 5m, 2h or 1d, not '{}'", whole));
  };
  text = Trim(text);
  const std::optional<double> number = TakeNumber(text);
  if (!number) {
    return wrong();
  }
  double seconds = 0;
  if (text.empty() || text == "s") {
    seconds = *number;
  } else if (text == "ms") {
    seconds = *number / 1000;
  } else if (text == "m") {
    seconds = *number * 60;
  } else if (text == "h") {
    seconds = *number * 3600;
  } else if (text == "d") {
    seconds = *number * 86400;
  } else {
    return wrong();
  }
  if (seconds > kDurationSecondsMax) {
    return absl::InvalidArgumentError("a duration is at most 10 years");
  }
  return std::chrono::round<Duration>(std::chrono::duration<double>(seconds));
}

absl::StatusOr<std::int64_t> ParseBytes(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, double>, 11> kUnits{{{"", 1},
                                                                               {"B", 1},
                                                                               {"KiB", 1024.0},
                                                                               {"MiB", 1024.0 * 1024},
                                                                               {"GiB", 1024.0 * 1024 * 1024},
                                                                               {"TiB", 1024.0 * 1024 * 1024 * 1024},
                                                                               {"kB", 1e3},
                                                                               {"KB", 1e3},
                                                                               {"MB", 1e6},
                                                                               {"GB", 1e9},
                                                                               {"TB", 1e12}}};
  const std::string_view whole = text;
  text = Trim(text);
  if (const std::optional<double> number = TakeNumber(text)) {
    text = Trim(text);
    for (const auto& [unit, factor] : kUnits) {
      if (text == unit && *number * factor < 9e14) {
        return static_cast<std::int64_t>(std::llround(*number * factor));
      }
    }
  }
  return absl::InvalidArgumentError(
      fmt::format("expected bytes or a number with KiB, MiB, GiB, TiB, kB, MB, GB or TB, not '{}'", whole));
}

std::string FormatBytes(std::int64_t bytes) {
  static constexpr std::array<std::string_view, 5> kNames{"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (std::abs(value) >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  return std::abs(value - std::round(value)) < 0.05 ? fmt::format("{:.0f} {}", value, kNames[unit])
                                                    : fmt::format("{:.1f} {}", value, kNames[unit]);
}

std::string FormatDuration(Duration duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  if (seconds < 10) {
    return fmt::format("{:.1f} s", seconds);
  }
  const auto whole = static_cast<std::int64_t>(seconds);
  if (whole < 60) {
    return fmt::format("{} s", whole);
  }
  if (whole < 3600) {
    return fmt::format("{}m {}s", whole / 60, whole % 60);
  }
  if (whole < 86400) {
    return fmt::format("{}h {}m", whole / 3600, whole / 60 % 60);
  }
  return fmt::format("{}d {}h", whole / 86400, whole / 3600 % 24);
}

std::string FormatTime(WallTime time) {
  const auto millis = std::chrono::floor<std::chrono::milliseconds>(time.time_since_epoch()).count();
  const std::int64_t seconds = millis >= 0 ? millis / 1000 : (millis - 999) / 1000;
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(static_cast<std::time_t>(seconds)),
                     millis - seconds * 1000);
}

}  // namespace rayctl
