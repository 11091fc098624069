// Runs the simulation over many seeds and says what happened in them.
#include <chrono>
#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "fmt/format.h"
#include "tests/simulation/campaign.h"
#include "tests/simulation/pairs.h"

namespace rayctl::sim {
namespace {

// Pairs of faults, one pair a seed: how each kind of pair ended.
int RunPairs(std::uint64_t first, std::uint64_t seeds, bool print_trace) {
  struct Row {
    std::uint64_t runs = 0;
    std::map<std::string, std::uint64_t> outcomes;
  };
  const auto began = std::chrono::steady_clock::now();
  std::map<std::string, Row> rows;
  std::map<std::string, Row> moments;
  std::map<std::string, std::uint64_t> outcomes;
  std::map<std::string, std::uint64_t> counts;
  std::uint64_t broken = 0;
  std::uint64_t events = 0;
  Duration virtual_time{0};
  for (std::uint64_t i = 0; i < seeds; ++i) {
    const PairResult result = RunPair(first + i, print_trace);
    const bool kept = result.violation.empty();
    const std::string outcome = kept ? result.outcome : "broken";
    const std::string moment = fmt::format("{}, {} node{}", kMomentNames[static_cast<std::size_t>(result.cell.moment)],
                                           result.cell.nodes, result.cell.nodes > 1 ? "s" : "");
    for (Row* row : {&rows[PairName(result.cell)], &moments[moment]}) {
      ++row->runs;
      ++row->outcomes[outcome];
    }
    ++outcomes[outcome];
    events += result.events;
    virtual_time += result.virtual_time;
    for (const auto& [what, count] : result.counts) {
      counts[what] += count;
    }
    if (!kept) {
      ++broken;
      fmt::print("seed {} broken: {} while {}: {}\n  replay: {}\n", result.seed, PairName(result.cell), moment,
                 result.violation, PairReplayCommand(result.seed));
    }
    if (seeds == 1) {
      fmt::print("{} while {}: {}\ntrace: {:016x}, {} lines\n", PairName(result.cell), moment, outcome,
                 result.trace_hash, result.trace_lines);
    }
  }
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  for (const auto* table : {&rows, &moments}) {
    for (const auto& [name, row] : *table) {
      std::string line = fmt::format("{:32}{:6} runs:", name, row.runs);
      for (const auto& [outcome, count] : row.outcomes) {
        line += fmt::format("  {} {}", count, outcome);
      }
      fmt::print("{}\n", line);
    }
    fmt::print("\n");
  }
  fmt::print("seeds: {}\nvirtual hours: {:.1f}\nevents: {}\n", seeds,
             std::chrono::duration<double, std::ratio<3600>>(virtual_time).count(), events);
  for (const auto* table : {&counts, &outcomes}) {
    for (const auto& [what, count] : *table) {
      fmt::print("{}: {}\n", what, count);
    }
  }
  fmt::print("broken: {}\nseeds a second: {:.1f}\n", broken, static_cast<double>(seeds) / took);
  return broken == 0 ? 0 : 1;
}

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
  bool pairs = false;
  app.add_option("--seeds", seeds, "How many seeds");
  app.add_option("--first", first, "The first of them");
  CLI::Option* seed = app.add_option("--seed", one, "This seed alone");
  app.add_flag("--trace", options.print_trace, "Print every event (RAYCTL_SIM_TRACE=1 does too)")
      ->envname("RAYCTL_SIM_TRACE");
  app.add_flag("--pairs", pairs, "Two faults and one job a seed: every pair at every moment, on one node and on two");
  app.add_option("--nodes", nodes, "Nodes; drawn from the seed unless given");
  app.add_option("--hours", hours, "Virtual hours of trouble before all is healed");
  CLI11_PARSE(app, argc, argv);
  if (*seed) {
    first = one;
    seeds = 1;
  }
  if (pairs) {
    return RunPairs(first, seeds, options.print_trace);
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
