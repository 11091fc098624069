#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace rayctl::cli {

// "rack=r1,zone=z" or {"rack": "r1"}. INVALID_ARGUMENT names what is wrong; no name twice.
absl::StatusOr<std::map<std::string, std::string>> ParsePairs(std::string_view text);

// "2", "0.5"; of memory "2GiB". INVALID_ARGUMENT names the resource and what is wrong.
absl::StatusOr<double> ParseAmount(const std::string& name, std::string_view text);

// "license=2,memory=2GiB" or {"license": 2}: amounts of resources, memory in bytes.
absl::StatusOr<std::map<std::string, double>> ParseAmounts(std::string_view text);

}  // namespace rayctl::cli
