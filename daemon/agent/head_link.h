#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/agent/agent.h"
#include "daemon/agent/identity_store.h"
#include "daemon/agent/loop_gate.h"

namespace grpc {
class Channel;
}

namespace rayctl::agent {

// The agent's stream to the head: joins when there is no identity, opens the stream, carries messages. Agent loop only;
// what gRPC's threads see is posted to the loop.
class HeadLink {
 public:
  struct Options {
    std::string address;
    std::string state_dir;
    std::string token_file;  // Empty: only what was saved by an earlier Join.
    std::string node_name;
    std::string version;
    bool is_head_node = false;
    bool insecure = false;
    std::string cluster;  // As ClusterOf says; a Join to another one is refused.
  };
  using Deliver = std::function<void(Event)>;

  HeadLink(boost::asio::io_context& loop, Options options, Deliver deliver);
  ~HeadLink();  // After Finish's `done`.

  // Whether the head at the address is of `Options::cluster`. Waits for its answer.
  absl::Status CheckCluster() const;
  // Answers by HeadConnected or HeadClosed, later.
  void Connect();
  void Close(const std::string& why);
  void Send(const link::AgentToHead& message);
  // Sends what waits, ends the stream, and calls `done` on the loop when no thread of gRPC knows us any more; takes
  // a second at most.
  void Finish(std::function<void()> done);

  // The channel of the stream; null when there is none.
  std::shared_ptr<grpc::Channel> channel() const { return channel_; }
  // Who this node is; nullopt before the first Join.
  const std::optional<Identity>& identity() const { return identity_; }

 private:
  class Stream;

  absl::StatusOr<Identity> Join();  // On the pool's thread.
  absl::StatusOr<std::string> FindCa(const std::string& ca_sha256) const;
  absl::Status LoadIdentity();
  bool TokenIsOfAnotherCa(const Identity& identity) const;
  void OpenStream();
  void Ended(const Stream* stream, const absl::Status& status);

  boost::asio::io_context& loop_;
  const std::shared_ptr<LoopGate> gate_;
  const Options options_;
  const Deliver deliver_;
  std::optional<Identity> identity_;
  bool loaded_ = false;
  bool joining_ = false;
  bool wanted_ = false;  // Since Connect, until Close or the end of the stream.
  std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<Stream> stream_;
  std::size_t streams_alive_ = 0;  // Closed ones whose last call-back has not come count too.
  std::function<void()> finished_;
  boost::asio::thread_pool pool_{1};  // For Join and the CA's handshake, which block.
};

}  // namespace rayctl::agent
