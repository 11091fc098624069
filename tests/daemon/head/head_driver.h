#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/head/head.h"

namespace rayctl::head {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A head under a clock that the test moves, with what it journaled and what it told whom. Every event is followed by a
// check of the invariants.
class HeadDriver {
 public:
  explicit HeadDriver(HeadConfig config = {}) : config_(std::move(config)) { Start(); }

  // The head as it would be after a crash: from the journal alone, every stream gone.
  void Restart() {
    streams_.clear();
    Start();
  }

  Head& head() { return *head_; }
  Now now() const { return {SteadyTime{} + elapsed_, WallTime{} + seconds(1'700'000'000) + elapsed_}; }

  std::vector<Effect> On(const Event& event) {
    std::vector<Effect> effects = head_->On(event, now());
    bool acted = false;
    for (const Effect& effect : effects) {
      const bool write = std::holds_alternative<Put>(effect) || std::holds_alternative<Erase>(effect);
      CHECK_FALSE((write && acted));  // Journal first.
      acted = acted || !write;
      if (const auto* put = std::get_if<Put>(&effect)) {
        journal_.insert_or_assign(KeyOf(put->record), put->record);
      } else if (const auto* erase = std::get_if<Erase>(&effect)) {
        journal_.erase(erase->key);
      } else if (const auto* send = std::get_if<Send>(&effect)) {
        sent_[send->stream].push_back(send->message);
      } else if (const auto* close = std::get_if<CloseStream>(&effect)) {
        closed_.emplace_back(close->stream, close->why);
      } else if (const auto* reply = std::get_if<Reply>(&effect)) {
        replies_.insert_or_assign(reply->call, reply->answer);
      } else if (std::holds_alternative<ClusterStopped>(effect)) {
        ++cluster_stopped;
      }
    }
    head_->CheckInvariants();
    return effects;
  }

  // Moves the clock, giving a Tick at every deadline on the way.
  void Pass(Duration time) {
    const Duration end = elapsed_ + time;
    while (true) {
      const auto next = head_->NextDeadline();
      if (!next || *next > SteadyTime{} + end) {
        break;
      }
      elapsed_ = std::max(elapsed_, next->time_since_epoch());
      On(Tick{});
    }
    elapsed_ = end;
  }
  // The same with a heartbeat of each of these nodes every second.
  void PassWithHeartbeats(Duration time, const std::vector<NodeId>& nodes) {
    for (Duration passed{0}; passed < time; passed += seconds(1)) {
      Pass(seconds(1));
      for (const NodeId node : nodes) {
        Say(node, link::Heartbeat{});
      }
    }
  }
  void Jump(Duration time) { elapsed_ += time; }  // The head's own loop stood still.

  // ---- Calls.
  template <class AnswerType, class Request>
  absl::StatusOr<AnswerType> Ask(Request request) {
    request.call = CallId{++calls_};
    On(request);
    const auto answer = replies_.at(request.call);
    if (!answer.ok()) {
      return answer.status();
    }
    return std::get<AnswerType>(*answer);
  }
  static JobSpec Spec(std::uint32_t workers = 1, const std::string& entrypoint = "train") {
    JobSpec spec;
    spec.entrypoint = entrypoint;
    spec.num_workers = workers;
    spec.num_workers_max = workers;
    return spec;
  }
  JobId Submit(const JobSpec& spec) {
    const auto answer = Ask<SubmitAnswer>(SubmitJob{.spec = spec, .user = "ann"});
    REQUIRE(answer.ok());
    return answer->job;
  }
  absl::Status Cancel(JobId job, const std::string& user = "ann", bool any = false) {
    return Ask<CancelAnswer>(CancelJob{.job = job, .user = user, .any_job = any}).status();
  }
  const JobRecord& Job(JobId id) { return *head_->FindJob(id); }

  // ---- Agents.
  struct NodeShape {
    std::int64_t cpus = 4;
    std::int64_t gpus = 0;
    scheduler::Labels labels;
  };
  NodeId AddNode(const std::string& name) { return AddNode(name, NodeShape{}); }
  NodeId AddNode(const std::string& name, const NodeShape& shape) {
    const auto joined = Ask<JoinAnswer>(JoinNode{.node_name = name});
    REQUIRE(joined.ok());
    link::Register& registration = registrations_[joined->node];
    registration.version = "0.1.0";
    registration.boot_id = "boot-1";
    registration.address = "10.0.0." + std::to_string(joined->node.value);
    registration.resources.Set(kCpu, Amount::Units(shape.cpus));
    registration.resources.Set(kGpu, Amount::Units(shape.gpus));
    registration.labels = shape.labels;
    registration.port_min = 20'000;
    registration.port_max = 20'009;
    Connect(joined->node);
    return joined->node;
  }
  link::Register& Registration(NodeId node) { return registrations_.at(node); }
  // Opens a new stream and registers with these ranks.
  StreamId Connect(NodeId node, std::vector<link::RankFacts> ranks = {}) {
    const StreamId stream{++last_stream_};
    link::Register registration = registrations_.at(node);
    registration.ranks = std::move(ranks);
    streams_[node] = {stream, 1, 0};
    On(AgentMessage{stream, node, {0, 1, std::move(registration)}});
    if (!sent_[stream].empty()) {
      streams_[node].incarnation = sent_[stream].front().incarnation;
    }
    return stream;
  }
  void Say(NodeId node, decltype(link::AgentToHead::body) body) {
    AgentStream& stream = streams_.at(node);
    On(AgentMessage{stream.id, node, {stream.incarnation, ++stream.sequence, std::move(body)}});
  }
  void Disconnect(NodeId node) { On(AgentClosed{streams_.at(node).id}); }
  StreamId StreamOf(NodeId node) { return streams_.at(node).id; }
  Incarnation IncarnationOf(NodeId node) { return streams_.at(node).incarnation; }
  std::uint64_t SequenceOf(NodeId node) { return streams_.at(node).sequence; }

  // Facts of a rank of the job's current attempt, on its node.
  link::RankFacts Running(JobId job, Rank rank) {
    return {{job, Job(job).attempt.number, rank}, WorkerState::kRunning, static_cast<std::int64_t>(1000 + rank), {}};
  }
  link::RankFacts Exited(JobId job, Rank rank, link::RankEnd end) {
    return {{job, Job(job).attempt.number, rank}, WorkerState::kExited, static_cast<std::int64_t>(1000 + rank), end};
  }
  NodeId NodeOf(JobId job, Rank rank) { return Job(job).attempt.ranks.at(rank).node; }
  void Run(JobId job, Rank rank) { Say(NodeOf(job, rank), link::RankChanged{Running(job, rank)}); }
  void RunAll(JobId job) {
    for (Rank rank = 0; rank < Job(job).attempt.ranks.size(); ++rank) {
      Run(job, rank);
    }
  }
  void End(JobId job, Rank rank, link::RankEnd end = {}) {
    Say(NodeOf(job, rank), link::RankChanged{Exited(job, rank, std::move(end))});
  }
  static link::RankEnd Code(std::int32_t code) {
    link::RankEnd end;
    end.exit_code = code;
    return end;
  }
  static link::RankEnd Signal(std::int32_t signal) {
    link::RankEnd end;
    end.signal = signal;
    return end;
  }
  static link::RankEnd Stopped() {
    link::RankEnd end;
    end.signal = 15;
    end.stop_requested = true;
    return end;
  }

  // What was sent to the node since this was last asked, of one type.
  template <class Body>
  std::vector<Body> TakeSent(NodeId node) {
    std::vector<Body> bodies;
    auto& messages = sent_[streams_.at(node).id];
    for (auto it = messages.begin(); it != messages.end();) {
      if (const auto* body = std::get_if<Body>(&it->body)) {
        bodies.push_back(*body);
        it = messages.erase(it);
      } else {
        ++it;
      }
    }
    return bodies;
  }
  // Everything sent on the stream since this was last asked.
  std::vector<link::HeadToAgent> TakeMessages(StreamId stream) { return std::exchange(sent_[stream], {}); }
  NodeState StateOf(NodeId node) {
    for (const Head::NodeStatus& status : head_->Nodes()) {
      if (status.record.id == node) {
        return status.state;
      }
    }
    FAIL("no such node");
    return NodeState::kDead;
  }
  std::string ReasonOf(NodeId node) {
    for (const Head::NodeStatus& status : head_->Nodes()) {
      if (status.record.id == node) {
        return status.record.reason;
      }
    }
    return "";
  }
  const std::map<RecordKey, Record>& journal() const { return journal_; }
  const std::vector<std::pair<StreamId, absl::Status>>& closed() const { return closed_; }
  bool HasStream(NodeId node) const { return streams_.contains(node); }

  int cluster_stopped = 0;

 private:
  struct AgentStream {
    StreamId id;
    std::uint64_t sequence = 0;
    Incarnation incarnation = 0;
  };

  void Start() {
    std::vector<Record> records;
    for (const auto& [key, record] : journal_) {
      records.push_back(record);
    }
    head_.emplace(config_, std::move(records), "cluster-1", now());
    head_->CheckInvariants();
  }

  HeadConfig config_;
  Duration elapsed_ = seconds(100);
  std::optional<Head> head_;
  std::map<RecordKey, Record> journal_;
  std::map<NodeId, link::Register> registrations_;
  std::map<NodeId, AgentStream> streams_;
  std::map<StreamId, std::vector<link::HeadToAgent>> sent_;
  std::vector<std::pair<StreamId, absl::Status>> closed_;
  std::map<CallId, absl::StatusOr<Answer>> replies_;
  std::uint64_t calls_ = 0;
  std::uint64_t last_stream_ = 0;
};

}  // namespace rayctl::head
