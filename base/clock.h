#pragma once

#include <chrono>

namespace rayctl {

using Duration = std::chrono::nanoseconds;
// Never jumps; means nothing in another process.
using SteadyTime = std::chrono::time_point<std::chrono::steady_clock, Duration>;
// For people and records only; no decision rests on it.
using WallTime = std::chrono::time_point<std::chrono::system_clock, Duration>;

// What time it is, on both clocks. State machines get one with every event.
struct Now {
  SteadyTime steady;
  WallTime wall;
};

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Now Read() const = 0;
};

class SystemClock final : public Clock {
 public:
  Now Read() const override { return {std::chrono::steady_clock::now(), std::chrono::system_clock::now()}; }
};

}  // namespace rayctl
