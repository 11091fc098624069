#include "tests/simulation/world.h"

#include <algorithm>
#include <cstdio>

#include "fmt/format.h"

namespace rayctl::sim {
namespace {

// Far more than any burst of work at one instant.
constexpr std::uint64_t kEventsAtOneInstantMax = 200'000;
// 2026-03-01T00:00:00Z: where every wall clock would stand, were it right.
constexpr Duration kWallStart = std::chrono::seconds(1'772'323'200);

}  // namespace

void EventQueue::After(Duration delay, std::function<void()> action) {
  heap_.push_back({now_ + std::max(delay, Duration(0)), next_number_++, std::move(action)});
  std::push_heap(heap_.begin(), heap_.end(), Later);
}

bool EventQueue::RunOne(SimTime until) {
  if (heap_.empty() || heap_.front().at > until) {
    if (until > now_) {
      now_ = until;
      events_now_ = 0;
    }
    return false;
  }
  std::pop_heap(heap_.begin(), heap_.end(), Later);
  Entry entry = std::move(heap_.back());
  heap_.pop_back();
  if (entry.at > now_) {
    now_ = entry.at;
    events_now_ = 0;
  }
  ++events_;
  if (++events_now_ > kEventsAtOneInstantMax) {
    throw Violation("time stands still: a machine keeps asking for a deadline that has passed");
  }
  entry.action();
  return true;
}

void Trace::Line(SimTime at, const std::string& text) {
  const std::string line = fmt::format("{:>14.6f} {}\n", static_cast<double>(at.count() / 1000) / 1e6, text);
  for (const char c : line) {
    hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  ++lines_;
  if (print_) {
    std::fputs(line.c_str(), stdout);
  }
}

Now HostClock::Read(SimTime at) const {
  return {SteadyTime(at + steady_offset), WallTime(kWallStart + at + wall_skew)};
}

void Alarm::Set(std::optional<SimTime> at) {
  if (at == at_) {
    return;
  }
  at_ = at;
  ++*wanted_;
  if (!at) {
    return;
  }
  world_.queue.After(*at - world_.queue.now(), [this, wanted = std::weak_ptr(wanted_), mine = *wanted_] {
    const std::shared_ptr<std::uint64_t> now_wanted = wanted.lock();
    if (now_wanted == nullptr || *now_wanted != mine) {
      return;
    }
    at_.reset();
    ring_();
  });
}

}  // namespace rayctl::sim
