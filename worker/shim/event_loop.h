#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/unique_fd.h"

namespace rayctl::shim {

// Waits on descriptors and one timer. One thread. Handlers may watch and forget anything, themselves too.
class EventLoop {
 public:
  using Handler = std::function<void()>;

  absl::Status Open();
  // Level-triggered. `fd` stays the caller's, who must forget it before closing it.
  absl::Status Watch(int fd, std::uint32_t events, Handler handler);
  void Change(int fd, std::uint32_t events);
  void Forget(int fd);
  // When the timer's handler runs next; nullopt: never.
  void SetTimer(std::optional<SteadyTime> at);
  void OnTimer(Handler handler) { on_timer_ = std::move(handler); }
  // Waits until something happens and runs the handlers.
  absl::Status WaitOnce();

 private:
  struct Watched {
    std::uint64_t token = 0;
    std::shared_ptr<Handler> handler;  // Shared, so that a handler may forget itself while it runs.
  };
  UniqueFd epoll_;
  UniqueFd timer_;
  Handler on_timer_;
  std::uint64_t next_token_ = 1;
  std::map<int, Watched> watched_;
  std::map<std::uint64_t, int> fd_of_token_;  // A token is never used again, unlike a descriptor's number.
};

}  // namespace rayctl::shim
