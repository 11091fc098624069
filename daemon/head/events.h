#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "daemon/head/records.h"
#include "daemon/link/messages.h"

namespace rayctl::head {

// ---- Events: what happened. Late and repeated ones are harmless.

struct SubmitJob {
  CallId call;
  std::string request_id;  // "" = no retry protection.
  JobSpec spec;
  std::string user;
  bool fail_infeasible = false;
};
struct CancelJob {
  CallId call;
  JobId job;
  std::string user;
  bool any_job = false;  // An admin may cancel others' jobs.
};
// A job that was submitted, and could not be recorded: its submission is refused, so it never was. Nothing of it was
// carried out; see Unsay.
struct WithdrawJob {
  JobId job;
};
struct CreateToken {
  CallId call;
  std::string name;  // "" = named by the head.
  Role role = Role::kUser;
  std::string sha256;     // 32 bytes.
  WallTime expires_at{};  // Epoch = never.
};
struct RevokeToken {
  CallId call;
  std::string name;
};
struct JoinNode {  // Before the certificate is signed: gives the node its id and its unique name.
  CallId call;
  std::string node_name;
  NodeId known;  // A node that comes back; 0 = new.
  bool is_head_node = false;
};
struct AgentMessage {  // The first on a stream must be Register.
  StreamId stream;
  NodeId node;  // From the certificate.
  link::AgentToHead message;
};
struct AgentClosed {
  StreamId stream;
};
struct RelayOutput {  // Asks the node for output; goes through the machine because it numbers the stream.
  NodeId node;
  std::variant<link::OpenOutput, link::CloseOutput> what;
};
struct Tick {};  // A deadline that NextDeadline() named has come.
struct StopCluster {
  std::string why;
};  // Running jobs end CANCELLED/CLUSTER_STOPPED, queued ones wait in the journal.

using Event = std::variant<SubmitJob, CancelJob, WithdrawJob, CreateToken, RevokeToken, JoinNode, AgentMessage,
                           AgentClosed, RelayOutput, Tick, StopCluster>;

// ---- Effects: what to do, in this order. Puts and erases are committed before any other effect is carried out.

struct Put {
  Record record;
};
struct Erase {
  RecordKey key;
};

struct SubmitAnswer {
  JobId job;
  std::vector<std::string> remarks;
};
struct CancelAnswer {
  JobId job;
  JobState state = JobState::kQueued;
};
struct JoinAnswer {
  NodeId node;
  std::string node_name;
};
struct TokenAnswer {
  TokenRecord token;
};
struct Done {};
using Answer = std::variant<SubmitAnswer, CancelAnswer, JoinAnswer, TokenAnswer, Done>;
struct Reply {
  CallId call;
  absl::StatusOr<Answer> answer;
};
struct Send {
  StreamId stream;
  link::HeadToAgent message;
};
struct CloseStream {
  StreamId stream;
  absl::Status why;
};
struct JobChanged {
  JobId job;
};                         // State, attempt, reason or workers changed: watchers look again.
struct ClusterStopped {};  // After StopCluster: every job is settled and the agents were told to leave.

using Effect = std::variant<Put, Erase, Reply, Send, CloseStream, JobChanged, ClusterStopped>;

// Takes back what `effects` would tell agents of a job that is withdrawn. What was numbered keeps its number, so that
// no agent misses a message.
void Unsay(std::vector<Effect>& effects, JobId job);

}  // namespace rayctl::head
