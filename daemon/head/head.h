#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "daemon/head/events.h"
#include "daemon/head/records.h"

namespace rayctl::head {

struct HeadConfig {
  std::string version = "0.1.0";
  Duration heartbeat_interval = std::chrono::seconds(2);
  std::uint32_t many_nodes = 500;  // Above this, every 4 s and suspect after 10 s.
  std::size_t queued_jobs_max = 1'000'000;
  std::size_t finished_jobs_max = 100'000;  // The oldest go first.
};

// The head's decisions. Sends nothing, sets no timer, writes nothing: the daemon delivers events and carries out the
// returned effects in order, journal first. Late and repeated events are harmless. Head loop only.
class Head {
 public:
  // `records`: everything the journal holds; empty for a new cluster, whose id is then `new_cluster_id`.
  Head(HeadConfig config, std::vector<Record> records, std::string new_cluster_id, Now now);
  ~Head();
  Head(Head&&) noexcept;
  Head& operator=(Head&&) noexcept;

  std::vector<Effect> On(const Event& event, Now now);

  // When On(Tick) is wanted next; nullopt: nothing waits.
  std::optional<SteadyTime> NextDeadline() const;

  // While the journal cannot be written: the jobs that it holds, which is what the readers below show then instead of
  // what follows from events that are not recorded yet. nullopt: all is recorded.
  void ShowRecorded(std::optional<std::map<JobId, JobRecord>> jobs);

  // ---- What is known, for reading calls. References are good until the next On() or ShowRecorded().
  const ClusterRecord& cluster() const;
  const JobRecord* FindJob(JobId id) const;
  const JobRecord* FindJobByName(std::string_view name) const;  // The newest.
  const std::map<JobId, JobRecord>& jobs() const;
  struct NodeStatus {
    NodeRecord record;
    NodeState state = NodeState::kDead;  // The first that holds of dead, suspect, draining, alive.
    Resources used;
    std::vector<Amount> gpu_used;
    WallTime last_seen{};
    bool connected = false;
    std::vector<std::string> remarks;             // As it registered.
    std::vector<link::Device> devices;            // As it last told; empty before it registered with this head.
    std::vector<std::vector<JobId>> device_jobs;  // Who holds a share of device i, in id order.
  };
  std::vector<NodeStatus> Nodes() const;  // In id order.
  std::string NodeName(NodeId id) const;
  const std::map<TokenId, TokenRecord>& tokens() const;
  // Why a waiting job waits, as placement said when it last tried; "" when it does not wait.
  std::string WaitingReason(JobId id) const;

  // Aborts with a sentence when the ledger and the leases differ, a device is lent twice, or a gang is half placed.
  // For tests and simulation: costs time in the size of the state.
  void CheckInvariants() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
  std::optional<std::map<JobId, JobRecord>> recorded_;
};

}  // namespace rayctl::head
