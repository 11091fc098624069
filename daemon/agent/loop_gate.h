#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <mutex>
#include <utility>

namespace rayctl::agent {

// The way from other threads to the loop, shared by all that may take it. The loop may run what was posted, and be
// over, while the thread that posted is still inside the loop's queue: Close waits for such a thread, so that the loop
// can be destroyed after it. Thread-safe.
class LoopGate {
 public:
  explicit LoopGate(boost::asio::io_context& loop) : loop_(loop) {}

  // After Close, `what` is dropped.
  template <class What>
  void Post(What what) {
    const std::lock_guard lock(mutex_);
    if (open_) {
      boost::asio::post(loop_, std::move(what));
    }
  }

  void Close() {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }

 private:
  boost::asio::io_context& loop_;
  std::mutex mutex_;
  bool open_ = true;
};

}  // namespace rayctl::agent
