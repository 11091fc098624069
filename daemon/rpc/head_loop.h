#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/ids.h"
#include "daemon/head/events.h"
#include "daemon/head/head.h"
#include "daemon/store/store.h"

namespace rayctl::rpc {

inline constexpr Duration kCommitRetryInterval = std::chrono::milliseconds(500);

// Where agents are reached. Head loop only.
class AgentLinks {
 public:
  virtual ~AgentLinks() = default;
  virtual void Send(StreamId stream, const link::HeadToAgent& message) = 0;
  virtual void Close(StreamId stream, const absl::Status& why) = 0;
};

// Delivers events to the head's machine and carries out its effects: all events that wait are applied, what they
// change is committed in one transaction, and only then does anybody hear of it. When a commit fails, the calls in it
// are refused at once and what they asked for is taken back; what has happened is kept and tried again, is shown to
// nobody meanwhile, and new calls that change something are refused. Only the end of the cluster does not wait for the
// journal: nothing runs on without a head because of a full disk.
// Lives on the thread that runs `io`; only Post() may be called from others.
class HeadLoop {
 public:
  struct Deps {
    boost::asio::io_context& io;
    const Clock& clock;
    store::Store& store;
    std::unique_ptr<head::Head> head;
  };
  explicit HeadLoop(Deps deps);
  HeadLoop(const HeadLoop&) = delete;
  HeadLoop& operator=(const HeadLoop&) = delete;
  ~HeadLoop();

  // Runs on the loop. Thread-safe.
  void Post(std::function<void()> what);

  void Deliver(head::Event event);

  using AnswerHandler = std::function<void(absl::StatusOr<head::Answer>)>;
  // Delivers an event that has a `call`, which is filled in; `handler` runs once, after the commit, or at once with
  // RESOURCE_EXHAUSTED while the journal cannot be written.
  template <class CallEvent>
  void Call(CallEvent event, AnswerHandler handler) {
    if (stopped_ || !journal_status_.ok()) {
      handler(stopped_ ? absl::UnavailableError("the head is stopping; try again when it is back") : journal_status_);
      return;
    }
    event.call = CallId{++last_call_};
    calls_.emplace(event.call, std::move(handler));
    Deliver(std::move(event));
  }

  // Runs `handler` after each committed change of the job, until the watch is dropped.
  class Watch {
   public:
    Watch() = default;
    Watch(HeadLoop* loop, JobId job, std::uint64_t number) : loop_(loop), job_(job), number_(number) {}
    Watch(Watch&& other) noexcept
        : loop_(std::exchange(other.loop_, nullptr)), job_(other.job_), number_(other.number_) {}
    Watch& operator=(Watch&& other) noexcept;
    ~Watch() { Drop(); }

   private:
    void Drop();
    HeadLoop* loop_ = nullptr;
    JobId job_;
    std::uint64_t number_ = 0;
  };
  [[nodiscard]] Watch WatchJob(JobId job, std::function<void()> handler);

  void set_links(AgentLinks* links) { links_ = links; }
  // With each token of a commit, before the answer that it is for.
  void set_on_token(std::function<void(const head::TokenRecord&)> handler) { on_token_ = std::move(handler); }
  void set_on_cluster_stopped(std::function<void()> handler) { on_cluster_stopped_ = std::move(handler); }

  const head::Head& head() const { return *head_; }
  const Clock& clock() const { return clock_; }
  boost::asio::io_context& io() { return io_; }
  // OK, or why the journal cannot be written now.
  const absl::Status& journal_status() const { return journal_status_; }
  // Commits since the start; a heartbeat is none.
  std::uint64_t commits() const { return commits_; }

  // Drops every timer; calls that wait are answered UNAVAILABLE and nothing is delivered any more.
  void Stop();

 private:
  struct Watcher {
    std::uint64_t number = 0;
    std::function<void()> handler;
  };

  void ScheduleDrain();
  void Drain();
  bool Commit();
  void BeginRefusing(const absl::Status& why);
  void Recover();
  void Apply(const head::Event& event, const Now& now);
  void RetryLater();
  void CarryOut();
  void CarryOutEnd();
  void CarryOut(head::Effect& effect);
  void NotifyWatchers(JobId job);
  void ArmDeadline();

  boost::asio::io_context& io_;
  const Clock& clock_;
  store::Store& store_;
  std::unique_ptr<head::Head> head_;
  AgentLinks* links_ = nullptr;
  std::function<void(const head::TokenRecord&)> on_token_;
  std::function<void()> on_cluster_stopped_;

  std::vector<head::Event> events_;
  bool drain_scheduled_ = false;
  bool stopped_ = false;
  bool ends_cluster_ = false;                       // StopCluster was delivered.
  std::map<head::RecordKey, store::Write> writes_;  // The newest of each record, not yet committed.
  std::vector<head::Effect> effects_;               // That wait for the commit.
  absl::Status journal_status_;
  std::uint64_t commits_ = 0;
  std::uint64_t last_call_ = 0;
  std::uint64_t last_watch_ = 0;
  std::unordered_map<CallId, AnswerHandler> calls_;
  std::unordered_map<JobId, std::list<Watcher>> watchers_;
  boost::asio::steady_timer deadline_;
  std::optional<SteadyTime> armed_;
  boost::asio::steady_timer retry_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // For what was posted and runs after the end.
};

}  // namespace rayctl::rpc
