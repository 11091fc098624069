#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/agent/agent.h"
#include "daemon/agent/loop_gate.h"

namespace grpc {
class Channel;
}

namespace rayctl::agent {

inline constexpr std::uint64_t kUnpackedBytesMax = std::uint64_t{10} << 30;  // Of all unpacked folders of a node.

// The folders that jobs were submitted with, as this node has them: each fetched and unpacked once, read-only, in
// `agent/working_dirs/<digest>`, and a writable copy for each job. Answers PrepareWorkDir by WorkDirPrepared, later.
// Agent loop only; disks and transfers are waited for on threads of its own.
class WorkingDirs {
 public:
  using Deliver = std::function<void(Event)>;

  WorkingDirs(boost::asio::io_context& loop, std::string state_dir, Deliver deliver);
  ~WorkingDirs();  // Gives transfers up; waits for what is being copied.

  void Prepare(const PrepareWorkDir& what);
  // The way to the head, null while there is none: what waits for it is fetched then. `node_id` for a head that runs
  // with --insecure; 0 otherwise.
  void SetHead(std::shared_ptr<grpc::Channel> channel, std::uint64_t node_id);

 private:
  class Transfer;
  struct Fetch {
    std::set<JobId> jobs;
    std::shared_ptr<Transfer> transfer;  // Null while it waits for the head.
  };

  // On the pool's threads.
  void Look(const PrepareWorkDir& what);
  bool CopyFor(const PrepareWorkDir& what, absl::Status& status);  // False: the folder is not here.
  absl::Status Unpack(Transfer& transfer);
  void MakeRoom(const std::string& newest);

  // On the loop.
  void Want(const PrepareWorkDir& what);
  void Start(const std::string& digest);
  void StartWaiting();
  void Fetched(const std::string& digest, const absl::Status& status, bool may_come_later);

  std::string Cached(const std::string& digest) const { return cache_dir_ + "/" + digest; }
  void Answer(JobId job, const absl::Status& status);

  const std::shared_ptr<LoopGate> gate_;
  const std::string state_dir_;
  const std::string cache_dir_;
  const Deliver deliver_;
  std::shared_ptr<grpc::Channel> channel_;
  std::uint64_t node_id_ = 0;
  std::map<std::string, Fetch> fetches_;
  boost::asio::steady_timer retry_;

  std::shared_mutex cache_mutex_;  // Shared while a folder is copied; alone while one is taken out of the cache.
  std::mutex sizes_mutex_;
  std::map<std::string, std::uint64_t> sizes_;  // Of cached folders, once known.
  boost::asio::thread_pool pool_;
};

}  // namespace rayctl::agent
