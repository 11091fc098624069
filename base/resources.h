#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace rayctl {

// An amount in ten-thousandths, so that 0.1 + 0.2 is 0.3. CPU and GPU in units, memory in bytes, the rest as the user
// named it. Range: +-9.2e14 units.
struct Amount {
  static constexpr std::int64_t kUnit = 10'000;

  std::int64_t raw = 0;

  static constexpr Amount Units(std::int64_t units) { return Amount{units * kUnit}; }
  // INVALID_ARGUMENT: negative, not finite, more than 4 decimals, or out of range.
  static absl::StatusOr<Amount> FromDouble(double units);

  double ToDouble() const { return static_cast<double>(raw) / kUnit; }
  bool IsWhole() const { return raw % kUnit == 0; }
  // "2", "0.5".
  std::string ToString() const;

  friend auto operator<=>(const Amount&, const Amount&) = default;
  friend Amount operator+(Amount a, Amount b) { return {a.raw + b.raw}; }
  friend Amount operator-(Amount a, Amount b) { return {a.raw - b.raw}; }
  Amount& operator+=(Amount b) {
    raw += b.raw;
    return *this;
  }
  Amount& operator-=(Amount b) {
    raw -= b.raw;
    return *this;
  }
};

inline constexpr std::string_view kCpu = "CPU";
inline constexpr std::string_view kGpu = "GPU";
inline constexpr std::string_view kMemory = "memory";

// Amounts by name, in name order. A name that is absent and one that is zero are the same.
class Resources {
 public:
  Resources() = default;
  Resources(std::initializer_list<std::pair<const std::string, Amount>> amounts);

  Amount Get(std::string_view name) const;
  void Set(std::string_view name, Amount amount);
  void Add(const Resources& other);
  void Subtract(const Resources& other);  // May go below zero; callers that must not check Contains first.
  bool Contains(const Resources& want) const;
  bool Empty() const { return amounts_.empty(); }
  const std::map<std::string, Amount, std::less<>>& amounts() const { return amounts_; }
  // "CPU: 2, GPU: 1, memory: 2 GiB"; "nothing" when empty.
  std::string ToString() const;

  friend bool operator==(const Resources&, const Resources&) = default;

 private:
  std::map<std::string, Amount, std::less<>> amounts_;  // No zeros.
};

}  // namespace rayctl
