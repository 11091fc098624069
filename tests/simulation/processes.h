#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "tests/simulation/world.h"

namespace rayctl::sim {

// What one rank does, as its job's plan says.
struct Script {
  Duration runs{0};    // Then it ends as below. 0 with `hangs`: for ever.
  bool hangs = false;  // Never ends of itself.
  std::int32_t exit_code = 0;
  std::int32_t signal = 0;  // It kills itself with this instead.
  bool ignores_term = false;
  Duration kill_takes{0};          // It waits for a disk or a device that answers so long after a SIGKILL.
  bool cannot_exec = false;        // 127.
  bool leaves_with_peers = false;  // As torch does: it exits 1 soon after another rank of its gang has died badly.
};

// Which script a rank of an attempt follows.
struct Plan {
  Script usual;
  std::map<Rank, Script> of_rank;              // In every attempt that `failing_attempts` covers.
  AttemptNumber failing_attempts = 1'000'000;  // From this one on every rank follows `usual`.

  const Script& Of(AttemptNumber attempt, Rank rank) const {
    const auto found = of_rank.find(rank);
    return found != of_rank.end() && attempt < failing_attempts ? found->second : usual;
  }
};

// What a rank is told of its devices, before their ids.
inline constexpr std::string_view kDevicesVariable = "CUDA_VISIBLE_DEVICES=";

// One process that was ever asked for, as an all-seeing observer knows it.
struct Process {
  std::uint64_t number = 0;
  std::size_t host = 0;
  JobId job;
  AttemptNumber attempt = 0;
  Rank rank = 0;
  std::int64_t pid = 0;
  std::vector<std::string> devices;  // Ids of those that it opened: all that it was told of.
  bool alive = true;
  bool ran = false;  // It exec'd.
  std::int32_t exit_code = 0;
  std::int32_t signal = 0;
  bool by_fault = false;  // Killed from outside: by a fault, with its shim or with its node.
  bool stale = false;     // A newer attempt was placed while it lived on a node that counted as dead.
  Script script;
  SimTime began{0};
  SimTime ended{0};
};

// Every process of the cluster, living and dead, in the order of their starts.
class Processes {
 public:
  Process& Add(Process process) {
    process.number = all_.size();
    all_.push_back(std::move(process));
    Process& added = all_.back();
    living_[added.number] = true;
    return added;
  }
  Process& Get(std::uint64_t number) { return all_[number]; }
  void End(std::uint64_t number, std::int32_t exit_code, std::int32_t signal, SimTime at) {
    Process& process = all_[number];
    process.alive = false;
    process.exit_code = exit_code;
    process.signal = signal;
    process.ended = at;
    living_.erase(number);
  }
  std::vector<std::uint64_t> Living() const {
    std::vector<std::uint64_t> numbers;
    for (const auto& [number, alive] : living_) {
      numbers.push_back(number);
    }
    return numbers;
  }
  const std::deque<Process>& all() const { return all_; }

  // ---- Devices that stay held after their process has ended: by what it left behind, or by a driver that tidies up.
  struct Leftover {
    std::size_t host = 0;
    std::vector<std::string> devices;
    SimTime until{0};
  };
  void Leave(Leftover leftover) { leftovers_.push_back(std::move(leftover)); }
  void ClearLeftovers(std::size_t host) {
    std::erase_if(leftovers_, [host](const Leftover& leftover) { return leftover.host == host; });
  }
  // Those of now.
  const std::vector<Leftover>& Leftovers(SimTime now) {
    std::erase_if(leftovers_, [now](const Leftover& leftover) { return leftover.until <= now; });
    return leftovers_;
  }
  // Newest first; nullptr: never asked for.
  const Process* Find(JobId job, AttemptNumber attempt, Rank rank) const {
    for (auto it = all_.rbegin(); it != all_.rend(); ++it) {
      if (it->job == job && it->attempt == attempt && it->rank == rank) {
        return &*it;
      }
    }
    return nullptr;
  }

 private:
  std::deque<Process> all_;
  std::map<std::uint64_t, bool> living_;
  std::vector<Leftover> leftovers_;
};

}  // namespace rayctl::sim
