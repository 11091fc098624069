#include "daemon/agent/device_table.h"

#include <catch2/catch.hpp>
#include <chrono>

namespace rayctl::agent {
namespace {

using std::chrono::seconds;

constexpr DeviceTimes kTimes;

Now At(Duration since) { return {SteadyTime{since}, WallTime{}}; }

// Two devices that are watched and one that is only counted.
DeviceTable Three() {
  return DeviceTable({{.vendor = "nvidia", .id = "GPU-a"}, {.vendor = "nvidia", .id = "GPU-b"}, {.id = "2"}}, kTimes);
}

std::vector<std::string> Problems(const DeviceTable& table) {
  std::vector<std::string> problems;
  for (const link::Device& device : table.devices()) {
    problems.push_back(device.problem);
  }
  return problems;
}

std::vector<DeviceFacts> HeldBy(const std::vector<DeviceHolder>& holders) { return {{"", holders}, {}, {}}; }

const link::RankKey kRank{JobId{7}, 0, 3};
const std::vector<scheduler::DeviceShare> kWhole{{0, Amount::Units(1)}};
const std::vector<scheduler::DeviceShare> kHalf{{0, Amount{Amount::kUnit / 2}}};

// Begun and looked at once, with nothing found.
DeviceTable Settled() {
  DeviceTable table = Three();
  table.Begin(At(seconds(0)));
  REQUIRE(table.TakeLook(At(seconds(0))) == 1);
  table.Looked(1, {{}, {}, {}}, {}, At(seconds(0)));
  REQUIRE(Problems(table) == std::vector<std::string>(3));
  return table;
}

TEST_CASE("nothing that is watched is lent before the first look", "[devices]") {
  DeviceTable table = Three();
  CHECK_FALSE(table.TakeLook(At(seconds(0))).has_value());
  CHECK(Problems(table)[0] == "it is being looked for what still holds it");
  CHECK(Problems(table)[2].empty());
  table.Begin(At(seconds(0)));
  REQUIRE(table.TakeLook(At(seconds(0))) == 1);
  CHECK_FALSE(table.TakeLook(At(seconds(0))).has_value());  // One at a time.
  table.Looked(1, {{"it hangs", {}}, {}, {}}, {}, At(seconds(1)));
  CHECK(Problems(table) == std::vector<std::string>{"it hangs", "", ""});
  CHECK(table.NextDeadline() == SteadyTime{seconds(1) + kTimes.fenced_interval});
}

TEST_CASE("devices that are only counted are never looked at", "[devices]") {
  DeviceTable table({{.id = "0"}}, kTimes);
  table.Begin(At(seconds(0)));
  CHECK_FALSE(table.TakeLook(At(seconds(0))).has_value());
  CHECK_FALSE(table.NextDeadline().has_value());
}

TEST_CASE("a device comes back when a look that began after its rank's end finds nobody", "[devices]") {
  DeviceTable table = Settled();
  const SteadyTime idle{kTimes.idle_interval};
  REQUIRE(table.NextDeadline() == idle);
  table.Tick(At(kTimes.idle_interval));
  REQUIRE(table.TakeLook(At(kTimes.idle_interval)) == 2);
  table.RankEnded(kWhole, At(seconds(11)));  // While that look is on its way: it may have looked before.
  CHECK_FALSE(Problems(table)[0].empty());
  CHECK(Problems(table)[1].empty());
  table.Looked(2, HeldBy({}), {}, At(seconds(12)));
  CHECK_FALSE(Problems(table)[0].empty());
  REQUIRE(table.TakeLook(At(seconds(12))) == 3);
  table.Looked(3, HeldBy({{4711, "python3", kRank}}), {}, At(seconds(13)));
  CHECK(Problems(table)[0] == "held by process 4711 (python3), left over from rank 3 of job 7");
  table.Tick(At(seconds(13) + kTimes.fenced_interval));
  REQUIRE(table.TakeLook(At(seconds(14))) == 4);
  table.Looked(4, HeldBy({}), {}, At(seconds(14)));
  CHECK(Problems(table) == std::vector<std::string>(3));
}

TEST_CASE("a rank of which nobody knows what it held unsettles every device", "[devices]") {
  DeviceTable table = Settled();
  table.RankEnded(std::nullopt, At(seconds(1)));
  CHECK_FALSE(Problems(table)[0].empty());
  CHECK_FALSE(Problems(table)[1].empty());
  table.RankEnded(std::vector<scheduler::DeviceShare>{{9, Amount::Units(1)}}, At(seconds(1)));  // No such device.
}

TEST_CASE("who may hold a device and who may not", "[devices]") {
  DeviceTable table = Settled();
  const auto problem = [&table](const DeviceHolder& holder, const std::vector<DeviceTable::Lease>& leases) {
    table.RankEnded(kWhole, At(seconds(1)));
    const std::uint64_t look = table.TakeLook(At(seconds(1))).value();
    table.Looked(look, HeldBy({holder}), leases, At(seconds(1)));
    return Problems(table)[0];
  };
  const link::RankKey other{JobId{8}, 0, 0};
  CHECK(problem({1, "x", kRank}, {{kRank, kWhole}}).empty());
  CHECK(problem({1, "x", std::nullopt}, {{kRank, kWhole}}).empty());  // Its own helpers; nobody else gets the device.
  CHECK(problem({1, "x", std::nullopt}, {{kRank, kHalf}}) == "held by process 1 (x)");
  CHECK(problem({1, "", other}, {{kRank, kHalf}}) == "held by process 1, left over from rank 0 of job 8");
  CHECK(problem({1, "x", kRank}, {{kRank, {}, /*known=*/false}}).empty());
  CHECK(problem({0, "", std::nullopt}, {{kRank, kHalf}}).empty());
  CHECK(problem({0, "", std::nullopt}, {{kRank, {{1, Amount::Units(1)}}}}) ==
        "its memory is in use by a process that cannot be seen from here");
}

TEST_CASE("a driver that does not answer is spoken of, and its answer counts when it comes", "[devices]") {
  DeviceTable table = Settled();
  table.RankEnded(kWhole, At(seconds(1)));
  REQUIRE(table.TakeLook(At(seconds(1))) == 2);
  CHECK(table.NextDeadline() == SteadyTime{seconds(1) + kTimes.answer_limit});
  table.Tick(At(seconds(1) + kTimes.answer_limit));
  CHECK(Problems(table)[0] == "its driver does not answer, so nobody knows what holds it");
  CHECK_FALSE(table.NextDeadline().has_value());
  table.Looked(1, HeldBy({}), {}, At(seconds(30)));  // Of an older look.
  CHECK_FALSE(Problems(table)[0].empty());
  table.Looked(2, HeldBy({}), {}, At(seconds(40)));
  CHECK(Problems(table)[0].empty());
}

}  // namespace
}  // namespace rayctl::agent
