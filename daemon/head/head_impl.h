#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/head/head.h"
#include "daemon/head/ledger.h"
#include "daemon/head/timers.h"

namespace rayctl::head {

// The machine behind Head, one file a role: submission.cc (jobs come in and are ended by wish), attempts.cc (what ranks
// do and what follows), line.cc (who is placed next), registration.cc (what an agent says), node_rules.cc (alive,
// suspect, dead), tokens.cc, reading.cc (what is known, and the invariants), head.cc (one event from start to effects).
class Head::Impl {
 public:
  Impl(HeadConfig config, std::vector<Record> records, std::string new_cluster_id, Now now);

  std::vector<Effect> On(const Event& event, Now now);
  std::optional<SteadyTime> NextDeadline() const { return timers_.Next(); }

  const ClusterRecord& cluster() const { return cluster_; }
  const std::map<JobId, JobRecord>& jobs() const { return jobs_; }
  const std::map<TokenId, TokenRecord>& tokens() const { return tokens_; }
  const JobRecord* FindJobByName(std::string_view name) const;
  std::vector<NodeStatus> Nodes() const;
  std::string NodeName(NodeId id) const;
  std::string WaitingReason(JobId id) const;
  void CheckInvariants() const;

 private:
  // How the newest stream of a node stands. After the head's own start nobody knows how it ended: as if by the agent,
  // which is the longer wait.
  enum class StreamState { kOpen, kEndedByAgent, kEndedByHead };

  struct NodeRuntime {
    StreamId stream;  // 0: none.
    StreamId newest_stream;
    StreamState stream_state = StreamState::kEndedByAgent;
    SteadyTime stream_ended_at{};
    bool suspect = false;
    std::string suspect_why;
    SteadyTime last_sign{};
    WallTime last_seen{};
    Duration heartbeat_interval{0};
    std::vector<std::string> remarks;
    std::vector<link::Device> devices;
    std::map<JobId, std::uint32_t> leases;  // How many ranks of each job hold one here.
    std::map<std::uint32_t, JobId> ports;   // MASTER_PORTs of living attempts whose rank 0 is here.
    std::set<link::RankKey> stale;          // Ran on although nothing of theirs is current: no work until they ended.
  };

  struct Stream {
    NodeId node;
    Incarnation incarnation = 0;
    link::SequenceCheck incoming;
    std::uint64_t last_sent = 0;
  };

  // Jobs that ask for the same: when one cannot be placed, none can.
  struct DemandKey {
    std::uint32_t num_workers = 0;
    PlacementStrategy strategy = PlacementStrategy::kPack;
    std::map<std::string, Amount, std::less<>> want;
    scheduler::Labels labels;
    friend auto operator<=>(const DemandKey&, const DemandKey&) = default;
  };
  enum class Verdict { kUntried, kWaiting, kInfeasible };
  using LinePlace = std::pair<std::int64_t, JobId>;  // Negated priority first.
  struct Demand {
    scheduler::PlacementGroup group;
    std::set<LinePlace> waiting;
    Verdict verdict = Verdict::kUntried;
    std::string reason;
    std::uint64_t tried_at = 0;  // The ledger's generation.
  };

  // Ranks of a living attempt by what is known of them.
  struct Tally {
    std::uint32_t starting = 0;
    std::uint32_t running = 0;
    std::uint32_t clean = 0;
    std::uint32_t unclean = 0;
    std::uint32_t leases() const { return starting + running; }
    std::uint64_t ends() const { return clean + unclean; }
  };

  // head.cc
  void Load(std::vector<Record> records, std::string new_cluster_id);
  void RebuildJobs();
  void Handle(const AgentMessage& message);
  void Handle(const AgentClosed& closed);
  void Handle(const RelayOutput& relay);
  void Handle(const Tick& tick);
  void RunTimers();
  std::vector<Effect> TakeEffects();
  void Touch(JobId id);  // Journal it and tell watchers.
  void SendTo(NodeId node, decltype(link::HeadToAgent::body) body);
  void Fail(CallId call, absl::Status why) { out_.push_back(Reply{call, std::move(why)}); }
  void Answered(CallId call, Answer answer) { out_.push_back(Reply{call, std::move(answer)}); }

  // submission.cc
  void Handle(const SubmitJob& submit);
  void Handle(const CancelJob& cancel);
  void Handle(const WithdrawJob& withdraw);
  void Handle(const StopCluster& stop);
  absl::Status CheckSpec(const JobSpec& spec) const;
  void AnswerRepeat(const SubmitJob& submit, const JobRecord& job);
  void SetState(JobRecord& job, JobState state);
  // Ends the job by wish: at once when it holds nothing, else by STOPPING.
  void StopJob(JobRecord& job, JobState state, Reason reason, const std::string& message);
  void Finish(JobRecord& job, JobState state, Reason reason, std::int32_t exit_code);
  void EvictFinished();
  void Drop(std::map<JobId, JobRecord>::iterator job);
  void AdvanceStop();

  // attempts.cc
  // Takes in what an agent says of a rank; the job to evaluate afterwards, if any.
  std::optional<JobId> ApplyFacts(NodeId node, const link::RankFacts& facts);
  void SetRank(JobRecord& job, Rank rank, WorkerState state, link::RankEnd end);
  void Lose(JobRecord& job, Rank rank, const std::string& why, bool stop_requested);
  void LoseRanksOn(JobRecord& job, NodeId node, const std::string& why, bool stop_requested);
  void LoseRanksOnDeadNodes(JobRecord& job, bool stop_requested);
  void Evaluate(JobId id);
  void EndByFailure(JobRecord& job);
  void EndFree(JobRecord& job, const std::string& message);
  void StopRanks(const JobRecord& job, const std::string& why);
  void Settle(JobRecord& job);
  bool HasFailuresLeft(const JobRecord& job) const;
  void Discard(NodeId node, const link::RankKey& key, bool alive);
  std::optional<AttemptNumber> LastSettled(const JobRecord& job) const;
  void Forget(NodeId node, JobId id, std::optional<AttemptNumber> attempt);
  bool RunsOn(const JobRecord& job, NodeId node) const;  // Its current attempt has a rank there, and it is not final.
  std::vector<NodeId> NodesOf(const AttemptRecord& attempt) const;  // In order of node rank.

  // line.cc
  static DemandKey DemandOf(const JobSpec& spec);
  static scheduler::PlacementGroup GroupOf(const JobSpec& spec);
  void Enqueue(JobRecord& job);
  void LeaveLine(JobId id);
  bool InLine(JobId id) const { return in_line_.contains(id); }
  void PlaceLine();
  void SetVerdict(Demand& demand, Verdict verdict, std::string reason);
  void ShowVerdict(JobRecord& job, const Demand& demand);
  bool HasRoomToMove(const JobRecord& job) const;
  void StartAttempt(JobRecord& job, const scheduler::Placed& placed);
  std::uint32_t ChoosePort(NodeId node, JobId job);
  void FreePort(const JobRecord& job);
  link::StartGroup MakeStartGroup(const JobRecord& job, NodeId node) const;

  // registration.cc
  void Handle(const JoinNode& join);
  void OnRegister(StreamId stream, NodeId node, const link::Register& message);
  std::optional<absl::Status> RefuseRegister(StreamId stream, NodeId node, const AgentMessage& message) const;
  void OnDevicesChanged(NodeId node, const link::DevicesChanged& changed);
  void SetDevices(NodeId node, const std::vector<link::Device>& devices);
  void OnGoodbye(NodeId node, const std::string& why);
  void CloseStreamOf(NodeId node, absl::Status why);
  bool GaveUpItsName(const NodeRecord& node) const;
  std::string UniqueNodeName(const std::string& wanted, NodeId self) const;
  void KeepOrChangeName(NodeRecord& node);

  // node_rules.cc
  NodeState StateOf(NodeId node) const;
  void OnSign(NodeId node);
  void MarkSuspect(NodeId node, const std::string& why);
  void MarkAlive(NodeId node);
  void MarkDead(NodeId node, const std::string& why);
  void OnNodeTimer(NodeId node);
  void Reschedule(NodeId node);
  struct Death {
    SteadyTime at;
    std::string why;
  };
  Death WhenDead(NodeId node) const;
  bool PeersLost(NodeId node) const;
  Duration SuspectAfter(const NodeRuntime& runtime) const;
  void RestartCounts();
  void RefreshPresence(NodeId node);
  void BeginMoving(JobRecord& job);
  void StopMoving(JobId id);
  void ReturnFromMoving(NodeId node);

  // tokens.cc
  void Handle(const CreateToken& create);
  void Handle(const RevokeToken& revoke);
  TokenRecord* FindLivingToken(std::string_view name);

  HeadConfig config_;
  ClusterRecord cluster_;
  std::map<JobId, JobRecord> jobs_;
  std::map<NodeId, NodeRecord> nodes_;
  std::map<TokenId, TokenRecord> tokens_;

  // Derived from the records.
  std::map<std::string, JobId> by_request_;
  std::map<std::string, std::set<JobId>, std::less<>> by_name_;
  std::map<std::string, TokenId, std::less<>> newest_token_by_name_;  // Only the newest of a name can be living.
  std::deque<JobId> finished_;                                        // In the order of their ends.
  std::size_t queued_ = 0;
  std::map<JobId, Tally> tallies_;  // Of jobs that have an attempt and are not final.
  Ledger ledger_;

  std::map<NodeId, NodeRuntime> runtimes_;
  std::map<StreamId, Stream> streams_;
  std::map<DemandKey, Demand> demands_;
  std::map<JobId, Demand*> in_line_;
  std::map<JobId, std::uint64_t> moving_;  // A node of theirs is dead; the generation at which a move was last tried.
  Timers timers_;

  bool stopping_ = false;  // StopCluster came.
  bool stop_bound_passed_ = false;
  bool stopped_ = false;  // The agents were told to leave.
  std::string stop_why_;

  // Of the event at hand.
  Now now_;
  std::vector<Effect> out_;
  bool cluster_touched_ = false;
  std::set<JobId> touched_jobs_;
  std::set<NodeId> touched_nodes_;
  std::set<TokenId> touched_tokens_;
  std::vector<RecordKey> erased_;
};

}  // namespace rayctl::head
