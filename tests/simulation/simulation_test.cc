#include <catch2/catch.hpp>

#include "tests/simulation/campaign.h"
#include "tests/simulation/pairs.h"

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

TEST_CASE("two faults cost a job no more than the two together may, at any moment of it", "[simulation]") {
  for (std::uint64_t seed = 0; seed < kCells; ++seed) {
    const PairResult result = RunPair(seed, false);
    INFO("replay: " << PairReplayCommand(seed));
    CAPTURE(seed);
    CHECK(result.violation == "");
    CHECK(result.events > 0);
  }
}

TEST_CASE("a pair of faults replays byte for byte", "[simulation]") {
  for (const std::uint64_t seed : {5, 444}) {
    const PairResult first = RunPair(seed, false);
    const PairResult second = RunPair(seed, false);
    CAPTURE(seed);
    CHECK(first.trace_lines > 100);
    CHECK(first.trace_lines == second.trace_lines);
    CHECK(first.trace_hash == second.trace_hash);
  }
  CHECK(RunPair(5, false).trace_hash != RunPair(5 + kCells, false).trace_hash);
}

}  // namespace rayctl::sim
