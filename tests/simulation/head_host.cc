#include "tests/simulation/head_host.h"

#include <variant>

#include "fmt/format.h"
#include "tests/simulation/describe.h"

namespace rayctl::sim {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kCommitMin = microseconds(100);
constexpr Duration kCommitMax = microseconds(400);
constexpr Duration kSlowCommitMax = milliseconds(800);  // Below what the head calls a stall of its own.
constexpr Duration kSkewMax = hours(30);

}  // namespace

HeadHost::HeadHost(World& world, Network& network, HeadWatcher& watcher)
    : world_(world), network_(network), watcher_(watcher), random_(world.random.Fork()), alarm_(world, [this] {
        Deliver(head::Tick{});
      }) {
  clock_.steady_offset = random_.Between(seconds(1), hours(1000));
  clock_.wall_skew = random_.Between(Duration(0), 2 * kSkewMax) - kSkewMax;
  network_.SetHead(this);
}

head::Head HeadHost::FromJournal() {
  absl::StatusOr<std::vector<head::Record>> records = store_.Load();
  if (!records.ok()) {
    throw Violation(fmt::format("the journal cannot be read: {}", records.status().ToString()));
  }
  return head::Head(head::HeadConfig{}, *std::move(records), "simulated", ReadClock());
}

void HeadHost::Start() {
  if (head_) {
    return;
  }
  world_.Say("head starts");
  head_.emplace(FromJournal());
  watcher_.OnRestart(*head_);
  ScheduleAlarm();
}

void HeadHost::Kill() {
  dies_in_commit_ = nullptr;
  if (!head_) {
    return;
  }
  world_.Say("head dies");
  ++life_;
  head_.reset();
  alarm_.Set(std::nullopt);
  inbox_.clear();
  calls_.clear();
  stalled_ = false;
  if (committing_) {
    committing_ = false;
    // The disk may have got it all, though nobody was told. A transaction is never there in part.
    if (random_.Chance(0.5)) {
      store_.Sync();
    } else {
      store_.Lose();
    }
  }
  network_.HeadDied();
}

void HeadHost::Stall() {
  if (head_ && !stalled_) {
    world_.Say("head stalls");
    stalled_ = true;
  }
}

void HeadHost::Resume() {
  if (stalled_) {
    world_.Say("head goes on");
    stalled_ = false;
    RunBatch();
  }
}

void HeadHost::Call(const std::function<head::Event(CallId)>& make,
                    std::function<void(const absl::StatusOr<head::Answer>&)> answer) {
  const CallId call{next_call_++};
  world_.queue.After(random_.Between(microseconds(100), milliseconds(3)),
                     [this, call, event = make(call), answer = std::move(answer)] {
                       if (head_) {
                         calls_[call] = answer;
                         Deliver(event);
                       }
                     });
}

void HeadHost::OnStreamMessage(StreamId stream, NodeId node, link::AgentToHead message) {
  Deliver(head::AgentMessage{stream, node, std::move(message)});
}

void HeadHost::OnStreamClosed(StreamId stream) { Deliver(head::AgentClosed{stream}); }

void HeadHost::Deliver(head::Event event) {
  if (!head_) {
    return;
  }
  inbox_.push_back(std::move(event));
  RunBatch();
}

void HeadHost::RunBatch() {
  if (!head_ || committing_ || stalled_ || inbox_.empty()) {
    return;
  }
  std::vector<head::Effect> effects;
  while (!inbox_.empty()) {
    const head::Event event = std::move(inbox_.front());
    inbox_.pop_front();
    world_.Say(fmt::format("head: {}", Describe(event)));
    std::vector<head::Effect> more = head_->On(event, ReadClock());
    for (const head::Effect& effect : more) {
      world_.Say(fmt::format("head:   {}", Describe(effect)));
    }
    watcher_.OnEffects(*head_, more);
    effects.insert(effects.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }
  ScheduleAlarm();
  std::vector<store::Write> writes;
  for (const head::Effect& effect : effects) {
    if (const auto* put = std::get_if<head::Put>(&effect)) {
      writes.emplace_back(put->record);
    } else if (const auto* erase = std::get_if<head::Erase>(&effect)) {
      writes.emplace_back(erase->key);
    }
  }
  if (writes.empty()) {
    CarryOut(effects);
    return;
  }
  committing_ = true;
  store_.Write(writes);
  if (dies_in_commit_) {
    world_.queue.After(Duration(0), [this, life = life_] {
      // All may have been healed since, in this very instant.
      if (const auto died = std::exchange(dies_in_commit_, nullptr); died && life == life_) {
        Kill();
        died();
      }
    });
  }
  world_.queue.After(random_.Between(kCommitMin, slow_disk_ ? kSlowCommitMax : kCommitMax),
                     [this, life = life_, effects = std::move(effects)] {
                       if (life != life_) {
                         return;
                       }
                       store_.Sync();
                       committing_ = false;
                       CarryOut(effects);
                       RunBatch();
                     });
}

void HeadHost::CarryOut(const std::vector<head::Effect>& effects) {
  watcher_.OnCommitted(effects);
  for (const head::Effect& effect : effects) {
    if (const auto* reply = std::get_if<head::Reply>(&effect)) {
      const auto found = calls_.find(reply->call);
      if (found != calls_.end()) {
        const auto answer = std::move(found->second);
        calls_.erase(found);
        answer(reply->answer);
      }
    } else if (const auto* send = std::get_if<head::Send>(&effect)) {
      network_.SendDown(send->stream, send->message);
    } else if (const auto* close = std::get_if<head::CloseStream>(&effect)) {
      network_.CloseFromHead(close->stream, close->why);
      // A server may still be told of the end of a stream that it ended itself.
      if (random_.Chance(0.5)) {
        world_.queue.After(milliseconds(1), [this, life = life_, stream = close->stream] {
          if (life == life_) {
            Deliver(head::AgentClosed{stream});
          }
        });
      }
    } else if (std::holds_alternative<head::ClusterStopped>(effect)) {
      stopped_cluster_ = true;
    }
  }
}

void HeadHost::ScheduleAlarm() {
  const std::optional<SteadyTime> deadline = head_->NextDeadline();
  alarm_.Set(deadline ? std::optional(clock_.ToSim(*deadline)) : std::nullopt);
}

}  // namespace rayctl::sim
