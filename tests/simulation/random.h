#pragma once

#include <cstdint>
#include <limits>

#include "base/clock.h"

namespace rayctl::sim {

// Numbers that are the same on every machine for the same seed: xoshiro256**, filled by splitmix64. The standard
// library's distributions are not used, since each library draws differently.
class Random {
 public:
  explicit Random(std::uint64_t seed) {
    for (std::uint64_t& word : state_) {
      seed += 0x9e3779b97f4a7c15ULL;
      std::uint64_t mixed = seed;
      mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
      mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
      word = mixed ^ (mixed >> 31);
    }
  }

  std::uint64_t Next() {
    const std::uint64_t result = Rotate(state_[1] * 5, 7) * 9;
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = Rotate(state_[3], 45);
    return result;
  }

  // In [0, bound); bound > 0.
  std::uint64_t Below(std::uint64_t bound) {
    const std::uint64_t last_fair = std::numeric_limits<std::uint64_t>::max() / bound * bound;
    std::uint64_t drawn = Next();
    while (drawn >= last_fair) {
      drawn = Next();
    }
    return drawn % bound;
  }
  // In [low, high].
  std::uint64_t Between(std::uint64_t low, std::uint64_t high) { return low + Below(high - low + 1); }
  Duration Between(Duration low, Duration high) {
    return low + Duration(static_cast<std::int64_t>(Below(static_cast<std::uint64_t>((high - low).count()) + 1)));
  }
  bool Chance(double probability) { return static_cast<double>(Next() >> 11) * 0x1.0p-53 < probability; }
  // A stream of its own, so that one user's draws do not shift another's.
  Random Fork() { return Random(Next()); }

 private:
  static std::uint64_t Rotate(std::uint64_t value, int by) { return (value << by) | (value >> (64 - by)); }
  std::uint64_t state_[4];
};

}  // namespace rayctl::sim
