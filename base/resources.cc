#include "base/resources.h"

#include <fmt/format.h>

#include <cmath>

#include "base/units.h"

namespace rayctl {

absl::StatusOr<Amount> Amount::FromDouble(double units) {
  if (!std::isfinite(units) || units < 0) {
    return absl::InvalidArgumentError(fmt::format("expected an amount of 0 or more, not {}", units));
  }
  if (units > 9.0e14) {
    return absl::InvalidArgumentError(fmt::format("{} is more than any cluster has", units));
  }
  if (units == std::floor(units)) {
    return Units(
        static_cast<std::int64_t>(units));  // Bytes of a large node times 10,000 have more digits than a double.
  }
  const double scaled = units * kUnit;
  const double rounded = std::round(scaled);
  if (std::abs(scaled - rounded) > 1e-3 * std::max(1.0, rounded * 1e-9)) {
    return absl::InvalidArgumentError(fmt::format("{} has more than 4 decimals", units));
  }
  return Amount{static_cast<std::int64_t>(rounded)};
}

std::string Amount::ToString() const {
  if (IsWhole()) {
    return fmt::format("{}", raw / kUnit);
  }
  std::string text = fmt::format("{}.{:04}", raw / kUnit, std::abs(raw % kUnit));
  text.erase(text.find_last_not_of('0') + 1);
  return text;
}

Resources::Resources(std::initializer_list<std::pair<const std::string, Amount>> amounts) {
  for (const auto& [name, amount] : amounts) {
    Set(name, amount);
  }
}

Amount Resources::Get(std::string_view name) const {
  const auto it = amounts_.find(name);
  return it == amounts_.end() ? Amount{} : it->second;
}

void Resources::Set(std::string_view name, Amount amount) {
  if (amount.raw == 0) {
    if (const auto it = amounts_.find(name); it != amounts_.end()) {
      amounts_.erase(it);
    }
    return;
  }
  amounts_.insert_or_assign(std::string(name), amount);
}

void Resources::Add(const Resources& other) {
  for (const auto& [name, amount] : other.amounts_) {
    Set(name, Get(name) + amount);
  }
}

void Resources::Subtract(const Resources& other) {
  for (const auto& [name, amount] : other.amounts_) {
    Set(name, Get(name) - amount);
  }
}

bool Resources::Contains(const Resources& want) const {
  for (const auto& [name, amount] : want.amounts_) {
    if (Get(name) < amount) {
      return false;
    }
  }
  return true;
}

std::string Resources::ToString() const {
  std::string text;
  for (const auto& [name, amount] : amounts_) {
    if (!text.empty()) {
      text += ", ";
    }
    text += name + ": " + (name == kMemory ? FormatBytes(amount.raw / Amount::kUnit) : amount.ToString());
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace rayctl
