#include <catch2/catch.hpp>

#include "tests/simulation/campaign.h"

namespace rayctl::sim {

TEST_CASE("every promise holds under faults of all kinds, and what is healed settles", "[simulation]") {
  CampaignOptions options;
  options.print_trace = std::getenv("RAYCTL_SIM_TRACE") != nullptr;
  for (const std::uint64_t seed : SimulationSeeds()) {
    const CampaignResult result = RunSeed(seed, options);
    INFO("replay: " << ReplayCommand(seed));
    CAPTURE(seed);
    CHECK(result.violation == "");
    CHECK(result.events > 0);
  }
}

TEST_CASE("a seed replays byte for byte", "[simulation]") {
  for (const std::uint64_t seed : {3, 7}) {
    const CampaignResult first = RunSeed(seed, {});
    const CampaignResult second = RunSeed(seed, {});
    CAPTURE(seed);
    CHECK(first.trace_lines > 1000);
    CHECK(first.trace_lines == second.trace_lines);
    CHECK(first.trace_hash == second.trace_hash);
    CHECK(first.counts == second.counts);
  }
  CHECK(RunSeed(3, {}).trace_hash != RunSeed(4, {}).trace_hash);
}

}  // namespace rayctl::sim
