#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/shim/shim.h"

// The inside of shim::Shim, shared by its source files: shim.cc has the agent's side and the lives of the ranks,
// shim_reports.cc the rank socket and its reports, shim_exchange.cc what ranks say to each other and of their failure.
namespace rayctl::shim {

inline constexpr std::uint32_t kProtocol = 1;
inline constexpr std::size_t kMetricsBytesMax = 1 << 20;
inline constexpr std::size_t kBroadcastBytesMax = 1 << 20;
inline constexpr std::size_t kBroadcastsKept = 64;
inline constexpr std::size_t kDecisionsKept = 64;

// A span that a message asks for, no longer than a clock can count on from now.
inline constexpr std::uint64_t kSpanMillisMax = 10ULL * 365 * 24 * 60 * 60 * 1000;
inline Duration SpanOf(std::uint64_t millis) {
  return std::chrono::milliseconds(millis < kSpanMillisMax ? millis : kSpanMillisMax);
}

struct SpooledReport {
  std::uint64_t number = 0;
  std::uint64_t bytes = 0;
  bool has_checkpoint = false;
};

struct RankState {
  RankRef home;     // What the loop calls it: the attempt in which the process was started.
  RankRef current;  // What the agent calls it: a survivor that rejoined lives in a later attempt.
  local::RankPhase phase = local::RANK_PHASE_STARTING;
  std::int64_t pid = 0;
  std::uint64_t start_ticks = 0;
  local::RankExited exit;
  local::RankContext context;

  bool stop_requested = false;
  int last_signal = 0;                // Sent, or to be sent as soon as it has been spawned.
  std::optional<SteadyTime> kill_at;  // SIGKILL is due, or due again.

  bool connected = false;
  std::string sdk;
  bool can_rejoin = false;
  bool failed = false;
  bool peer_lost = false;
  std::uint64_t reply_sequence = 0;

  std::uint64_t last_passed = 0;   // Let through the gate: spooled, or being copied.
  std::uint64_t last_spooled = 0;  // Safe here.
  bool last_had_checkpoint = false;
  std::optional<local::RankReport> waiting;  // Before the gate.
  std::optional<local::RankReport> copying;  // Through the gate, its checkpoint not safe yet.
  std::uint32_t stale_copies = 0;            // Answers to copies of an attempt that it has left.
  std::optional<std::uint64_t> owed;         // Spooled, its answer waits for the boundary's go or the trial's decision.
  std::deque<SpooledReport> spool;           // Not yet part of a boundary that the head has recorded.
  std::uint64_t spool_bytes = 0;
  std::uint32_t spool_checkpoints = 0;

  std::uint64_t barrier_entered = 0;    // 0: in none.
  std::uint64_t broadcast_waiting = 0;  // 0: for none.
  std::uint64_t broadcast_taken = 0;
  std::optional<local::RankBroadcast> broadcast_given;
  std::optional<local::NextAttempt> offer;

  bool alive() const { return phase != local::RANK_PHASE_EXITED; }
};

// What the ranks of one attempt of one group share.
struct AttemptState {
  std::uint64_t complete = 0;  // Boundaries up to this are recorded.
  std::uint64_t hold = 0;      // 0: none asked for yet.
  bool holding = false;
  std::uint64_t boundary = 0;  // 0: not yet named.
  bool passed = false;
  std::uint64_t barrier_released = 0;
  std::map<std::uint64_t, std::string> broadcasts;
  std::map<std::uint64_t, local::TrialDecision> decisions;
};

class Shim::Impl {
 public:
  Impl(ShimConfig config, Now now) : config_(std::move(config)), agent_gone_since_(now.steady) {}

  std::vector<Effect> On(const Event& event, Now now);
  std::optional<SteadyTime> NextDeadline() const;
  bool AnyRankAlive() const;

 private:
  using AttemptKey = std::pair<std::uint32_t, AttemptNumber>;

  // shim.cc
  void Handle(const AgentConnected& event);
  void Handle(const AgentClosed& event);
  void Handle(const AgentSaid& event);
  void Handle(const Spawned& event);
  void Handle(const SpawnFailed& event);
  void Handle(const Exited& event);
  void Handle(const Tick& event);
  void Hello(const local::AgentHello& hello);
  void Start(const local::RankId& id, const local::StartRanks& start);
  void Stop(const local::RankId& id, const local::StopRanks& stop);
  void Release();
  void Signal(RankState& rank, int signal);
  void Ended(RankState& rank, local::RankExited exit);
  void CheckDeadlines();
  void ExitIfDone();
  void RefuseAgent(const local::RankId& id, local::RefusalCode code, std::string why);
  // Numbers an event, keeps it until it is acknowledged, and writes it down before anybody hears of it.
  void Emit(const RankState& rank, local::ShimToAgent message);
  void Say(const RankState& rank, local::ShimToAgent message);  // Not numbered, not kept.
  void Acknowledge(std::uint64_t sequence);

  // shim_reports.cc
  void Handle(const RankSaid& event);
  void Handle(const RankSocketClosed& event);
  void Handle(const CheckpointCopied& event);
  void RankHello(RankState* rank, const RankSaid& event);
  void Rejoined(RankState& rank, const local::RankId& id);
  void Report(RankState& rank, const local::RankReport& report);
  bool GateOpen(const RankState& rank, const local::RankReport& report) const;
  void TryPass(RankState& rank);
  void Spool(RankState& rank, const local::RankReport& report, const CheckpointCopied* copy);
  bool MayAnswer(const RankState& rank, std::uint64_t number) const;
  void Answer(RankState& rank, std::uint64_t number);
  void TryAll(std::uint32_t group, AttemptNumber attempt);
  void TryEverybody();
  void Hold(const local::RankId& id, const local::HoldReports& hold);
  void Boundary(const local::RankId& id, const local::BoundaryAt& boundary);
  void Pass(const local::RankId& id, const local::PassBoundary& pass);
  void Cancel(const local::RankId& id, const local::CancelBoundary& cancel);
  void Complete(const local::RankId& id, const local::ReportsComplete& complete);
  void Decide(const local::RankId& id, const local::DecideTrial& decide);
  void SayHeld(const RankState& rank);
  void SayReached(const RankState& rank);
  void RepeatUnnumbered();  // After a hello: what a new agent must know and no event repeats.
  void Reply(RankState& rank, local::ShimReply reply);
  void Refuse(const RankRef& home, const local::RankId& id, local::RefusalCode code, const std::string& why);
  void Notice(RankState& rank, const local::RankNotice& notice);

  // shim_exchange.cc
  void Barrier(RankState& rank, const local::RankBarrier& barrier);
  void Broadcast(RankState& rank, const local::RankBroadcast& broadcast);
  void Failure(RankState& rank, const local::RankFailure& failure);
  void Notify(const local::RankId& id, const local::NotifyRanks& notify);
  void ReleaseBarrier(const local::RankId& id, const local::ReleaseBarrier& release);
  void Deliver(const local::RankId& id, const local::DeliverBroadcast& deliver);
  void ForgetBroadcasts(const AttemptKey& key);

  RankState* FindHome(const RankRef& home);
  RankState* FindCurrent(const RankRef& current);
  std::vector<RankState*> LiveRanks(std::uint32_t group, AttemptNumber attempt);
  AttemptState& AttemptOf(const RankState& rank) { return attempts_[{rank.current.group, rank.current.attempt}]; }
  const AttemptState& AttemptOf(const RankState& rank) const {
    return attempts_.at({rank.current.group, rank.current.attempt});
  }
  AttemptNumber Latest(std::uint32_t group) const;
  std::int64_t WallNanos() const { return now_.wall.time_since_epoch().count(); }

  ShimConfig config_;
  Now now_{};
  std::vector<Effect> effects_;
  std::map<RankRef, RankState> ranks_;  // By home.
  std::map<AttemptKey, AttemptState> attempts_;
  std::map<std::uint32_t, AttemptNumber> latest_;
  std::deque<local::ShimToAgent> unacknowledged_;
  std::uint64_t last_sequence_ = 0;
  bool agent_ready_ = false;  // It has said hello on this connection: before that it is told nothing.
  bool head_reachable_ = false;
  std::optional<SteadyTime> agent_gone_since_;
  bool ending_ = false;  // agent_grace is over: everything is killed, then Exit.
  bool exited_ = false;
};

}  // namespace rayctl::shim
