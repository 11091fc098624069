#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "tests/simulation/random.h"

namespace rayctl::sim {

// Since the simulation began.
using SimTime = Duration;

// A promise was broken. What() says which; the run that threw it replays from its seed.
class Violation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What will happen, ordered by time and then by insertion.
class EventQueue {
 public:
  SimTime now() const { return now_; }
  std::uint64_t events() const { return events_; }
  void After(Duration delay, std::function<void()> action);
  // Runs the next event unless it lies after `until`; then, or when nothing waits, the clock goes to `until` and the
  // answer is false.
  bool RunOne(SimTime until);

 private:
  struct Entry {
    SimTime at;
    std::uint64_t number;
    std::function<void()> action;
  };
  static bool Later(const Entry& a, const Entry& b) { return std::tie(a.at, a.number) > std::tie(b.at, b.number); }

  SimTime now_{0};
  std::uint64_t next_number_ = 0;
  std::uint64_t events_ = 0;
  std::uint64_t events_now_ = 0;  // At the present instant; too many mean that the machines spin.
  std::vector<Entry> heap_;
};

// Every line that a run says, as one number, and as text where asked for.
class Trace {
 public:
  explicit Trace(bool print) : print_(print) {}
  void Line(SimTime at, const std::string& text);
  std::uint64_t hash() const { return hash_; }
  std::uint64_t lines() const { return lines_; }
  bool printing() const { return print_; }

 private:
  bool print_;
  std::uint64_t hash_ = 0xcbf29ce484222325ULL;  // FNV-1a.
  std::uint64_t lines_ = 0;
};

// What everything in one simulation shares.
struct World {
  World(std::uint64_t seed, bool print) : random(seed), trace(print) {}

  EventQueue queue;
  Random random;
  Trace trace;
  std::map<std::string, std::uint64_t> counts;  // Faults by kind, and what else is worth counting.

  void Say(const std::string& text) { trace.Line(queue.now(), text); }
  void Count(const std::string& what) { ++counts[what]; }
};

// The clocks of one machine. Both differ from the simulation's: no machine knows the true time.
struct HostClock {
  Duration steady_offset{0};
  Duration wall_skew{0};

  Now Read(SimTime at) const;
  // The simulation's time at which this machine's steady clock shows `deadline`.
  SimTime ToSim(SteadyTime deadline) const { return deadline.time_since_epoch() - steady_offset; }
};

// Wakes a machine at the newest deadline that it named. Forgets everything when destroyed.
class Alarm {
 public:
  Alarm(World& world, std::function<void()> ring) : world_(world), ring_(std::move(ring)) {}
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;
  void Set(std::optional<SimTime> at);

 private:
  World& world_;
  std::function<void()> ring_;
  std::optional<SimTime> at_;
  // Shared with the queued wake-ups: they ring only while this alarm lives and still wants their number.
  std::shared_ptr<std::uint64_t> wanted_ = std::make_shared<std::uint64_t>(0);
};

}  // namespace rayctl::sim
