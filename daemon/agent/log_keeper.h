#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/agent/log_retention.h"
#include "daemon/agent/loop_gate.h"

namespace rayctl::agent {

// A tenth of the file system, at most 10 GiB.
std::uint64_t DefaultLogBytesMax(const std::string& state_dir);

// Keeps the folders of jobs within the limits: looks at the disk in a thread of its own, decides on the loop, where it
// is known which jobs go on, and moves what goes aside there, so that nothing can come between; the thread then removes
// it. Agent loop only.
class LogKeeper {
 public:
  // However much happens, the disk is looked at so often; while nothing happens, never.
  static constexpr std::chrono::seconds kInterval{10};

  // The jobs that go on here, each with its oldest attempt that may still be written; nullopt: not known now.
  using LiveJobs = std::function<std::optional<std::map<JobId, AttemptNumber>>()>;

  LogKeeper(boost::asio::io_context& loop, std::string state_dir, RetentionLimits limits, LiveJobs live_jobs);
  ~LogKeeper();  // Waits for what the thread is at.

  // Something was or will be written: a look is due.
  void Touch();

 private:
  void Arm(std::chrono::milliseconds after);
  void Look();
  void Decide(std::vector<KeptJob> kept);

  const std::string jobs_dir_;
  const RetentionLimits limits_;
  const LiveJobs live_jobs_;
  const std::shared_ptr<LoopGate> gate_;
  boost::asio::steady_timer timer_;
  boost::asio::thread_pool disk_{1};
  bool armed_ = false;    // The timer runs, or the thread is looking.
  bool touched_ = false;  // Since the last look began.
  bool over_ = false;     // What must stay is over the limit, which was told.
  std::uint64_t moved_ = 0;
};

}  // namespace rayctl::agent
