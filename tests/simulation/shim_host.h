#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/processes.h"
#include "tests/simulation/world.h"
#include "worker/shim/shim.h"

namespace rayctl::sim {

namespace local = ::rayctl::local::v1;

// One shim's state file: what was appended, in order.
using StateFile = std::vector<local::ShimStateRecord>;
// What an agent reads from it when the shim is gone.
std::vector<local::RankStatus> RanksOf(const StateFile& file);

// Told when processes come and go, anywhere.
class ProcessWatcher {
 public:
  virtual ~ProcessWatcher() = default;
  virtual void OnSpawn(const Process& process, const local::RankStart& start) = 0;
  virtual void OnEnd(const Process& process) = 0;
  // By the number in the environment that its job set.
  virtual const Plan& PlanOf(const std::string& number) = 0;
};

// A shim process: the real shim::Shim, and the ranks that it spawns, which are scripted and die with it.
class ShimHost {
 public:
  struct Deps {
    World& world;
    Processes& processes;
    ProcessWatcher& watcher;
    const HostClock& clock;
    std::function<void(const local::ShimStateRecord&)> write_state;
    std::function<std::int64_t()> next_pid;
    std::function<void(const local::ShimToAgent&)> to_agent;  // Where an agent is connected.
    std::function<void(bool remove_state)> exited;            // It has ended of itself; the owner destroys it later.
  };
  ShimHost(Deps deps, std::size_t host, JobId job, Duration agent_grace);
  ~ShimHost();
  ShimHost(const ShimHost&) = delete;
  ShimHost& operator=(const ShimHost&) = delete;

  std::uint64_t connection() const { return connection_; }
  bool exited() const { return over_; }
  void AgentConnects(std::uint64_t connection);
  void AgentDrops(std::uint64_t connection);
  void FromAgent(std::uint64_t connection, const local::AgentToShim& message);

  // kill -9 of the shim: every rank dies in the same instant.
  void Die();
  // SIGSTOP: what comes waits, also the ends of its ranks, which go on.
  void Freeze();
  void Thaw();
  // A signal from outside, or of a rank's own making.
  void SignalRank(std::uint64_t process, int signal, bool by_fault);
  // The rank ends with this code now, and has said this last.
  void EndRank(std::uint64_t process, std::int32_t exit_code, std::int32_t signal,
               const std::string& last_output = "last line\n");
  bool Owns(std::uint64_t process) const;

 private:
  struct Child {
    std::uint64_t process = 0;
    bool running = false;
    bool ended = false;
    int signal_before_exec = 0;
  };

  void Handle(const shim::Event& event);
  void CarryOut(const shim::Effect& effect);
  void Spawn(const shim::Spawn& spawn);
  void AfterExec(const shim::RankRef& ref);
  void Later(Duration delay, std::function<void()> action);
  std::optional<shim::RankRef> RefOf(std::uint64_t process) const;
  void EndEveryRank();

  Deps deps_;
  Random random_;
  std::size_t host_;
  JobId job_;
  shim::Shim shim_;
  Alarm alarm_;
  std::map<shim::RankRef, Child> children_;
  std::uint64_t connection_ = 0;
  bool over_ = false;
  bool frozen_ = false;
  std::deque<std::function<void()>> waiting_;  // What came while it was stopped.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace rayctl::sim
