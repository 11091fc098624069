#include "worker/shim/event_loop.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/errno_status.h"
#include "base/invariant.h"

namespace rayctl::shim {

namespace {

constexpr int kEventsAtOnce = 64;
constexpr std::int64_t kNanosPerSecond = 1'000'000'000;

}  // namespace

absl::Status EventLoop::Open() {
  epoll_.Reset(::epoll_create1(EPOLL_CLOEXEC));
  timer_.Reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!epoll_.valid() || !timer_.valid()) {
    return ErrnoStatus("making the event loop", errno);
  }
  return Watch(timer_.get(), EPOLLIN, [this] {
    std::uint64_t expirations = 0;
    if (::read(timer_.get(), &expirations, sizeof expirations) > 0 && on_timer_) {
      on_timer_();
    }
  });
}

absl::Status EventLoop::Watch(int fd, std::uint32_t events, Handler handler) {
  Invariant(!watched_.contains(fd), "a descriptor is watched once");
  epoll_event event{};
  event.events = events;
  event.data.u64 = next_token_;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) < 0) {
    return ErrnoStatus("watching a descriptor", errno);
  }
  watched_[fd] = {next_token_, std::make_shared<Handler>(std::move(handler))};
  fd_of_token_[next_token_++] = fd;
  return absl::OkStatus();
}

void EventLoop::Change(int fd, std::uint32_t events) {
  const auto found = watched_.find(fd);
  if (found == watched_.end()) {
    return;
  }
  epoll_event event{};
  event.events = events;
  event.data.u64 = found->second.token;
  Invariant(::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0, "a watched descriptor can be changed");
}

void EventLoop::Forget(int fd) {
  const auto found = watched_.find(fd);
  if (found == watched_.end()) {
    return;
  }
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  fd_of_token_.erase(found->second.token);
  watched_.erase(found);
}

void EventLoop::SetTimer(std::optional<SteadyTime> at) {
  itimerspec spec{};
  if (at) {
    // steady_clock is CLOCK_MONOTONIC here. All zeros would disarm it, so a time of zero becomes one nanosecond.
    const std::int64_t nanos = std::max<std::int64_t>(at->time_since_epoch().count(), 1);
    spec.it_value.tv_sec = nanos / kNanosPerSecond;
    spec.it_value.tv_nsec = nanos % kNanosPerSecond;
  }
  Invariant(::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr) == 0, "the timer can be set");
}

absl::Status EventLoop::WaitOnce() {
  std::array<epoll_event, kEventsAtOnce> events{};
  const int count = ::epoll_wait(epoll_.get(), events.data(), kEventsAtOnce, -1);
  if (count < 0) {
    return errno == EINTR ? absl::OkStatus() : ErrnoStatus("waiting for events", errno);
  }
  for (int i = 0; i < count; ++i) {
    const auto token = fd_of_token_.find(events[static_cast<std::size_t>(i)].data.u64);
    if (token == fd_of_token_.end()) {
      continue;  // Forgotten by a handler that ran before it.
    }
    const std::shared_ptr<Handler> handler = watched_.at(token->second).handler;
    (*handler)();
  }
  return absl::OkStatus();
}

}  // namespace rayctl::shim
