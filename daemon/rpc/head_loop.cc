#include "daemon/rpc/head_loop.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>
#include <variant>

#include "base/invariant.h"
#include "base/status_text.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace rayctl::rpc {

HeadLoop::Watch& HeadLoop::Watch::operator=(Watch&& other) noexcept {
  if (this != &other) {
    Drop();
    loop_ = std::exchange(other.loop_, nullptr);
    job_ = other.job_;
    number_ = other.number_;
  }
  return *this;
}

void HeadLoop::Watch::Drop() {
  HeadLoop* const loop = std::exchange(loop_, nullptr);
  if (loop == nullptr) {
    return;
  }
  const auto found = loop->watchers_.find(job_);
  if (found == loop->watchers_.end()) {
    return;
  }
  found->second.remove_if([&](const Watcher& watcher) { return watcher.number == number_; });
  if (found->second.empty()) {
    loop->watchers_.erase(found);
  }
}

HeadLoop::HeadLoop(Deps deps)
    : io_(deps.io),
      clock_(deps.clock),
      store_(deps.store),
      head_(std::move(deps.head)),
      deadline_(deps.io),
      retry_(deps.io) {
  ArmDeadline();
}

HeadLoop::~HeadLoop() {
  Stop();
  *alive_ = false;
}

void HeadLoop::Stop() {
  stopped_ = true;
  deadline_.cancel();
  retry_.cancel();
  events_.clear();
  for (auto& [call, handler] : std::exchange(calls_, {})) {
    handler(absl::UnavailableError("the head is stopping; try again when it is back"));
  }
}

void HeadLoop::Post(std::function<void()> what) { boost::asio::post(io_, std::move(what)); }

void HeadLoop::Deliver(head::Event event) {
  if (stopped_) {
    return;
  }
  events_.push_back(std::move(event));
  ScheduleDrain();
}

// Posted, not run: whatever is queued on the loop by then shares the transaction. A lone event pays one turn of the
// loop's queue for it.
void HeadLoop::ScheduleDrain() {
  if (std::exchange(drain_scheduled_, true)) {
    return;
  }
  boost::asio::post(io_, [this, alive = alive_] {
    if (*alive) {
      Drain();
    }
  });
}

void HeadLoop::Drain() {
  drain_scheduled_ = false;
  if (stopped_) {
    return;
  }
  const std::vector<head::Event> events = std::exchange(events_, {});
  const Now now = clock_.Read();
  for (const head::Event& event : events) {
    for (head::Effect& effect : head_->On(event, now)) {
      if (auto* const put = std::get_if<head::Put>(&effect)) {
        const head::RecordKey key = head::KeyOf(put->record);
        writes_.insert_or_assign(key, std::move(put->record));
      } else if (const auto* const erase = std::get_if<head::Erase>(&effect)) {
        writes_.insert_or_assign(erase->key, erase->key);
      } else {
        effects_.push_back(std::move(effect));
      }
    }
    // What was to be said on a stream that has gone meanwhile need not wait for the journal.
    if (const auto* const closed = std::get_if<head::AgentClosed>(&event); closed != nullptr && !journal_status_.ok()) {
      std::erase_if(effects_, [&](const head::Effect& effect) {
        const auto* const send = std::get_if<head::Send>(&effect);
        return send != nullptr && send->stream == closed->stream;
      });
    }
  }
  if (journal_status_.ok() && Commit()) {
    CarryOut();
  }
  ArmDeadline();
}

bool HeadLoop::Commit() {
  if (writes_.empty()) {
    return true;
  }
  std::vector<store::Write> writes;
  writes.reserve(writes_.size());
  std::vector<TokenId> tokens;
  for (auto& [key, write] : writes_) {
    if (key.kind == head::RecordKind::kToken) {
      tokens.push_back(TokenId{key.id});
    }
    writes.push_back(std::move(write));
  }
  const absl::Status status = store_.Commit(writes);
  if (!status.ok()) {
    auto kept = writes.begin();
    for (auto& [key, write] : writes_) {
      write = std::move(*kept++);
    }
    if (journal_status_.ok()) {
      spdlog::error("journal not writable records={} why={}", writes.size(), Text(status));
    }
    journal_status_ = absl::ResourceExhaustedError(fmt::format(
        "the head cannot write its journal: {}; what runs goes on, nothing new is taken until it can", Text(status)));
    retry_.expires_after(kCommitRetryInterval);
    retry_.async_wait([this, alive = alive_](const boost::system::error_code& error) {
      if (error || !*alive || stopped_) {
        return;
      }
      if (Commit()) {
        spdlog::info("journal writable again");
        journal_status_ = absl::OkStatus();
        CarryOut();
        ArmDeadline();
      }
    });
    return false;
  }
  writes_.clear();
  ++commits_;
  for (const TokenId token : tokens) {
    if (on_token_) {
      on_token_(head_->tokens().at(token));
    }
  }
  return true;
}

void HeadLoop::CarryOut() {
  // What an effect brings about is delivered as events and so comes in a later turn: nothing is added meanwhile.
  std::vector<head::Effect> effects = std::exchange(effects_, {});
  for (head::Effect& effect : effects) {
    CarryOut(effect);
  }
}

void HeadLoop::CarryOut(head::Effect& effect) {
  if (auto* const reply = std::get_if<head::Reply>(&effect)) {
    const auto call = calls_.find(reply->call);
    if (call != calls_.end()) {
      const AnswerHandler handler = std::move(call->second);
      calls_.erase(call);
      handler(std::move(reply->answer));
    }
  } else if (const auto* const send = std::get_if<head::Send>(&effect)) {
    if (links_ != nullptr) {
      links_->Send(send->stream, send->message);
    }
  } else if (const auto* const close = std::get_if<head::CloseStream>(&effect)) {
    if (links_ != nullptr) {
      links_->Close(close->stream, close->why);
    }
  } else if (const auto* const changed = std::get_if<head::JobChanged>(&effect)) {
    NotifyWatchers(changed->job);
  } else if (std::holds_alternative<head::ClusterStopped>(effect)) {
    if (on_cluster_stopped_) {
      on_cluster_stopped_();
    }
  } else {
    Invariant(false, "a journal effect was left among the others");
  }
}

HeadLoop::Watch HeadLoop::WatchJob(JobId job, std::function<void()> handler) {
  const std::uint64_t number = ++last_watch_;
  watchers_[job].push_back({number, std::move(handler)});
  return Watch(this, job, number);
}

void HeadLoop::NotifyWatchers(JobId job) {
  const auto found = watchers_.find(job);
  if (found == watchers_.end()) {
    return;
  }
  // A handler may drop its own watch or another's.
  std::vector<std::uint64_t> numbers;
  for (const Watcher& watcher : found->second) {
    numbers.push_back(watcher.number);
  }
  for (const std::uint64_t number : numbers) {
    const auto still = watchers_.find(job);
    if (still == watchers_.end()) {
      return;
    }
    const auto watcher = std::find_if(still->second.begin(), still->second.end(),
                                      [&](const Watcher& candidate) { return candidate.number == number; });
    if (watcher != still->second.end()) {
      const std::function<void()> handler = watcher->handler;
      handler();
    }
  }
}

void HeadLoop::ArmDeadline() {
  const std::optional<SteadyTime> next = stopped_ ? std::nullopt : head_->NextDeadline();
  if (next == armed_) {
    return;
  }
  armed_ = next;
  if (!next) {
    deadline_.cancel();
    return;
  }
  deadline_.expires_at(*next);
  deadline_.async_wait([this, alive = alive_](const boost::system::error_code& error) {
    if (error || !*alive) {
      return;
    }
    armed_.reset();
    Deliver(head::Tick{});
  });
}

}  // namespace rayctl::rpc
