#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/states.h"
#include "daemon/link/messages.h"

// What the head keeps, as values. journal.proto is the same on disk; daemon/store translates. A record is written
// whole: the journal holds the newest of each, and all of them together are the head's state after a restart.
namespace rayctl::head {

struct ClusterRecord {
  std::string cluster_id;
  std::uint64_t next_job = 1;
  std::uint64_t next_node = 1;
  std::uint64_t next_token = 1;
  Incarnation next_incarnation = 1;
  std::uint32_t next_port_offset = 0;
};

struct RankRecord {
  NodeId node;
  std::uint32_t local_rank = 0;
  std::vector<scheduler::DeviceShare> devices;
  WorkerState state = WorkerState::kStarting;
  std::int64_t pid = 0;
  link::RankEnd end;            // Where state is kExited.
  std::uint64_t end_order = 0;  // 1 for the first end of the attempt that reached the head.

  // A rank holds its resources until it is known to have ended.
  bool HoldsLease() const { return state == WorkerState::kStarting || state == WorkerState::kRunning; }
};

struct AttemptRecord {
  AttemptNumber number = 0;
  std::vector<RankRecord> ranks;  // By rank; empty before the first placement.
  std::string master_addr;
  std::uint32_t master_port = 0;
  bool ended = false;  // A failure, stop or loss has been decided; ranks may still be there.
};

struct JobRecord {
  JobId id;
  JobSpec spec;
  std::string user;
  std::string request_id;
  JobState state = JobState::kQueued;
  Reason reason = Reason::kNone;
  std::string message;
  std::optional<std::int32_t> exit_code;
  std::uint32_t failures = 0;
  AttemptRecord attempt;
  WallTime submitted_at{};
  WallTime started_at{};  // Epoch = not yet.
  WallTime ended_at{};
  std::string last_output;
  std::optional<Rank> failed_rank;
  JobState stop_state = JobState::kCancelled;  // While STOPPING: what the job ends as.
  Reason stop_reason = Reason::kNone;
};

struct NodeRecord {
  NodeId id;
  std::string name;
  std::string address;
  std::string interface_name;
  std::string boot_id;
  Resources resources;
  scheduler::Labels labels;
  std::uint32_t gpu_count = 0;
  NodeState state = NodeState::kDead;  // kAlive and kSuspect are not journaled at every change: a restarted head
                                       // begins every node that was not dead as suspect, with its count at zero.
  std::string reason;
  bool draining = false;
  bool said_goodbye = false;
  std::string version;
  bool is_head_node = false;
  std::uint32_t port_min = 0;
  std::uint32_t port_max = 0;
};

struct TokenRecord {
  TokenId id;
  std::string name;
  Role role = Role::kUser;
  std::string sha256;
  WallTime created_at{};
  WallTime expires_at{};  // Epoch = never.
  bool revoked = false;
};

using Record = std::variant<ClusterRecord, JobRecord, NodeRecord, TokenRecord>;

enum class RecordKind : std::uint8_t { kCluster = 1, kJob = 2, kNode = 3, kToken = 4 };
struct RecordKey {
  RecordKind kind = RecordKind::kCluster;
  std::uint64_t id = 0;
  friend auto operator<=>(const RecordKey&, const RecordKey&) = default;
};
RecordKey KeyOf(const Record& record);

}  // namespace rayctl::head
