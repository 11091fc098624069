#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/resources.h"
#include "base/states.h"
#include "daemon/link/job_spec.h"
#include "scheduler/place.h"

// What an agent and the head say to each other, as values. rayctl/v1/agent.proto is the same on the wire; daemon/rpc
// translates. Both machines and the simulation use only these.
namespace rayctl::link {

inline constexpr std::uint32_t kProtocol = 1;

// How a rank ended.
struct RankEnd {
  std::int32_t exit_code = 0;
  std::int32_t signal = 0;      // 0 when it exited.
  bool stop_requested = false;  // It ended after it was told to.
  bool start_failed = false;    // It never exec'd; exit_code is 126 or 127 where exec was tried.
  std::string start_error;
  bool port_in_use = false;  // start_failed because MASTER_PORT is taken there: a free retry.
  bool out_of_memory = false;
  bool peer_lost = false;
  std::string last_output;  // At most 4 KiB.
  WallTime at{};
  bool lost = false;  // Its shim died, or its node restarted: the exit is not known.
  std::uint64_t memory_peak_bytes = 0;
  std::uint64_t memory_bytes_max = 0;  // The limit that out_of_memory is about.
  std::uint64_t pids_max_reached = 0;  // The job was refused processes there at this limit; 0: never.

  bool Clean() const { return !lost && !start_failed && signal == 0 && exit_code == 0; }
  friend bool operator==(const RankEnd&, const RankEnd&) = default;
};

struct RankKey {
  JobId job;
  AttemptNumber attempt = 0;
  Rank rank = 0;
  friend auto operator<=>(const RankKey&, const RankKey&) = default;
};

// What an agent knows of one rank. `end` is set where state is kExited.
struct RankFacts {
  RankKey key;
  WorkerState state = WorkerState::kStarting;
  std::int64_t pid = 0;
  RankEnd end;
};

struct Device {
  std::string vendor;  // "nvidia", "amd", "tpu"; "" for one that only a flag counts.
  std::string id;      // What the vendor's variable of visible devices takes: a UUID where there is one, else a number.
  std::string name;
  std::uint64_t memory_bytes = 0;
  std::string parent_id;  // Of a partition (MIG): the whole device's id.
  std::string pci_address;
  std::optional<std::int32_t> numa_node;
  std::string problem;  // Why it is not to be lent now: its health, or who holds it. Empty: it may be.
  friend bool operator==(const Device&, const Device&) = default;
};

// Agent to head.
struct Register {
  std::uint32_t protocol = kProtocol;
  std::string version;
  std::string boot_id;
  std::string address;
  std::string interface_name;
  Resources resources;
  scheduler::Labels labels;
  std::vector<Device> devices;
  std::uint32_t port_min = 0;  // MASTER_PORT range [port_min, port_max], outside the ephemeral one.
  std::uint32_t port_max = 0;
  std::vector<RankFacts> ranks;
  bool is_head_node = false;
  std::vector<std::string> remarks;  // What a person should know of this node, a sentence each.
};
struct Heartbeat {};
struct RankChanged {
  RankFacts facts;
};
struct DevicesChanged {  // All of them, in the order of Register.
  std::vector<Device> devices;
};
struct Goodbye {
  std::string why;
};  // The node is being stopped; its ranks end with it.

struct AgentToHead {
  Incarnation incarnation = 0;  // 0 in Register.
  std::uint64_t sequence = 0;   // From 1 on every stream.
  std::variant<Register, Heartbeat, RankChanged, Goodbye, DevicesChanged> body;
};

// Head to agent.
struct RankAssignment {
  Rank rank = 0;
  std::uint32_t local_rank = 0;
  std::vector<scheduler::DeviceShare> devices;
};
struct StartGroup {  // Start these ranks, all of one node. Repeats are harmless.
  JobId job;
  AttemptNumber attempt = 0;
  JobSpec spec;
  std::vector<RankAssignment> ranks;
  std::uint32_t world_size = 1;
  std::uint32_t node_rank = 0;
  std::uint32_t node_count = 1;
  std::string master_addr;
  std::uint32_t master_port = 0;
  bool checks_master_port = false;  // Rank 0 is here.
};
struct StopGroup {  // End the ranks of this and of older attempts. Repeats are harmless.
  JobId job;
  AttemptNumber attempt = 0;
  Duration grace{0};
  std::string why;
};
struct ForgetRanks {  // Ends of this attempt and older are recorded.
  JobId job;
  AttemptNumber attempt = 0;
};
struct ForgetJob {
  JobId job;
};  // All is recorded: the shim may go.
struct Registered {
  Duration heartbeat_interval{0};
  std::vector<StartGroup> groups;  // What should run here; whatever else runs is to be stopped with no grace.
  std::vector<JobId> kept_jobs;    // Their shims stay; those of other jobs end and go.
};
struct OutputPosition {
  Rank rank = 0;
  OutputStream stream = OutputStream::kStdout;
  std::uint64_t offset = 0;  // In bytes of both streams together, from the rank's first.
};
struct OpenOutput {
  TransferId transfer;
  JobId job;
  AttemptNumber attempt = 0;
  std::vector<Rank> ranks;
  bool follow = false;   // Until these ranks have ended and all was sent.
  bool by_time = false;  // The ranks' pieces in order of their times, not as they are found.
  std::optional<WallTime> since;
  std::string grep;                    // RE2; empty: every line.
  std::vector<OutputStream> streams;   // Empty: both.
  std::vector<OutputPosition> resume;  // What came before is known already.
};
struct CloseOutput {
  TransferId transfer;
};
struct LeaveCluster {
  std::string why;
};                         // The head is being stopped: end everything and exit.
struct HeartbeatHeard {};  // Answers each heartbeat: to an agent, silence means that the link is dead.

struct HeadToAgent {
  Incarnation incarnation = 0;
  std::uint64_t sequence = 0;
  std::variant<Registered, StartGroup, StopGroup, ForgetRanks, ForgetJob, OpenOutput, CloseOutput, LeaveCluster,
               HeartbeatHeard>
      body;
};

// In-order delivery over anything: duplicates are dropped, a gap means that the stream must be closed and the agent
// registers again.
class SequenceCheck {
 public:
  enum class Verdict { kNext, kDuplicate, kGap };
  Verdict Take(std::uint64_t sequence) {
    if (sequence <= last_) {
      return Verdict::kDuplicate;
    }
    if (sequence != last_ + 1) {
      return Verdict::kGap;
    }
    last_ = sequence;
    return Verdict::kNext;
  }

 private:
  std::uint64_t last_ = 0;
};

}  // namespace rayctl::link
