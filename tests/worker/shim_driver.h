#pragma once

#include <string>
#include <utility>
#include <vector>

#include "worker/shim/shim.h"

namespace rayctl::shim {

// Drives the machine by hand and says its effects in short words, in order:
//   spawn 0  kill 0 15  write started 0 #1  agent hello #0  rank 0 welcome  copy 0 1 /dir  close 0  exit keep
class Driver {
 public:
  explicit Driver(ShimConfig config = {.job = JobId{7}, .pid = 99}) : shim(std::move(config), Time()) {}

  Now Time() const {
    return {SteadyTime(std::chrono::seconds(1'000)) + passed, WallTime(std::chrono::seconds(50)) + passed};
  }

  std::vector<std::string> On(const Event& event) {
    effects = shim.On(event, Time());
    std::vector<std::string> words;
    for (const Effect& effect : effects) {
      words.push_back(std::visit([](const auto& e) { return Word(e); }, effect));
    }
    return words;
  }
  std::vector<std::string> After(Duration wait) {
    passed += wait;
    return On(Tick{});
  }

  template <class Set>
  std::vector<std::string> Agent(Set set, AttemptNumber attempt = 0, std::uint32_t group = 0) {
    local::AgentToShim message;
    message.mutable_id()->set_job_id(7);
    message.mutable_id()->set_group(group);
    message.mutable_id()->set_attempt(attempt);
    set(message);
    return On(AgentSaid{message});
  }
  template <class Set>
  std::vector<std::string> RankSays(Rank rank, Set set, AttemptNumber attempt = 0, std::uint32_t group = 0) {
    return RankSaysFrom({group, attempt, rank}, rank, attempt, set);
  }
  template <class Set>
  std::vector<std::string> RankSaysFrom(RankRef home, Rank rank, AttemptNumber attempt, Set set) {
    local::RankMessage message;
    message.mutable_id()->set_job_id(7);
    message.mutable_id()->set_group(home.group);
    message.mutable_id()->set_attempt(attempt);
    message.mutable_id()->set_rank(rank);
    set(message);
    return On(RankSaid{home, message});
  }

  std::vector<std::string> Hello(std::uint64_t replay_after = 0) {
    On(AgentConnected{});
    return Agent([&](auto& m) {
      m.mutable_hello()->set_protocol(1);
      m.mutable_hello()->set_replay_after(replay_after);
    });
  }
  std::vector<std::string> Start(std::vector<Rank> ranks, AttemptNumber attempt = 0, std::uint32_t group = 0) {
    return Agent(
        [&](auto& m) {
          for (const Rank rank : ranks) {
            auto* start = m.mutable_start()->add_ranks();
            start->set_rank(rank);
            start->add_argv("train");
            start->add_env("SECRET=1");
            start->set_log_path("/logs/rank.log");
            start->mutable_context()->set_world_size(4);
          }
        },
        attempt, group);
  }
  // Running, connected and acknowledged, with the head within reach.
  void Run(const std::vector<Rank>& ranks, AttemptNumber attempt = 0, std::uint32_t group = 0) {
    Start(ranks, attempt, group);
    for (const Rank rank : ranks) {
      On(Spawned{{group, attempt, rank}, 100 + rank, 5});
      RankSays(
          rank, [](auto& m) { m.mutable_hello()->set_protocol(1); }, attempt, group);
    }
    Agent([](auto& m) { m.mutable_ack()->set_sequence(1'000'000); });
    Agent([](auto& m) { m.mutable_head_reachable()->set_reachable(true); });
  }
  std::vector<std::string> Report(Rank rank, std::uint64_t number, std::string checkpoint = "",
                                  AttemptNumber attempt = 0, std::uint32_t group = 0, std::string metrics = "{}") {
    return RankSays(
        rank,
        [&](auto& m) {
          m.mutable_report()->set_number(number);
          m.mutable_report()->set_metrics_json(metrics);
          m.mutable_report()->set_has_checkpoint(!checkpoint.empty());
          m.mutable_report()->set_checkpoint_dir(checkpoint);
        },
        attempt, group);
  }

  template <class T>
  const T& Last() const {
    const T* found = nullptr;
    for (const Effect& effect : effects) {
      if (const T* some = std::get_if<T>(&effect)) {
        found = some;
      }
    }
    if (found == nullptr) {
      throw std::logic_error("no such effect");
    }
    return *found;
  }

  Duration passed{0};
  std::vector<Effect> effects;
  Shim shim;

 private:
  static std::string R(const RankRef& rank) {
    std::string text = std::to_string(rank.rank);
    if (rank.attempt != 0) {
      text += "/" + std::to_string(rank.attempt);
    }
    return text;
  }
  static std::string Word(const Spawn& e) { return "spawn " + R(e.rank); }
  static std::string Word(const Kill& e) { return "kill " + R(e.rank) + " " + std::to_string(e.signal); }
  static std::string Word(const CopyCheckpoint& e) {
    return "copy " + R(e.rank) + " " + std::to_string(e.number) + " " + e.from;
  }
  static std::string Word(const CloseRankSocket& e) { return "close " + R(e.rank); }
  static std::string Word(const Exit& e) { return e.remove_state ? "exit remove" : "exit keep"; }
  static std::string Word(const WriteState& e) {
    using Body = local::ShimStateRecord;
    static const char* const kNames[] = {"starting", "started", "exited", "report", "failed"};
    const int body = static_cast<int>(e.record.body_case()) - static_cast<int>(Body::kStarting);
    return "write " + std::string(kNames[body]) + " #" + std::to_string(e.record.sequence());
  }
  static std::string Word(const SendAgent& e) {
    using Body = local::ShimToAgent;
    static const char* const kNames[] = {"hello",   "started", "exited", "report",   "held",    "reached",
                                         "entered", "given",   "failed", "progress", "refused", "attached"};
    const int body = static_cast<int>(e.message.body_case()) - static_cast<int>(Body::kHello);
    std::string text = "agent " + std::string(kNames[body]);
    if (e.message.body_case() == Body::kRefused) {
      return text + " " + std::to_string(e.message.refused().code());
    }
    if (e.message.body_case() != Body::kHello) {
      text += " " + std::to_string(e.message.id().rank());
    }
    if (e.message.has_held()) {
      text += " last=" + std::to_string(e.message.held().last_passed());
    }
    if (e.message.id().sequence() != 0) {
      text += " #" + std::to_string(e.message.id().sequence());
    }
    return text;
  }
  static std::string Word(const SendRank& e) {
    using Body = local::ShimReply;
    static const char* const kNames[] = {"welcome", "done", "barrier", "broadcast", "notice", "refused"};
    const int body = static_cast<int>(e.message.body_case()) - static_cast<int>(Body::kWelcome);
    std::string text = "rank " + R(e.rank) + " " + kNames[body];
    if (e.message.has_report_done()) {
      text += " " + std::to_string(e.message.report_done().number());
      text += e.message.report_done().should_checkpoint() ? " checkpoint" : "";
      if (e.message.report_done().decision() != 0) {
        text += " decision=" + std::to_string(e.message.report_done().decision());
      }
    }
    if (e.message.has_refused()) {
      text += " " + std::to_string(e.message.refused().code());
    }
    if (e.message.has_broadcast_done()) {
      text += " " + e.message.broadcast_done().payload();
    }
    return text;
  }
};

using Words = std::vector<std::string>;

}  // namespace rayctl::shim
