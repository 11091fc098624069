#pragma once

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "daemon/rpc/head_loop.h"
#include "rayctl/v1/agent.pb.h"
#include "rayctl/v1/job.pb.h"

// Output of ranks on its way from agents to whoever follows a job. Nothing here blocks or copies without bound: an
// agent's next message is read only when the client's connection has taken the one before. Head loop only.
namespace rayctl::rpc {

// An agent that was asked for output calls within this, or is asked again: the call, or what asked for it, was lost
// although its stream stays up.
inline constexpr Duration kTransferPatience = std::chrono::seconds(5);
// So often an agent is asked before a reader is told that it does not answer. Who follows waits on, who only wants what
// there is goes on without.
inline constexpr std::uint32_t kTransferTriesMax = 3;

// One SendOutput call of an agent.
class OutputSource {
 public:
  virtual ~OutputSource() = default;
  virtual void Next() = 0;                           // Read one more message.
  virtual void End(const absl::Status& status) = 0;  // Answer the call; nothing more is read.
};

// One FollowJob call of a client. `response` must live until the session is told Written.
class FollowSink {
 public:
  virtual ~FollowSink() = default;
  virtual void Write(const ::rayctl::v1::FollowJobResponse& response) = 0;
  virtual void Finish(const absl::Status& status) = 0;
};

struct FollowOptions {
  JobId job;
  std::vector<Rank> ranks;  // Empty = all.
  bool follow = false;
  bool no_output = false;
  std::optional<AttemptNumber> attempt;
  std::optional<WallTime> since;
  std::string grep;                   // RE2; empty: every line.
  std::set<NodeId> nodes;             // Empty: all.
  std::vector<OutputStream> streams;  // Empty: both.
  using Key = std::tuple<AttemptNumber, Rank, OutputStream>;
  std::map<Key, std::uint64_t> resume;  // Where the client goes on that has read before.

  bool WantsRank(Rank rank) const {
    return ranks.empty() || std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  }
  bool WantsNode(NodeId node) const { return nodes.empty() || nodes.contains(node); }
};

class OutputRelay;

class FollowSession : public std::enable_shared_from_this<FollowSession> {
 public:
  FollowSession(OutputRelay& relay, FollowOptions options, FollowSink& sink);

  void Start();
  // The sink's last write is done; not ok: the client has gone.
  void Written(bool ok);
  void Cancelled() { End(absl::CancelledError("the client went away")); }

 private:
  friend class OutputRelay;

  struct Outgoing {
    ::rayctl::v1::FollowJobResponse response;
    std::shared_ptr<OutputSource> source;  // Reads on when this is written.
  };
  struct Transfer {
    NodeId node;
    AttemptNumber attempt = 0;
    std::vector<Rank> ranks;
    bool follow = false;
    std::shared_ptr<OutputSource> source;  // Null until the agent calls.
    std::uint32_t tries = 1;               // Since it last carried something.
    std::optional<SteadyTime> due;         // Until the agent calls: when to ask again. Of those away: the same.
    std::set<Rank> without_log;            // Of the ranks: the node keeps none of theirs.
    std::optional<Outgoing> held;          // Waits for its turn: see ReleaseHeld.
  };
  // What was asked for of one attempt, until all of it has come.
  struct Asked {
    std::set<Rank> wanted;
    std::set<Rank> found;  // Some node keeps a log of theirs.
    bool missed = false;   // A node could not be asked, so nothing is known to be gone.
  };

  // From the relay.
  void Attach(TransferId id, std::shared_ptr<OutputSource> source);
  void OnData(TransferId id, ::rayctl::v1::SendOutputRequest message);
  void OnSourceEnd(TransferId id, bool complete);
  void OnNodeBack(NodeId node);
  void OnNodeGone(NodeId node);

  void OnJobChanged();
  void OpenAttempts(const head::JobRecord& job);
  void OpenCurrentAttempt(const head::JobRecord& job);
  void OpenOlderAttempt(const head::JobRecord& job, AttemptNumber attempt);
  void Open(Transfer transfer);
  void AskAgain(Transfer transfer);
  void Lose(Transfer transfer);
  void ArmPatience();
  void OnPatienceOver();
  void TellWhatIsGone();
  bool AllCame() const;
  void Remark(std::string text);
  void ReleaseHeld();
  void Release(Transfer& transfer);
  void Pump();
  void End(const absl::Status& status);

  OutputRelay& relay_;
  FollowOptions options_;
  FollowSink* sink_;  // Null once finished.
  HeadLoop::Watch watch_;
  std::map<TransferId, Transfer> transfers_;
  std::vector<Transfer> away_;  // Of nodes that are not connected; asked again when they are back.
  std::map<FollowOptions::Key, std::uint64_t> positions_;  // Where a transfer that is opened anew goes on.
  std::map<AttemptNumber, Asked> asked_;
  boost::asio::steady_timer patience_;
  bool was_final_ = false;               // The job had ended when the session began.
  std::optional<AttemptNumber> opened_;  // The newest attempt whose output was asked for.
  std::deque<Outgoing> queue_;           // At most one for each transfer, and remarks.
  Outgoing writing_;
  bool write_pending_ = false;
  bool job_dirty_ = true;  // The client is owed a Job message.
  bool first_sent_ = false;
  std::optional<std::tuple<JobState, AttemptNumber, Reason>> seen_;
};

class OutputRelay {
 public:
  explicit OutputRelay(HeadLoop& loop, Duration transfer_patience = kTransferPatience);

  // What the agents' service tells.
  void OnNodeConnected(NodeId node);  // It is registered: it can be asked for output.
  void OnNodeDisconnected(NodeId node);
  // NOT_FOUND: nobody waits for that, or not from that node.
  absl::Status Attach(TransferId id, NodeId node, std::shared_ptr<OutputSource> source);
  void OnData(TransferId id, ::rayctl::v1::SendOutputRequest message);
  void OnSourceEnd(TransferId id, bool complete);  // Complete: the agent sent everything.

 private:
  friend class FollowSession;

  bool Connected(NodeId node) const { return connected_.contains(node); }
  TransferId OpenTransfer(FollowSession& session, const link::OpenOutput& what, NodeId node);
  void CloseTransfer(TransferId id, NodeId node);
  std::vector<std::shared_ptr<FollowSession>> Sessions() const;
  std::shared_ptr<FollowSession> Find(TransferId id) const;

  HeadLoop& loop_;
  const Duration transfer_patience_;
  std::set<NodeId> connected_;
  std::uint64_t last_transfer_;
  std::map<TransferId, std::weak_ptr<FollowSession>> transfers_;
  std::set<FollowSession*> sessions_;  // Each alive until it ended.
};

}  // namespace rayctl::rpc
