#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "base/ids.h"
#include "daemon/agent/agent.h"

namespace rayctl::agent {

// The agent's shims as processes and sockets: spawns them, finds those of an earlier agent, carries messages, and says
// when one is gone. Agent loop only.
class ShimLink {
 public:
  struct Options {
    std::string state_dir;
    std::string run_dir;
    std::string shim_program;
    // A shim that has not said hello by then is killed. A spawned one may have to be read from a slow disk first.
    std::chrono::milliseconds spawned_hello_wait = std::chrono::seconds(30);
    std::chrono::milliseconds adopted_hello_wait = std::chrono::seconds(5);
  };
  using Deliver = std::function<void(Event)>;

  ShimLink(boost::asio::io_context& loop, Options options, Deliver deliver);
  ~ShimLink();

  // Delivers a ShimFound for every shim of an earlier agent and, once all living ones have said hello, ShimsScanned.
  void Scan();
  // Ends every shim of an earlier agent and what its ranks left, and waits for that: they are of a cluster that this
  // node has left. Before Scan.
  absl::Status EndFound() const;
  // A shim that cannot be spawned is a ShimClosed.
  void Spawn(const SpawnShim& spawn);
  void Send(const SendShim& send);
  void Remove(JobId job);
  // SIGKILL to every shim; their ranks go with them.
  void KillAll();

 private:
  class Connection;

  std::string StateFile(JobId job) const;
  std::string Socket(JobId job) const;
  std::string RankSocket(JobId job) const;
  std::set<JobId> FoundJobs() const;
  void KillLeftoversOf(JobId job, pid_t shim) const;
  void Adopt(JobId job);
  void Gone(JobId job, const std::string& why);
  void Hear(JobId job, local::ShimToAgent message);
  void ScanProgress(JobId job);

  boost::asio::io_context& loop_;
  const Options options_;
  const Deliver deliver_;
  std::map<JobId, std::shared_ptr<Connection>> connections_;
  std::set<JobId> awaited_;  // Their hello ends the scan.
  bool scanning_ = false;
};

}  // namespace rayctl::agent
