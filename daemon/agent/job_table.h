#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "daemon/agent/agent.h"
#include "daemon/agent/device_table.h"
#include "daemon/link/messages.h"
#include "shim.pb.h"

namespace rayctl::agent {

// The jobs of this node with their shims and ranks: what should run, what does, and what the head has not yet recorded.
// Part of Agent, which owns the link to the head; appends its effects to `out`. Agent loop only.
class JobTable {
 public:
  // Both outlive the table.
  JobTable(const AgentConfig& config, std::vector<Effect>& out) : config_(config), out_(out) {}

  // ---- What shims tell.
  void Adopt(const ShimFound& found, Now now);
  void ShimSaid(JobId id, const local::ShimToAgent& message, Now now);
  void ShimGone(const ShimClosed& closed, Now now);
  void PortAnswered(const PortChecked& answer, Now now);
  void WorkDirAnswered(const WorkDirPrepared& answer, Now now);

  // ---- What the head orders. Repeats are harmless.
  void Start(const link::StartGroup& group, Now now);
  // Every rank of `attempt` and older.
  void StopAttempts(JobId id, AttemptNumber attempt, Duration grace, const std::string& why, Now now);
  void ForgetRanks(JobId id, AttemptNumber attempt);
  void ForgetJob(JobId id);
  // Makes what runs here what a registration said should run.
  void Reconcile(const link::Registered& wanted, Now now);

  // ---- The head comes and goes.
  void SetHeadReachable(bool reachable, Now now);
  // Ends the ranks of jobs whose head_grace has passed.
  void StopAbandoned(Now now);
  std::optional<SteadyTime> NextAbandoned() const;

  // The node stops: no rank starts any more, all end, and every shim is released after its ranks.
  void Leave(Duration grace, const std::string& why, Now now);

  // ---- What is known.
  std::vector<link::RankFacts> Unrecorded() const;  // In key order.
  // Ranks whose facts changed since the last call, in the order of the changes; each at most once.
  std::vector<link::RankFacts> TakeChanged() { return std::exchange(changed_, {}); }
  bool Empty() const { return jobs_.empty(); }
  // The jobs that go on, each with the oldest attempt that may still write.
  std::map<JobId, AttemptNumber> LiveFrom() const;
  // Of every rank that has not ended.
  std::vector<DeviceTable::Lease> Leases() const;
  // What each rank held that has ended since the last call.
  std::vector<std::optional<std::vector<scheduler::DeviceShare>>> TakeReturned() {
    return std::exchange(returned_, {});
  }

 private:
  enum class ShimState {
    kNone,
    kComing,  // Spawned or found: its hello follows.
    kLiving,
    kReleased,  // It was told to go.
  };
  enum class Work {
    kNone,
    kComing,  // PrepareWorkDir was given.
    kReady,
  };
  enum class Place {
    kWaitsForWork,
    kWaitsForPort,
    kWaitsForShim,
    kInShim,
  };
  struct RankState {
    link::RankFacts facts;
    Place place = Place::kInShim;
    std::optional<std::vector<scheduler::DeviceShare>> devices;  // nullopt: found running; the head has not said yet.
    local::RankStart start;                                      // Until it has gone to the shim.
    bool recorded = false;                                       // The head has its end: nothing more to tell.

    bool Ended() const { return facts.state == WorkerState::kExited; }
  };
  struct ShimEvent {
    std::uint64_t sequence = 0;
    AttemptNumber attempt = 0;
  };
  struct PortWish {
    std::uint32_t port = 0;
    bool checked = false;  // By CheckPort, because rank 0 is here.
  };
  using RankIndex = std::pair<AttemptNumber, Rank>;
  struct Job {
    ShimState shim = ShimState::kNone;
    bool has_leftovers = false;  // Socket and state file of a dead shim.
    bool forgotten = false;      // The head wants no more of it: its shim goes after its ranks.
    bool abandoned = false;      // Stopped because of head_grace.
    AttemptNumber newest = 0;
    Work work = Work::kNone;                      // Of the folder that ranks start in, where the job has one.
    std::map<AttemptNumber, PortWish> port_wish;  // Of attempts that wait for it.
    std::map<RankIndex, RankState> ranks;
    std::uint64_t sent = 0;               // Sequence of the last message to the shim.
    std::uint64_t event_seen = 0;         // Highest sequence of its events.
    std::vector<ShimEvent> unacked;       // In order.
    std::optional<Duration> agent_grace;  // Not known for an adopted shim until the head names the job.
    Duration head_grace{0};
    Duration grace_period{0};
  };

  void TakeHello(JobId id, Job& job, const local::ShimHello& hello, Now now);
  void TakeStatus(JobId id, Job& job, const local::RankStatus& status);
  void AskForPort(JobId id, AttemptNumber attempt, const PortWish& wish, Now now);
  RankState& FindOrAddRank(JobId id, Job& job, RankIndex index);
  void MarkRunning(RankState& rank, std::int64_t pid);
  void End(RankState& rank, link::RankEnd end, std::uint64_t log_bytes);
  void EndUnstarted(RankState& rank, Now now);
  void Stop(JobId id, Job& job, AttemptNumber attempt, const std::vector<Rank>& ranks, Duration grace,
            const std::string& why, Now now);
  void StopAll(JobId id, Job& job, Duration grace, const std::string& why, Now now);
  void SpawnOrSend(JobId id, Job& job);
  void SendWaiting(JobId id, Job& job);
  void SendHello(JobId id, Job& job);
  void SendReachable(JobId id, Job& job);
  void Acknowledge(JobId id, Job& job, std::size_t count);
  void Send(JobId id, Job& job, AttemptNumber attempt, local::AgentToShim message);
  // Releases or removes the shim of a job that is over. May erase the job.
  void Settle(JobId id);
  void Changed(const RankState& rank);
  std::vector<JobId> Ids() const;

  const AgentConfig& config_;
  std::vector<Effect>& out_;
  std::map<JobId, Job> jobs_;
  std::vector<std::optional<std::vector<scheduler::DeviceShare>>> returned_;
  std::vector<link::RankFacts> changed_;  // At most one a rank.
  bool head_reachable_ = false;
  std::optional<SteadyTime> head_lost_at_;
  bool leaving_ = false;
  Duration leave_grace_{0};
  std::string leave_why_;
};

}  // namespace rayctl::agent
