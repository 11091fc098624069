#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/head/head.h"
#include "tests/fakes/disk_store.h"
#include "tests/simulation/network.h"
#include "tests/simulation/world.h"

namespace rayctl::sim {

// Sees all that the head decides, as soon as it is decided.
class HeadWatcher {
 public:
  virtual ~HeadWatcher() = default;
  virtual void OnEffects(const head::Head& head, const std::vector<head::Effect>& effects) = 0;
  // They are durable, and are about to be carried out.
  virtual void OnCommitted(const std::vector<head::Effect>& effects) = 0;
  virtual void OnRestart(const head::Head& head) = 0;
};

// The head's process: the real head::Head, its loop, and its journal on a disk that takes time and forgets what a crash
// found unsynced.
class HeadHost final : public HeadEnd {
 public:
  HeadHost(World& world, Network& network, HeadWatcher& watcher);

  void Start();
  void Kill();  // kill -9, or a power cut: both lose what was not synced.
  // As Kill, in the middle of the next commit, where most can be lost; `died` is called then.
  void KillInNextCommit(std::function<void()> died) { dies_in_commit_ = std::move(died); }
  void Stall();  // The loop stands still; what comes waits.
  void Resume();
  void SlowDisk(bool slow) { slow_disk_ = slow; }

  // One call of a client or a joining node: `make` gets the call's number. No answer comes when the head dies or is not
  // there.
  void Call(const std::function<head::Event(CallId)>& make,
            std::function<void(const absl::StatusOr<head::Answer>&)> answer);
  void Deliver(head::Event event);

  const head::Head* head() const { return head_ ? &*head_ : nullptr; }
  bool running() const { return head_.has_value(); }
  bool stalled() const { return stalled_; }
  bool stopped_cluster() const { return stopped_cluster_; }
  // What a restarted head would know.
  head::Head FromJournal();

  // HeadEnd.
  bool Listening() const override { return head_.has_value(); }
  void OnStreamMessage(StreamId stream, NodeId node, link::AgentToHead message) override;
  void OnStreamClosed(StreamId stream) override;

 private:
  void RunBatch();
  void CarryOut(const std::vector<head::Effect>& effects);
  void ScheduleAlarm();
  Now ReadClock() const { return clock_.Read(world_.queue.now()); }

  World& world_;
  Network& network_;
  HeadWatcher& watcher_;
  Random random_;
  HostClock clock_;
  fakes::DiskStore store_;
  std::optional<head::Head> head_;
  std::uint64_t life_ = 0;
  bool committing_ = false;
  bool stalled_ = false;
  bool slow_disk_ = false;
  bool stopped_cluster_ = false;
  std::function<void()> dies_in_commit_;
  std::deque<head::Event> inbox_;
  Alarm alarm_;
  std::uint64_t next_call_ = 1;
  std::map<CallId, std::function<void(const absl::StatusOr<head::Answer>&)>> calls_;
};

}  // namespace rayctl::sim
