#include "cli/pairs.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/resources.h"
#include "base/status_text.h"
#include "base/units.h"

namespace rayctl::cli {
namespace {

std::string_view Trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> ParsePairs(std::string_view text) {
  std::map<std::string, std::string> pairs;
  text = Trim(text);
  if (text.starts_with('{')) {
    const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) {
      return absl::InvalidArgumentError(fmt::format("expected NAME=VALUE,... or a JSON object, not '{}'", text));
    }
    for (const auto& [name, value] : json.items()) {
      if (value.is_structured() || value.is_null()) {
        return absl::InvalidArgumentError(fmt::format("{}: expected text or a number", name));
      }
      pairs[name] = value.is_string() ? value.get<std::string>() : value.dump();
    }
    return pairs;
  }
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view pair = Trim(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
    const std::size_t equals = pair.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return absl::InvalidArgumentError(fmt::format("expected NAME=VALUE, not '{}'", pair));
    }
    const std::string name(Trim(pair.substr(0, equals)));
    if (!pairs.emplace(name, Trim(pair.substr(equals + 1))).second) {
      return absl::InvalidArgumentError(fmt::format("{} is given twice", name));
    }
  }
  return pairs;
}

absl::StatusOr<double> ParseAmount(const std::string& name, std::string_view text) {
  if (name == kMemory) {
    const absl::StatusOr<std::int64_t> bytes = ParseBytes(text);
    if (!bytes.ok()) {
      return absl::InvalidArgumentError(fmt::format("{}: {}", name, rayctl::Text(bytes.status())));
    }
    return static_cast<double>(*bytes);
  }
  double amount = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), amount);
  if (error != std::errc{} || end != text.data() + text.size() || !Amount::FromDouble(amount).ok()) {
    return absl::InvalidArgumentError(
        fmt::format("{}: expected an amount of at least 0 with at most 4 decimals, not '{}'", name, text));
  }
  return amount;
}

absl::StatusOr<std::map<std::string, double>> ParseAmounts(std::string_view text) {
  const auto pairs = ParsePairs(text);
  if (!pairs.ok()) {
    return pairs.status();
  }
  std::map<std::string, double> amounts;
  for (const auto& [name, value] : *pairs) {
    const absl::StatusOr<double> amount = ParseAmount(name, value);
    if (!amount.ok()) {
      return amount.status();
    }
    amounts[name] = *amount;
  }
  return amounts;
}

}  // namespace rayctl::cli
