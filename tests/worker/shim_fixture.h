#pragma once

#include <sys/types.h>

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "shim.pb.h"
#include "tests/worker/temp_dir.h"
#include "worker/process/frame.h"
#include "worker/process/worker_process.h"

namespace rayctl::shim {

namespace local = ::rayctl::local::v1;

inline constexpr int kDeadlineMillis = 20'000;  // Of every wait; a test that needs it all has failed.

bool Readable(int fd);
UniqueFd PidfdOf(pid_t pid);
// The line that somebody writes into this fifo.
std::string LineFrom(const UniqueFd& fifo);

// One end of a socket that speaks frames, blocking with a deadline.
template <class Out, class In>
class Peer {
 public:
  explicit Peer(UniqueFd fd) : fd_(std::move(fd)) {}
  void Send(const Out& message) { SendRaw(message.SerializeAsString()); }
  void SendRaw(const std::string& bytes);
  // The next message; nullopt: the other side has closed.
  std::optional<In> Next();
  void Close() { fd_.Reset(); }
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  process::FrameReader reader_;
};

using AgentPeer = Peer<local::AgentToShim, local::ShimToAgent>;
using RankPeer = Peer<local::RankMessage, local::ShimReply>;

UniqueFd ConnectTo(const std::string& path);

// The real shim program with the test as its agent.
class ShimProgram {
 public:
  explicit ShimProgram(std::chrono::milliseconds agent_grace = std::chrono::seconds(60), bool agent_by_fd = true);

  // A test that failed half way leaves ranks: the shim ends them before it is killed.
  ~ShimProgram();
  ShimProgram(const ShimProgram&) = delete;
  ShimProgram& operator=(const ShimProgram&) = delete;

  std::string run_dir() const { return dir_.path() + "/run"; }
  std::string state_path() const { return dir_.path() + "/state/jobs/7/shim.state"; }
  std::string agent_socket() const { return run_dir() + "/shim-7.sock"; }
  std::string rank_socket() const { return run_dir() + "/rank-7.sock"; }
  std::string log_path(std::uint32_t rank) const {
    return dir_.path() + "/state/jobs/7/logs/attempt_0/rank_" + std::to_string(rank) + ".log";
  }
  const std::string& dir() const { return dir_.path(); }
  std::vector<std::string> Arguments() const;

  void Hello(std::uint64_t replay_after = 0);
  void Reconnect();
  // Sends a message of attempt 0.
  void Send(const std::function<void(local::AgentToShim&)>& set);
  void Start(std::uint32_t rank, std::vector<std::string> argv, std::vector<std::string> env = {},
             const std::function<void(local::RankStart&)>& set = {});
  void StartShell(std::uint32_t rank, const std::string& script) { Start(rank, {"/bin/sh", "-c", script}); }
  // Waits for a message of this kind and drops what comes before it.
  local::ShimToAgent Await(local::ShimToAgent::BodyCase kind);
  process::ExitStatus AwaitEnd();
  UniqueFd MakeFifo(const std::string& name);
  std::string FifoPath(const std::string& name) const { return dir_.path() + "/" + name; }

  process::WorkerProcess& process() { return *process_; }
  AgentPeer& agent() { return *agent_; }

 private:
  TempDir dir_;
  std::chrono::milliseconds agent_grace_;
  std::optional<process::WorkerProcess> process_;
  std::optional<AgentPeer> agent_;
};

}  // namespace rayctl::shim
