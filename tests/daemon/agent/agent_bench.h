#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "daemon/agent/agent.h"

// The agent's machine on a bench, for the tests of its parts.
namespace rayctl::agent::test {

inline constexpr JobId kJob{5};

inline link::StartGroup Group(AttemptNumber attempt, std::vector<Rank> ranks, bool checks_port = false) {
  link::StartGroup group;
  group.job = kJob;
  group.attempt = attempt;
  group.spec.argv = {"true"};
  group.world_size = 4;
  group.master_port = 20000;
  group.checks_master_port = checks_port;
  for (const Rank rank : ranks) {
    group.ranks.push_back({rank, rank, {}});
  }
  return group;
}

// The machine between a head and shims that the test plays.
class Bench {
 public:
  explicit Bench(bool register_now = true) : Bench(Config(), register_now) {}
  explicit Bench(AgentConfig config, bool register_now = true) : agent(std::move(config), now) {
    if (register_now) {
      On(ShimsScanned{});
      Register();
    }
  }

  static AgentConfig Config() {
    AgentConfig config;
    config.state_dir = "/state";
    config.seed = 1;
    return config;
  }

  void On(const Event& event) {
    effects = agent.On(event, now);
    for (const Effect& effect : effects) {
      if (const auto* send = std::get_if<SendHead>(&effect)) {
        sent.push_back(send->message);
      }
    }
  }

  void Register(link::Registered registered = {}) {
    On(HeadConnected{});
    head_sequence = 0;
    ++incarnation;
    registered.heartbeat_interval = std::chrono::seconds(2);
    Head(std::move(registered));
  }

  template <class Body>
  void Head(Body body) {
    On(HeadMessage{{incarnation, ++head_sequence, std::move(body)}});
  }

  void ShimHello(std::vector<local::RankStatus> ranks = {}) {
    local::ShimToAgent message;
    for (local::RankStatus& status : ranks) {
      *message.mutable_hello()->add_ranks() = std::move(status);
    }
    message.mutable_hello()->set_protocol(1);
    On(ShimMessage{kJob, message});
  }

  void Started(AttemptNumber attempt, Rank rank) {
    local::ShimToAgent message = About(attempt, rank);
    message.mutable_started()->set_pid(100 + rank);
    On(ShimMessage{kJob, message});
  }

  void Exited(AttemptNumber attempt, Rank rank, int code = 0) {
    local::ShimToAgent message = About(attempt, rank);
    message.mutable_exited()->set_exit_code(code);
    message.mutable_exited()->set_log_bytes(9);
    On(ShimMessage{kJob, message});
  }

  // A group that runs, with its shim.
  void Run(AttemptNumber attempt, const std::vector<Rank>& ranks) {
    Head(Group(attempt, ranks));
    if (Has<SpawnShim>()) {
      ShimHello();
    }
    for (const Rank rank : ranks) {
      Started(attempt, rank);
    }
  }

  void Advance(Duration by) {
    now.steady += by;
    now.wall += by;
    On(Tick{});
  }

  // ---- What the last event led to.
  template <class Kind>
  std::vector<Kind> All() const {
    std::vector<Kind> found;
    for (const Effect& effect : effects) {
      if (const auto* kind = std::get_if<Kind>(&effect)) {
        found.push_back(*kind);
      }
    }
    return found;
  }
  template <class Kind>
  bool Has() const {
    return !All<Kind>().empty();
  }
  std::vector<local::AgentToShim> ToShim(local::AgentToShim::BodyCase body) const {
    std::vector<local::AgentToShim> found;
    for (const SendShim& send : All<SendShim>()) {
      if (send.message.body_case() == body) {
        found.push_back(send.message);
      }
    }
    return found;
  }
  template <class Body>
  std::vector<Body> ToHead() const {
    std::vector<Body> found;
    for (const SendHead& send : All<SendHead>()) {
      if (const auto* body = std::get_if<Body>(&send.message.body)) {
        found.push_back(*body);
      }
    }
    return found;
  }

  Now now{SteadyTime(std::chrono::hours(1)), WallTime(std::chrono::hours(1))};
  Agent agent;
  std::vector<Effect> effects;
  std::vector<link::AgentToHead> sent;
  Incarnation incarnation = 0;
  std::uint64_t head_sequence = 0;
  std::uint64_t shim_sequence = 0;

 private:
  local::ShimToAgent About(AttemptNumber attempt, Rank rank) {
    local::ShimToAgent message;
    message.mutable_id()->set_job_id(kJob.value);
    message.mutable_id()->set_attempt(attempt);
    message.mutable_id()->set_rank(rank);
    message.mutable_id()->set_sequence(++shim_sequence);
    return message;
  }
};

inline local::RankStatus Status(Rank rank, local::RankPhase phase, int code = 0) {
  local::RankStatus status;
  status.set_rank(rank);
  status.set_phase(phase);
  status.set_pid(100 + rank);
  status.mutable_exit()->set_exit_code(code);
  return status;
}

}  // namespace rayctl::agent::test
