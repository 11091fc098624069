#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "shim.pb.h"

// The shim's decisions, pure: On(event, now) -> effects. One loop, one thread (the shim program, or the simulation).
namespace rayctl::shim {

namespace local = ::rayctl::local::v1;

// Names one rank of one attempt in this shim. group 0 for a job.
struct RankRef {
  std::uint32_t group = 0;
  AttemptNumber attempt = 0;
  Rank rank = 0;
  friend auto operator<=>(const RankRef&, const RankRef&) = default;
};

struct ShimConfig {
  JobId job;
  std::int64_t pid = 0;
  std::string version = "0.1.0";
  Duration agent_grace = std::chrono::seconds(60);
  Duration kill_wait = std::chrono::seconds(5);  // After SIGKILL, before it is sent again.
  std::uint32_t report_window = 8;
  std::uint64_t spool_bytes_max = 64ULL << 20;
  std::uint32_t spool_checkpoints_max = 2;
};

// ---- Events.
struct AgentConnected {};  // A newer connection replaces the older.
struct AgentClosed {};
struct AgentSaid {
  local::AgentToShim message;
};
struct Spawned {
  RankRef rank;
  std::int64_t pid = 0;
  std::uint64_t start_ticks = 0;
};  // It has exec'd.
struct SpawnFailed {
  RankRef rank;
  std::int32_t exit_code = 126;
  std::string why;
};
struct Exited {  // Reaped; its output is complete.
  RankRef rank;
  std::int32_t exit_code = 0;
  std::int32_t signal = 0;
  std::string last_output;
  std::uint64_t log_bytes = 0;
  std::uint64_t memory_peak_bytes = 0;
  bool out_of_memory = false;
  std::uint64_t memory_bytes_max = 0;
  std::uint64_t pids_max_reached = 0;
};
// `rank` is the process at the other end, named by the attempt that it was started in; a hello may claim to be another
// and is refused. A SendRank or CloseRankSocket that answers a hello is for the connection that said it.
struct RankSaid {
  RankRef rank;
  local::RankMessage message;
};
struct RankSocketClosed {
  RankRef rank;
};
// The answer to CopyCheckpoint.
struct CheckpointCopied {
  RankRef rank;
  std::uint64_t number = 0;
  std::string store_dir;
  std::vector<local::CheckpointFile> files;
  std::string error;
  bool no_space = false;  // The error is a full disk.
};
struct Tick {};

using Event = std::variant<AgentConnected, AgentClosed, AgentSaid, Spawned, SpawnFailed, Exited, RankSaid,
                           RankSocketClosed, CheckpointCopied, Tick>;

// ---- Effects, in order. A WriteState comes before the effect that it must survive.
struct Spawn {
  RankRef rank;
  local::RankStart start;
};
struct Kill {
  RankRef rank;
  int signal = 0;
};  // To the rank's process group (and what its cgroup holds).
struct SendAgent {
  local::ShimToAgent message;
};  // Dropped when no agent is connected: hello and replay repeat it.
struct SendRank {
  RankRef rank;
  local::ShimReply message;
};
struct WriteState {
  local::ShimStateRecord record;
};
struct CopyCheckpoint {
  RankRef rank;
  std::uint64_t number = 0;
  std::string from;
};
struct CloseRankSocket {
  RankRef rank;
  std::string why;
};
struct Exit {
  bool remove_state = false;
  std::string why;
};

using Effect = std::variant<Spawn, Kill, SendAgent, SendRank, WriteState, CopyCheckpoint, CloseRankSocket, Exit>;

class Shim {
 public:
  Shim(ShimConfig config, Now now);
  ~Shim();
  Shim(Shim&&) noexcept;
  Shim& operator=(Shim&&) noexcept;

  std::vector<Effect> On(const Event& event, Now now);
  std::optional<SteadyTime> NextDeadline() const;
  bool AnyRankAlive() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rayctl::shim
