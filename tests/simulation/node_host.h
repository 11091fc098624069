#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/agent/agent.h"
#include "tests/simulation/network.h"
#include "tests/simulation/processes.h"
#include "tests/simulation/shim_host.h"
#include "tests/simulation/world.h"

namespace rayctl::sim {

struct NodeShape {
  std::int64_t cpus = 4;
  std::int64_t gpus = 0;
  std::int64_t memory_bytes = 8LL << 30;
  scheduler::Labels labels;
};

// What a machine calls its device of that index.
std::string SimulatedGpuId(std::uint32_t index);

// One machine: its agent process with the real agent::Agent, its shims, their state files, its clocks and its power.
class NodeHost final : public AgentEnd {
 public:
  struct Deps {
    World& world;
    Network& network;
    Processes& processes;
    ProcessWatcher& watcher;
    // Asks the head for this node's identity; answered later, or never.
    std::function<void(const std::string& name, NodeId known, std::function<void(NodeId)> answer)> join;
  };
  NodeHost(Deps deps, std::size_t index, NodeShape shape);

  // ---- What happens to it.
  void PowerOn();
  void PowerOff(bool says_goodbye, bool loses_state);  // A clean reboot closes its connections.
  void StartAgent();
  void KillAgent();
  void FreezeAgent();  // SIGSTOP.
  void ThawAgent();
  void StopAgent(const std::string& why);  // `rayctl stop` here.
  void KillShim(JobId job);
  void FreezeShim(JobId job);  // SIGSTOP.
  void ThawShim(JobId job);
  bool SignalRank(std::uint64_t process, int signal);
  void EndRank(std::uint64_t process, std::int32_t exit_code, const std::string& last_output);
  void SetPortTaken(double probability) { port_taken_ = probability; }

  // ---- What it is.
  NodeId id() const { return id_; }
  std::size_t index() const { return index_; }
  const NodeShape& shape() const { return shape_; }
  bool powered() const { return powered_; }
  bool agent_runs() const { return agent_ != nullptr; }
  bool agent_frozen() const { return frozen_; }
  bool registered() const { return agent_ != nullptr && agent_->machine.registered(); }
  std::optional<int> exit_code() const { return exit_code_; }  // The agent ended of itself.
  std::vector<JobId> LivingShims() const;
  bool AnyStateFile() const { return !state_files_.empty(); }
  std::vector<link::RankFacts> Ranks() const;

  // AgentEnd.
  void OnHeadConnected(StreamId stream) override;
  void OnHeadMessage(StreamId stream, link::HeadToAgent message) override;
  void OnHeadClosed(StreamId stream, absl::Status why) override;

 private:
  // The agent's end of one shim socket.
  struct ShimLink {
    std::uint64_t connection = 0;
    bool open = false;
    bool said_hello = false;
    std::vector<local::AgentToShim> waiting;  // Until it is open.
    SimTime last_up{0};
    SimTime last_down{0};
  };
  // What dies with the agent process.
  struct AgentProcess {
    AgentProcess(agent::AgentConfig config, Now now, World& world, std::function<void()> ring)
        : machine(std::move(config), now), alarm(world, std::move(ring)) {}
    agent::Agent machine;
    Alarm alarm;
    StreamId stream;
    std::map<JobId, ShimLink> links;
    std::deque<agent::Event> frozen_events;
    bool scanned = false;
  };

  void Join();
  void BeginAgent();
  void Deliver(const agent::Event& event);
  void CarryOut(const agent::Effect& effect);
  std::vector<agent::DeviceFacts> LookAtDevices() const;
  void ScheduleAlarm();
  void CheckScanned();
  void SpawnShim(JobId job, Duration agent_grace);
  void ConnectShim(JobId job);
  void SendShim(JobId job, const local::AgentToShim& message);
  void FromShim(JobId job, const local::ShimToAgent& message);
  void ShimEnded(JobId job, bool remove_state);
  void TellShimClosed(JobId job, std::uint64_t connection, const std::string& why);
  void EndAgentProcess();
  // Runs if the agent process of now still lives then.
  void LaterInAgent(Duration delay, std::function<void()> action);

  Deps deps_;
  Random random_;
  std::size_t index_;
  NodeShape shape_;
  HostClock clock_;
  NodeId id_;  // On its disk.
  bool powered_ = false;
  std::uint64_t boot_ = 0;
  std::uint64_t agent_life_ = 0;
  bool wants_agent_ = false;
  bool frozen_ = false;
  std::optional<int> exit_code_;
  double port_taken_ = 0;
  std::int64_t next_pid_ = 1000;
  std::uint64_t next_connection_ = 1;
  std::map<JobId, StateFile> state_files_;
  std::map<JobId, std::unique_ptr<ShimHost>> shims_;
  std::vector<std::unique_ptr<ShimHost>> buried_;  // Dead shims whose code may still be on the stack.
  std::unique_ptr<AgentProcess> agent_;
};

}  // namespace rayctl::sim
