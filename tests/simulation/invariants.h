#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/head/head.h"
#include "tests/simulation/head_host.h"
#include "tests/simulation/node_host.h"
#include "tests/simulation/processes.h"
#include "tests/simulation/shim_host.h"

namespace rayctl::sim {

// The promises, checked against what really runs, after everything that happens. Throws Violation.
//
// - The head's ledger is the sum of its leases (head::Head::CheckInvariants), after every event.
// - What a client was told, a restarted head still knows: jobs, cancels, ends.
// - A job's state moves along its edges only, and an end is an end.
// - A rank is spawned only where the head placed it; what runs on a node never needs more than the node has, and the
//   shares of a device never sum to more than one: on the node itself, whatever the head believes. Every living process
//   counts, also one that nobody wants any more and that takes its time to die. A rank sees the devices lent to it
//   alone.
// - A rank is given up while its process lives only where its node counts as dead. The next attempt is placed only when
//   no process of an older one lives, but for those on nodes that count as dead, or did when they were given up: such
//   a node may be back, and is killing them. A job has ended only when the same holds of all its processes.
// - A job runs only when every rank of its attempt has been started.
// - What the head says of an end is what happened: exit codes, signals, success.
class Invariants final : public HeadWatcher {
 public:
  Invariants(Processes& processes, const std::vector<std::unique_ptr<NodeHost>>& hosts)
      : processes_(processes), hosts_(hosts) {}

  // HeadWatcher.
  void OnEffects(const head::Head& head, const std::vector<head::Effect>& effects) override;
  void OnCommitted(const std::vector<head::Effect>& effects) override;
  void OnRestart(const head::Head& head) override;

  void OnSpawn(const Process& process, const local::RankStart& start);
  void OnSubmitted(JobId job, const std::string& request_id, const JobSpec& spec);
  void OnCancelWanted(JobId job) { cancel_wanted_.insert(job); }
  void OnCancelled(JobId job, JobState state);
  void OnStopCluster() { cluster_stops_ = true; }

  // "" when all that was begun has come to its end and nothing is left over; else what is not.
  std::string Unsettled(const head::Head& head) const;
  const std::set<JobId>& submitted() const { return submitted_ids_; }

 private:
  struct Known {
    JobState state = JobState::kQueued;
    AttemptNumber attempt = 0;
    bool attempt_ended = false;
    bool placed = false;
  };
  struct Assignment {
    std::vector<head::RankRecord> ranks;
    Resources want;
  };
  struct Submitted {
    std::string request_id;
    JobSpec spec;
  };

  void CheckJob(const head::Head& head, const head::JobRecord& job);
  void CheckGivenUp(const head::Head& head, const head::JobRecord& job);
  void CheckNoneLives(const head::Head& head, const head::JobRecord& job, const std::string& when);
  void CheckRunning(const head::JobRecord& job) const;
  void CheckEnd(const head::JobRecord& job) const;
  void CheckDevices(const Process& process, const local::RankStart& start) const;
  void CheckNotHeld(const Process& process, SimTime now) const;
  void CheckRoom(std::size_t host) const;
  const Process* ProcessOf(const head::JobRecord& job, Rank rank) const;

  Processes& processes_;
  const std::vector<std::unique_ptr<NodeHost>>& hosts_;
  std::map<JobId, Known> known_;
  std::map<std::pair<JobId, AttemptNumber>, Assignment> assignments_;
  std::set<link::RankKey> given_up_;  // While their nodes counted as dead.
  std::map<JobId, Submitted> acknowledged_;
  std::set<JobId> submitted_ids_;
  std::set<JobId> cancel_wanted_;
  std::set<JobId> cancel_acknowledged_;
  std::map<JobId, std::pair<JobState, Reason>> ends_told_;
  bool cluster_stops_ = false;
};

}  // namespace rayctl::sim
