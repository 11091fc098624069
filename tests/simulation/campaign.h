#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace rayctl::sim {

struct CampaignOptions {
  std::optional<std::uint32_t> nodes;             // Drawn from the seed where absent.
  Duration troubled = std::chrono::minutes(25);   // While jobs come and things fail.
  Duration settle_limit = std::chrono::hours(6);  // Of virtual time, after all is healed.
  bool print_trace = false;
};

struct CampaignResult {
  std::uint64_t seed = 0;
  std::string violation;  // "" = every promise was kept.
  std::uint64_t trace_hash = 0;
  std::uint64_t trace_lines = 0;
  std::uint64_t events = 0;
  Duration virtual_time{0};
  std::map<std::string, std::uint64_t> counts;  // Faults by kind, and jobs by state.
};

// One seed from an empty cluster through faults of all kinds to rest. Says how to replay it when it is broken, also
// when an invariant of the machines aborts the program.
CampaignResult RunSeed(std::uint64_t seed, const CampaignOptions& options);

// Has the program say this when a machine aborts it.
void PrepareLastWords(std::uint64_t seed, const std::string& replay_command);

// The command that runs just this seed again.
std::string ReplayCommand(std::uint64_t seed);

// RAYCTL_SIM_SEED, or RAYCTL_SIM_SEEDS of them from RAYCTL_SIM_FIRST on, or the fixed list.
std::vector<std::uint64_t> SimulationSeeds();

}  // namespace rayctl::sim
