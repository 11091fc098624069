#include "base/resources.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace rayctl {
namespace {

Amount Of(double units) {
  const absl::StatusOr<Amount> amount = Amount::FromDouble(units);
  REQUIRE(amount.ok());
  return *amount;
}

TEST_CASE("0.1 + 0.2 is 0.3", "[base]") {
  CHECK(Of(0.1) + Of(0.2) == Of(0.3));
  CHECK(Of(0.3) - Of(0.1) == Of(0.2));
}

TEST_CASE("every sum of amounts with up to 4 decimals is exact", "[base]") {
  std::mt19937_64 random(20'260'301);
  std::uniform_int_distribution<std::int64_t> any(0, 10'000'000);
  for (int round = 0; round < 2000; ++round) {
    const std::int64_t a = any(random);
    const std::int64_t b = any(random);
    CAPTURE(a, b);
    CHECK(Of(static_cast<double>(a) / Amount::kUnit).raw == a);
    CHECK(Of(static_cast<double>(a) / Amount::kUnit) + Of(static_cast<double>(b) / Amount::kUnit) == Amount{a + b});
  }
}

TEST_CASE("amounts taken and given back in any order leave nothing behind", "[base]") {
  std::mt19937_64 random(7);
  std::uniform_int_distribution<std::int64_t> any(1, 30'000);
  const Resources total{{"CPU", Amount::Units(64)}, {"GPU", Amount::Units(8)}};
  Resources free = total;
  std::vector<Resources> leases;
  for (int lease = 0; lease < 100; ++lease) {
    leases.push_back({{"CPU", Amount{any(random)}}, {"GPU", Amount{any(random)}}});
    free.Subtract(leases.back());
  }
  std::shuffle(leases.begin(), leases.end(), random);
  for (const Resources& lease : leases) {
    free.Add(lease);
  }
  CHECK(free == total);
}

TEST_CASE("an amount that cannot be meant is refused", "[base]") {
  const double wrong = GENERATE(-1.0, -0.0001, 0.00001, 0.12345, 1e15, std::numeric_limits<double>::infinity(),
                                std::numeric_limits<double>::quiet_NaN());
  CAPTURE(wrong);
  const absl::StatusOr<Amount> amount = Amount::FromDouble(wrong);
  REQUIRE_FALSE(amount.ok());
  CHECK(amount.status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("large amounts of memory in bytes are exact", "[base]") {
  const std::int64_t bytes = GENERATE(std::int64_t{1}, std::int64_t{2} << 30, (std::int64_t{1} << 44) + 1);
  CHECK(Of(static_cast<double>(bytes)).raw == bytes * Amount::kUnit);
}

TEST_CASE("an amount reads as a person writes it", "[base]") {
  CHECK(Of(2).ToString() == "2");
  CHECK(Of(0.5).ToString() == "0.5");
  CHECK(Of(1.25).ToString() == "1.25");
  CHECK(Of(0.0001).ToString() == "0.0001");
  CHECK(Of(10).ToString() == "10");
  CHECK(Amount{}.ToString() == "0");
  CHECK(Of(2).IsWhole());
  CHECK_FALSE(Of(2.5).IsWhole());
  CHECK(Of(2.5).ToDouble() == 2.5);
}

TEST_CASE("a zero and an absent resource are the same", "[base]") {
  Resources left{{"CPU", Amount::Units(1)}, {"GPU", Amount{}}};
  const Resources right{{"CPU", Amount::Units(1)}};
  CHECK(left == right);
  CHECK(left.Get("GPU") == Amount{});
  left.Subtract(right);
  CHECK(left.Empty());
}

TEST_CASE("resources contain what they have enough of by every name", "[base]") {
  const Resources node{{"CPU", Amount::Units(4)}, {"memory", Amount::Units(1024)}};
  CHECK(node.Contains({}));
  CHECK(node.Contains(node));
  CHECK(node.Contains({{"CPU", Amount::Units(4)}}));
  CHECK_FALSE(node.Contains({{"CPU", Amount{4 * Amount::kUnit + 1}}}));
  CHECK_FALSE(node.Contains({{"CPU", Amount::Units(1)}, {"GPU", Amount{1}}}));
  CHECK_FALSE(Resources{}.Contains({{"CPU", Amount{1}}}));
}

TEST_CASE("resources read in name order with memory in its unit", "[base]") {
  const Resources resources{
      {"memory", Amount::Units(std::int64_t{2} << 30)}, {"GPU", Amount::Units(1)}, {"CPU", Of(0.5)}};
  CHECK(resources.ToString() == "CPU: 0.5, GPU: 1, memory: 2 GiB");
  CHECK(Resources{}.ToString() == "nothing");
}

}  // namespace
}  // namespace rayctl
