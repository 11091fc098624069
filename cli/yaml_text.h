#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace rayctl::cli {

// The same value as YAML, without a line end behind it. Every text is quoted, so that no reader takes one for a number,
// a truth or null; NaN and infinities are texts, as in JSON.
std::string YamlText(const nlohmann::ordered_json& value);

}  // namespace rayctl::cli
