#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "daemon/agent/loop_gate.h"
#include "daemon/link/messages.h"

namespace grpc {
class Channel;
}

namespace rayctl::agent {

// Sends ranks' logs to the head, one SendOutput call a transfer: wakes when a log grows (inotify), reads no faster than
// the head takes it, and ends when everything asked for was sent. Agent loop only.
class OutputSender {
 public:
  // Whether this rank may still write.
  using IsLive = std::function<bool(const link::RankKey&)>;

  OutputSender(boost::asio::io_context& loop, std::string state_dir, IsLive is_live);
  ~OutputSender();  // After Finish's `done`.

  // `node_id` for a head that runs with --insecure; 0 otherwise.
  void Open(const link::OpenOutput& what, std::shared_ptr<grpc::Channel> channel, std::uint64_t node_id);
  void Close(TransferId transfer);
  void CloseAll();
  // The rank's log is complete.
  void RankEnded(const link::RankKey& key);
  // Cancels every transfer; `done` once no thread of gRPC knows us any more.
  void Finish(std::function<void()> done);

 private:
  class Transfer;

  void Watch();
  void Ended(TransferId transfer);

  boost::asio::io_context& loop_;
  const std::shared_ptr<LoopGate> gate_;
  const std::string state_dir_;
  const IsLive is_live_;
  boost::asio::posix::stream_descriptor inotify_;
  std::array<char, 16UL << 10> events_;
  std::map<TransferId, std::shared_ptr<Transfer>> transfers_;
  std::map<std::string, int> folders_;  // Watched, by path.
  std::map<int, std::string> watches_;
  std::size_t calls_alive_ = 0;
  std::function<void()> finished_;
};

}  // namespace rayctl::agent
