#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "worker/process/job_cgroup.h"
#include "worker/shim/connection.h"
#include "worker/shim/event_loop.h"
#include "worker/shim/rank_process.h"
#include "worker/shim/shim.h"
#include "worker/shim/shim_loop.h"
#include "worker/shim/state_file.h"

// Inside of ShimLoop: shim_loop.cc delivers events and keeps the state, shim_sockets.cc speaks with the agent and the
// ranks, shim_processes.cc starts, watches and ends processes.
namespace rayctl::shim {

void Log(const std::string& text);
// "group=0 attempt=1 rank=2".
std::string Fields(const RankRef& rank);
absl::StatusOr<UniqueFd> Listen(const std::string& path);

struct Copy {
  RankRef rank;
  std::uint64_t number = 0;
  std::string store_dir;
  UniqueFd pipe;
  std::string answer;
};

struct RankConnection {
  std::unique_ptr<Connection> connection;
  pid_t pid = 0;
  std::optional<RankRef> rank;  // Once welcomed.
};

class Loop final : public ShimLoop {
 public:
  explicit Loop(const ShimLoopOptions& options)
      : options_(options),
        agent_path_(options.run_dir + "/shim-" + std::to_string(options.job.value) + ".sock"),
        rank_path_(options.run_dir + "/rank-" + std::to_string(options.job.value) + ".sock"),
        job_dir_(options.state_dir + "/jobs/" + std::to_string(options.job.value)),
        machine_(Config(options), clock_.Read()) {}

  ~Loop() override {
    if (ours_) {
      ::unlink(agent_path_.c_str());
      ::unlink(rank_path_.c_str());
    }
  }

  absl::Status Prepare();
  absl::Status Run() override;

 private:
  absl::StatusOr<StateFile> TakeStateFile(const local::ShimStateHeader& header);
  bool AgentHungUp() const;
  absl::Status AgentGone() const;

  struct Pending {
    Event event;
    std::uint64_t speaker = 0;  // The rank connection that a RankSaid came over.
  };

  static ShimConfig Config(const ShimLoopOptions& options) {
    ShimConfig config;
    config.job = options.job;
    config.pid = ::getpid();
    config.agent_grace = options.agent_grace;
    return config;
  }

  void Deliver(Event event, std::uint64_t speaker = 0) { pending_.push_back({std::move(event), speaker}); }
  void Drain();
  bool AttachSpeaker(RankSaid& said, std::uint64_t speaker);
  void ArmTimer();

  void Carry(const Spawn& effect);
  void Carry(const Kill& effect);
  void Carry(const SendAgent& effect);
  void Carry(const SendRank& effect);
  void Carry(const WriteState& effect);
  void Carry(const CopyCheckpoint& effect);
  void Carry(const CloseRankSocket& effect);
  void Carry(const Exit& effect);

  void AcceptAll(const UniqueFd& listener, void (Loop::*take)(UniqueFd, const ucred&));
  void TakePeer(UniqueFd socket, void (Loop::*take)(UniqueFd, const ucred&));
  void TakeAgent(UniqueFd socket, const ucred& peer);
  void TakeRank(UniqueFd socket, const ucred& peer);
  void AgentMessage(const std::string& bytes);
  void RankMessage(std::uint64_t id, const std::string& bytes);
  void RankClosed(std::uint64_t id);
  std::optional<RankRef> RankOfProcess(pid_t pid) const;
  void RefuseRank(RankConnection& peer, const local::RankId& id, local::RefusalCode code, const std::string& why);
  // Connections end inside their own handlers, so they are deleted later.
  void Bury(std::unique_ptr<Connection> connection) { graveyard_.push_back(std::move(connection)); }

  void Signals();
  void ReapOrphans();
  // Kills what an ended rank left behind. Returns the ended ranks that still have something.
  std::set<RankRef> Sweep();
  // The same by cgroups, which nobody leaves; adds to `busy`.
  void SweepCgroups(std::set<RankRef>& busy);
  void Settle();
  std::string Mark(const RankRef& rank) const {
    return std::to_string(::getpid()) + "." + std::to_string(rank.group) + "." + std::to_string(rank.attempt) + "." +
           std::to_string(rank.rank);
  }
  static std::string CgroupName(const RankRef& rank) {
    return "rank-" + std::to_string(rank.group) + "." + std::to_string(rank.attempt) + "." + std::to_string(rank.rank);
  }
  void CopyReadable(pid_t pid);
  void KillEverything();

  const ShimLoopOptions options_;
  const std::string agent_path_;
  const std::string rank_path_;
  const std::string job_dir_;
  SystemClock clock_;
  EventLoop loop_;
  Shim machine_;
  std::optional<process::JobCgroup> cgroup_;
  std::optional<StateFile> state_;
  bool ours_ = false;  // The sockets' names.
  bool state_failing_ = false;
  UniqueFd signals_;
  UniqueFd agent_listener_;
  UniqueFd rank_listener_;
  UniqueFd reserve_;  // Given up for a moment to turn a connection away when there are no descriptors left.
  std::unique_ptr<Connection> agent_;
  std::map<std::uint64_t, RankConnection> rank_connections_;
  std::map<RankRef, std::uint64_t> connection_of_rank_;
  std::uint64_t next_connection_ = 1;
  std::vector<std::unique_ptr<Connection>> graveyard_;
  std::map<RankRef, std::unique_ptr<RankProcess>> processes_;
  std::vector<std::unique_ptr<RankProcess>> ended_processes_;
  std::map<pid_t, Copy> copies_;
  std::deque<Pending> pending_;
  std::uint64_t speaker_ = 0;  // While effects of a hello are carried out: the connection that it came over.
  bool settle_ = false;        // Something about an ended rank may have changed.
  bool terminating_ = false;
  std::optional<Exit> exit_;
};

}  // namespace rayctl::shim
