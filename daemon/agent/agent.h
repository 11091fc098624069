#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/ids.h"
#include "daemon/link/messages.h"
#include "shim.pb.h"

namespace rayctl::agent {

namespace local = ::rayctl::local::v1;

// A process that holds a device, as the daemon found it.
struct DeviceHolder {
  std::int64_t pid = 0;               // 0: somebody whom this machine does not show.
  std::string name;                   // May be empty.
  std::optional<link::RankKey> rank;  // Of this agent, which the process belongs to.
};
// How one device is.
struct DeviceFacts {
  std::string problem;  // Of its health.
  std::vector<DeviceHolder> holders;
};

struct DeviceTimes {
  Duration idle_interval = std::chrono::seconds(10);   // Between two looks while all is well.
  Duration fenced_interval = std::chrono::seconds(1);  // And while something is fenced.
  Duration answer_limit = std::chrono::seconds(10);    // A driver that takes longer is spoken of.
};

struct AgentConfig {
  link::Register registration;  // All but `ranks`.
  std::string state_dir;        // …/jobs/<id>/… below it.
  std::string node_name;
  std::int64_t pid = 0;
  std::uint64_t seed = 0;  // For the spread of reconnects.
  Duration reconnect_min = std::chrono::milliseconds(50);
  Duration reconnect_max = std::chrono::seconds(1);
  Duration register_timeout = std::chrono::seconds(5);  // From an open stream to Registered.
  // So many heartbeats with no word of the head in between: the link is dead, and is opened anew. Counted in
  // heartbeats, so that a stall of this process, in which answers wait to be read, is not taken for the head's silence.
  std::uint32_t unheard_heartbeats_max = 5;
  Duration stop_grace = std::chrono::seconds(2);     // When the node stops: SIGTERM, then SIGKILL after this.
  Duration stop_deadline = std::chrono::seconds(5);  // When the node stops: Exit at the latest.
  DeviceTimes device_times;
  std::uint64_t pids_max = 0;         // Processes and threads of one job here; 0: as many as there can be.
  std::vector<std::string> base_env;  // KEY=VALUE that every rank inherits (PATH, HOME, USER, LANG, TZ, …).
};

// ---- Events.

// What was found at start: every shim, living (connected: the agent says hello, its own hello answers by ShimMessage)
// or dead (what its state file says).
struct ShimFound {
  JobId job;
  bool living = false;
  std::vector<local::RankStatus> ranks;
};
struct ShimsScanned {};   // All ShimFound were given; living ones have said hello or were found dead. Connect now.
struct HeadConnected {};  // The stream is open: register.
struct HeadClosed {       // The stream ended or could not be opened. May or may not follow a CloseHead.
  absl::Status why;
};
struct HeadMessage {
  link::HeadToAgent message;
};
struct ShimMessage {
  JobId job;
  local::ShimToAgent message;
};
struct ShimClosed {  // Its socket closed, or it could not be spawned. `ranks`: what its state file says, unended ones
  JobId job;         // of which are gone (the shim's death kills them).
  std::vector<local::RankStatus> ranks;
  std::string why;
};
struct PortChecked {
  link::RankKey key;
  bool free = false;
};  // Answers CheckPort.
struct WorkDirPrepared {
  JobId job;
  absl::Status status;
};  // Answers PrepareWorkDir.
struct DevicesLooked {
  std::uint64_t look = 0;
  std::vector<DeviceFacts> facts;  // Of the registration's devices, in their order.
};                                 // Answers LookAtDevices.
struct Tick {};
struct Stop {
  std::string why;
  bool at_once = false;  // No grace for the ranks: whom they worked for is gone.
};                       // `rayctl stop`, SIGINT: say goodbye, end every rank, then Exit.

using Event = std::variant<ShimFound, ShimsScanned, HeadConnected, HeadClosed, HeadMessage, ShimMessage, ShimClosed,
                           PortChecked, WorkDirPrepared, DevicesLooked, Tick, Stop>;

// ---- Effects, in order.

struct ConnectHead {};
struct CloseHead {
  std::string why;
};
struct SendHead {
  link::AgentToHead message;
};
struct SpawnShim {
  JobId job;
  Duration agent_grace{0};
};  // An AgentHello to it comes next and waits until it listens; its hello answers that, or a ShimClosed follows.
struct SendShim {
  JobId job;
  local::AgentToShim message;
};
struct RemoveShim {
  JobId job;
};                  // It has been released or is dead: socket and state file go; logs stay.
struct WriteFile {  // Whole, its folder made, 0600; before the effects that follow. What goes wrong with it is logged.
  std::string path;
  std::string contents;
};
struct CheckPort {
  link::RankKey key;
  std::uint32_t port = 0;
};                       // May it be bound here now? rank is 0.
struct PrepareWorkDir {  // Fetch the packed folder, if it is not here, and make the job's own copy, if there is none.
  JobId job;
  std::string digest;
};
struct LookAtDevices {  // How each is and who holds it. There is no other before the answer.
  std::uint64_t look = 0;
};
struct OutputWanted {
  link::OpenOutput what;
};
struct OutputUnwanted {
  TransferId transfer;
};
struct OutputEnded {
  link::RankKey key;
  std::uint64_t log_bytes = 0;
};  // Its log is complete: followers end there. 0 also where the length is not known (a lost shim): what there is.
struct Exit {  // 0: no rank and no shim is left. Else some were left: end them by force.
  int code = 0;
  std::string why;
};

using Effect = std::variant<ConnectHead, CloseHead, SendHead, SpawnShim, SendShim, RemoveShim, WriteFile, CheckPort,
                            PrepareWorkDir, LookAtDevices, OutputWanted, OutputUnwanted, OutputEnded, Exit>;

// The agent's decisions: makes the ranks running here match what the head assigned, and tells the head what happened
// until the head has recorded it. Pure: see head::Head. Agent loop only.
class Agent {
 public:
  Agent(AgentConfig config, Now now);
  ~Agent();
  Agent(Agent&&) noexcept;
  Agent& operator=(Agent&&) noexcept;

  std::vector<Effect> On(const Event& event, Now now);
  std::optional<SteadyTime> NextDeadline() const;

  // Every rank known here, ended ones that the head has not yet recorded too; in key order.
  std::vector<link::RankFacts> Ranks() const;
  bool registered() const;
  // The jobs that go on here, each with the oldest attempt that may still write. Whole once registered.
  std::map<JobId, AttemptNumber> LiveFrom() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rayctl::agent
