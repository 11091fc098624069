#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace rayctl {

enum class NonFinite {
  kPython,  // NaN, Infinity, -Infinity, bare, as Python's json writes and reads them.
  kStrings  // "NaN", "Infinity", "-Infinity": standard JSON, for `-o json` and the web.
};

// One line of JSON, spaced as Python's json does, or indented by `indent` spaces when that is above 0. Integers stay
// integers, whole floats keep their
// ".0", bytes that are not UTF-8 become U+FFFD.
std::string JsonText(const nlohmann::ordered_json& value, NonFinite non_finite, int indent = 0);

// Reads JSON that may hold Python's bare NaN and infinities; keeps the order of members. INVALID_ARGUMENT: not JSON.
absl::StatusOr<nlohmann::ordered_json> ParseJsonText(std::string_view text);

}  // namespace rayctl
