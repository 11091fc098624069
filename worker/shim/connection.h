#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/unique_fd.h"
#include "worker/process/frame.h"
#include "worker/shim/event_loop.h"

namespace rayctl::shim {

// One accepted socket on the shim's loop: whole messages in, whole messages out.
class Connection {
 public:
  struct Handlers {
    std::function<void(const std::string&)> message;
    std::function<void(const std::string& why)> closed;  // At most once, and not after Close.
  };
  Connection(EventLoop& loop, UniqueFd socket, Handlers handlers);
  ~Connection() { Close(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  absl::Status Watch();
  void Send(const std::string& message);
  void Close();  // What the socket does not take at once is lost.
  bool open() const { return socket_.valid(); }
  int fd() const { return socket_.get(); }

 private:
  void Ready();
  void Flush();
  void Broken(const std::string& why);

  EventLoop& loop_;
  UniqueFd socket_;
  Handlers handlers_;
  process::FrameReader reader_;
  process::FrameWriter writer_;
};

}  // namespace rayctl::shim
