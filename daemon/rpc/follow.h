#pragma once

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
    bool again = false;                    // It broke off, and has carried nothing since it was asked for again.
    // What of each stream was relayed by an earlier transfer that broke off, and so is dropped of this one.
    std::map<std::pair<Rank, int>, std::uint64_t> skip;
    std::optional<Outgoing> held;  // Waits until the transfers of older attempts have ended.
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
  void Lose(Transfer transfer);
  void Remark(std::string text);
  void ReleaseHeld();
  void Pump();
  void End(const absl::Status& status);

  OutputRelay& relay_;
  FollowOptions options_;
  FollowSink* sink_;  // Null once finished.
  HeadLoop::Watch watch_;
  std::map<TransferId, Transfer> transfers_;
  std::vector<Transfer> away_;  // Of nodes that are not connected; asked again when they are back.
  std::map<std::tuple<AttemptNumber, Rank, int>, std::uint64_t> relayed_;
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
  explicit OutputRelay(HeadLoop& loop);

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
  std::set<NodeId> connected_;
  std::uint64_t last_transfer_;
  std::map<TransferId, std::weak_ptr<FollowSession>> transfers_;
  std::set<FollowSession*> sessions_;  // Each alive until it ended.
};

}  // namespace rayctl::rpc
