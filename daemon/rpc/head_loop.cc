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

void HeadLoop::Apply(const head::Event& event, const Now& now) {
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
}

void HeadLoop::Drain() {
  drain_scheduled_ = false;
  if (stopped_) {
    return;
  }
  const std::vector<head::Event> events = std::exchange(events_, {});
  const Now now = clock_.Read();
  for (const head::Event& event : events) {
    ends_cluster_ = ends_cluster_ || std::holds_alternative<head::StopCluster>(event);
    Apply(event, now);
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
  if (!journal_status_.ok() && ends_cluster_) {
    CarryOutEnd();
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
      BeginRefusing(status);
    }
    RetryLater();
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

void HeadLoop::RetryLater() {
  retry_.expires_after(kCommitRetryInterval);
  retry_.async_wait([this, alive = alive_](const boost::system::error_code& error) {
    if (error || !*alive || stopped_ || !Commit()) {
      return;
    }
    Recover();
  });
}

void HeadLoop::Recover() {
  spdlog::info("journal writable again");
  journal_status_ = absl::OkStatus();
  head_->ShowRecorded(std::nullopt);
  CarryOut();
  ArmDeadline();
}

// The calls of the transaction that failed are answered now, for nobody knows when the disk has room. A submission is
// withdrawn, and a token that nobody got is revoked; what else was asked for may still come to be, and is harmless.
void HeadLoop::BeginRefusing(const absl::Status& why) {
  spdlog::error("journal not writable records={} why={}", writes_.size(), Text(why));
  journal_status_ = absl::ResourceExhaustedError(fmt::format(
      "the head cannot write its journal: {}; what runs goes on, nothing new is taken until it can", Text(why)));
  std::map<JobId, head::JobRecord> recorded;
  absl::StatusOr<std::vector<head::Record>> records = store_.Load();
  if (records.ok()) {
    for (head::Record& record : *records) {
      if (auto* const job = std::get_if<head::JobRecord>(&record)) {
        recorded.emplace(job->id, std::move(*job));
      }
    }
  } else {
    spdlog::error("journal not readable either, jobs are not shown why={}", Text(records.status()));
  }
  const Now now = clock_.Read();
  std::vector<head::Reply> replies;
  for (head::Effect& effect : effects_) {
    if (auto* const reply = std::get_if<head::Reply>(&effect)) {
      replies.push_back(std::move(*reply));
    }
  }
  std::erase_if(effects_, [](const head::Effect& effect) { return std::holds_alternative<head::Reply>(effect); });
  for (head::Reply& reply : replies) {
    if (!reply.answer.ok()) {
      continue;  // Refused for a reason of its own.
    }
    if (const auto* const submitted = std::get_if<head::SubmitAnswer>(&*reply.answer)) {
      if (recorded.contains(submitted->job)) {
        continue;  // A retry of what was recorded before.
      }
      Apply(head::WithdrawJob{submitted->job}, now);
      head::Unsay(effects_, submitted->job);
    } else if (const auto* const token = std::get_if<head::TokenAnswer>(&*reply.answer)) {
      Apply(head::RevokeToken{.call = {}, .name = token->token.name}, now);
    }
    reply.answer = journal_status_;
  }
  head_->ShowRecorded(std::move(recorded));
  for (head::Reply& reply : replies) {
    head::Effect answer = std::move(reply);
    CarryOut(answer);
  }
}

void HeadLoop::CarryOut() {
  // What an effect brings about is delivered as events and so comes in a later turn: nothing is added meanwhile.
  std::vector<head::Effect> effects = std::exchange(effects_, {});
  for (head::Effect& effect : effects) {
    CarryOut(effect);
  }
}

// The cluster ends though the journal cannot be written. The agents are told; who watches a job is not, for a head that
// starts again knows nothing of how it ended.
void HeadLoop::CarryOutEnd() {
  std::vector<head::Effect> effects = std::exchange(effects_, {});
  for (head::Effect& effect : effects) {
    if (!std::holds_alternative<head::JobChanged>(effect)) {
      CarryOut(effect);
    }
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
