// Runs the simulation over many seeds and says what happened in them.
#include <chrono>
#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "fmt/format.h"
#include "tests/simulation/campaign.h"

namespace rayctl::sim {
namespace {

int Run(int argc, char** argv) {
  CLI::App app{
      "Runs head, agents and shims under simulated clocks, networks and disks.\n"
      "Example: rayctl_sim --seeds 1000 --first 1"};
  std::uint64_t seeds = 50;
  std::uint64_t first = 1;
  std::uint64_t one = 0;
  std::uint32_t nodes = 0;
  double hours = 0;
  CampaignOptions options;
  app.add_option("--seeds", seeds, "How many seeds");
  app.add_option("--first", first, "The first of them");
  CLI::Option* seed = app.add_option("--seed", one, "This seed alone");
  app.add_flag("--trace", options.print_trace, "Print every event (RAYCTL_SIM_TRACE=1 does too)")
      ->envname("RAYCTL_SIM_TRACE");
  app.add_option("--nodes", nodes, "Nodes; drawn from the seed unless given");
  app.add_option("--hours", hours, "Virtual hours of trouble before all is healed");
  CLI11_PARSE(app, argc, argv);
  if (*seed) {
    first = one;
    seeds = 1;
  }
  if (nodes > 0) {
    options.nodes = nodes;
  }
  if (hours > 0) {
    options.troubled = std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::ratio<3600>>(hours));
  }
  const auto began = std::chrono::steady_clock::now();
  std::map<std::string, std::uint64_t> counts;
  std::uint64_t events = 0;
  std::uint64_t broken = 0;
  Duration virtual_time{0};
  for (std::uint64_t i = 0; i < seeds; ++i) {
    const CampaignResult result = RunSeed(first + i, options);
    events += result.events;
    virtual_time += result.virtual_time;
    for (const auto& [what, count] : result.counts) {
      counts[what] += count;
    }
    if (!result.violation.empty()) {
      ++broken;
      fmt::print("seed {} broken: {}\n  replay: {}\n", result.seed, result.violation, ReplayCommand(result.seed));
    }
    if (seeds == 1) {
      fmt::print("trace: {:016x}, {} lines\n", result.trace_hash, result.trace_lines);
    }
  }
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  fmt::print("seeds: {}\nvirtual hours: {:.1f}\nevents: {}\n", seeds,
             std::chrono::duration<double, std::ratio<3600>>(virtual_time).count(), events);
  for (const auto& [what, count] : counts) {
    fmt::print("{}: {}\n", what, count);
  }
  fmt::print("broken: {}\nseeds a second: {:.1f}\n", broken, static_cast<double>(seeds) / took);
  return broken == 0 ? 0 : 1;
}

}  // namespace
}  // namespace rayctl::sim

int main(int argc, char** argv) { return rayctl::sim::Run(argc, argv); }
