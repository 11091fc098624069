#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/clock.h"

namespace rayctl::head {

enum class TimerKind : std::uint8_t { kNode, kJobTimeout, kNodeLostGrace, kStopBound };

struct TimerKey {
  TimerKind kind = TimerKind::kNode;
  std::uint64_t id = 0;
  friend auto operator<=>(const TimerKey&, const TimerKey&) = default;
};

// Deadlines, one a key, earliest first and in key order where they are equal.
class Timers {
 public:
  void Set(TimerKey key, SteadyTime at) {
    const auto [it, added] = at_.try_emplace(key, at);
    if (!added) {
      if (it->second == at) {
        return;
      }
      order_.erase({it->second, key});
      it->second = at;
    }
    order_.insert({at, key});
  }
  void Clear(TimerKey key) {
    if (const auto it = at_.find(key); it != at_.end()) {
      order_.erase({it->second, key});
      at_.erase(it);
    }
  }
  std::optional<SteadyTime> Next() const {
    return order_.empty() ? std::nullopt : std::optional(order_.begin()->first);
  }
  // Takes the first timer that is due; nullopt: none is.
  std::optional<TimerKey> TakeDue(SteadyTime now) {
    if (order_.empty() || order_.begin()->first > now) {
      return std::nullopt;
    }
    const TimerKey key = order_.begin()->second;
    Clear(key);
    return key;
  }

 private:
  std::map<TimerKey, SteadyTime> at_;
  std::set<std::pair<SteadyTime, TimerKey>> order_;
};

}  // namespace rayctl::head
