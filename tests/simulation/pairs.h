#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/clock.h"

// Two faults at once, one job: which end it comes to, in how many attempts.
namespace rayctl::sim {

// What is struck. The same as in the matrix on hosts of a network (`./dev matrix`).
enum class Victim { kHead, kAgent, kShim, kRank, kCut, kReboot, kHeadStopped, kAgentStopped, kShimStopped };
inline constexpr std::array<std::string_view, 9> kVictimNames = {
    "head", "agent", "shim", "rank", "cut", "reboot", "head stopped", "agent stopped", "shim stopped"};

// What the job is doing when the first fault strikes.
enum class Moment { kQueued, kStarting, kRunning, kStopping, kRecovering };
inline constexpr std::array<std::string_view, 5> kMomentNames = {"queued", "starting", "running", "stopping",
                                                                 "recovering"};

// Two victims, a moment, one node or two: every seed has one cell, and so many seeds in a row have them all.
struct Cell {
  Victim first;
  Victim second;
  Moment moment;
  std::uint32_t nodes;
};
inline constexpr std::uint64_t kCells = kVictimNames.size() * kVictimNames.size() * kMomentNames.size() * 2;
Cell CellOf(std::uint64_t seed);
// "agent + cut", in the order of kVictimNames whichever came first.
std::string PairName(const Cell& cell);

struct PairResult {
  std::uint64_t seed = 0;
  Cell cell{};
  std::string violation;  // "" = every promise was kept.
  std::string outcome;    // "SUCCEEDED in attempt 1"
  std::uint64_t trace_hash = 0;
  std::uint64_t trace_lines = 0;
  std::uint64_t events = 0;
  Duration virtual_time{0};
  std::map<std::string, std::uint64_t> counts;
};

// A gang of two ranks, brought to the moment of the seed's cell; then both faults, the second at the same instant or up
// to a minute later. Whatever broke is started again, plugged in or continued, as a person or systemd would. The job
// has to come to its end with no more attempts than the faults may cost, and nothing may be left.
PairResult RunPair(std::uint64_t seed, bool print_trace);

std::string PairReplayCommand(std::uint64_t seed);

}  // namespace rayctl::sim
