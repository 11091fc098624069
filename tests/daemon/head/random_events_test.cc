// Random events by seed: agents that crash, lose their stream, repeat and skip messages, reboot and leave; ranks that
// end in every way; a head that restarts. The driver checks the invariants after every event.
#include <algorithm>
#include <deque>
#include <random>
#include <set>

#include "daemon/store/store.h"
#include "tests/daemon/head/head_driver.h"

namespace rayctl::head {
namespace {

class Storm {
 public:
  explicit Storm(std::uint64_t seed) : random_(seed) {
    for (const char* name : {"a", "b", "c"}) {
      const NodeId node = driver_.AddNode(name, {.cpus = 4, .gpus = 2});
      Machine& machine = machines_[node];
      machine.stream = driver_.StreamOf(node);
      machine.incarnation = driver_.IncarnationOf(node);
      machine.sequence = 1;
      Deliver(node);
    }
  }

  void Step() {
    const NodeId node = Pick();
    Machine& machine = machines_.at(node);
    switch (Roll(22)) {
      case 0:
      case 1:
      case 2:
        Submit();
        break;
      case 3:
        if (!driver_.head().jobs().empty()) {
          (void)driver_.Cancel(JobId{1 + Roll(driver_.head().cluster().next_job)}, "ann", true);
        }
        break;
      case 4:
        Pass(std::chrono::milliseconds(Roll(40'000)));
        break;
      case 5:
        if (Roll(4) == 0) {
          Cut(node);
        }
        break;
      case 6:
        Reboot(node);
        break;
      case 7:
        if (Roll(6) == 0) {
          RestartHead();
        }
        break;
      case 8:
        Repeat(node);
        break;
      case 9:
        if (machine.stream && Roll(4) == 0) {
          ++machine.sequence;  // One message is lost.
        }
        break;
      case 10:
        if (machine.stream && Roll(10) == 0) {
          Say(node, link::Goodbye{"left"});
          for (auto& [key, rank] : machine.ranks) {
            Stop(rank);
          }
          Cut(node);
        }
        break;
      case 11:
        driver_.Jump(std::chrono::milliseconds(Roll(5'000)));
        break;
      case 12:
      case 13:
      case 14:
        Connect(node);
        break;
      case 15:
        Say(node, link::Heartbeat{});
        break;
      default:
        Progress(node);
    }
    for (auto& [id, other] : machines_) {
      if (Roll(2) == 0) {
        Deliver(id);
      }
    }
    CheckDevices();
    if (Roll(8) == 0) {
      CheckRestart();
    }
  }

  // Every agent is back and every rank ends well: all that can be placed must finish.
  bool Settles() {
    for (int round = 0; round < 400; ++round) {
      bool busy = false;
      for (auto& [id, machine] : machines_) {
        Connect(id);
        Say(id, link::Heartbeat{});
        Deliver(id);
        for (int step = 0; step < 12; ++step) {
          Progress(id, /*well=*/true);
          Deliver(id);
        }
        CheckDevices();
      }
      for (const auto& [id, job] : driver_.head().jobs()) {
        busy = busy || (!IsFinal(job.state) && job.reason != Reason::kInfeasible);
      }
      if (!busy) {
        for (auto& [id, machine] : machines_) {
          Deliver(id);
        }
        return true;
      }
      Pass(std::chrono::seconds(1));
    }
    for (const auto& [id, job] : driver_.head().jobs()) {
      if (!IsFinal(job.state)) {
        UNSCOPED_INFO("job " << id.value << " " << Name(job.state) << " attempt " << job.attempt.number
                             << " waits: " << driver_.head().WaitingReason(id));
      }
    }
    return false;
  }

  // The agents keep nothing of jobs that ended.
  bool AgentsAreClean() {
    bool clean = true;
    for (const auto& [node, machine] : machines_) {
      for (const auto& [key, rank] : machine.ranks) {
        clean = false;
        UNSCOPED_INFO("node " << node.value << " keeps job " << key.job.value << " attempt " << key.attempt << " rank "
                              << key.rank << " " << Name(rank.state) << " untold " << machine.untold.contains(key));
        const JobRecord& job = driver_.Job(key.job);
        UNSCOPED_INFO("  " << Name(job.state) << " attempt " << job.attempt.number);
      }
    }
    return clean;
  }

 private:
  struct LocalRank {
    WorkerState state = WorkerState::kStarting;
    link::RankEnd end;
    std::vector<scheduler::DeviceShare> devices;
    bool alive() const { return state == WorkerState::kStarting || state == WorkerState::kRunning; }
  };
  struct Machine {
    StreamId stream;
    Incarnation incarnation = 0;
    std::uint64_t sequence = 0;
    std::map<link::RankKey, LocalRank> ranks;
    std::set<link::RankKey> untold;  // Changed since the head was told.
    std::uint32_t boot = 1;
  };

  std::uint64_t Roll(std::uint64_t sides) { return random_() % sides; }
  NodeId Pick() {
    auto it = machines_.begin();
    std::advance(it, static_cast<long>(Roll(machines_.size())));
    return it->first;
  }

  void Submit() {
    JobSpec spec = HeadDriver::Spec(static_cast<std::uint32_t>(1 + Roll(5)));
    spec.max_failures = static_cast<std::int32_t>(Roll(4)) - 1;
    spec.priority = static_cast<std::int32_t>(Roll(3));
    spec.placement_strategy = static_cast<PlacementStrategy>(1 + Roll(4));
    if (Roll(2) == 0) {
      spec.resources_per_worker.Set(kGpu, Amount{static_cast<std::int64_t>(1 + Roll(4)) * 5'000});  // 0.5 to 2.
    }
    if (Roll(5) == 0) {
      spec.timeout = std::chrono::seconds(30);
    }
    driver_.Submit(spec);
  }

  void Pass(Duration time) {
    driver_.Pass(time);
    ForgetClosed();
  }
  void Send(NodeId node, const link::AgentToHead& message) {
    driver_.On(AgentMessage{machines_.at(node).stream, node, message});
    ForgetClosed();
  }
  void ForgetClosed() {
    for (; closed_seen_ < driver_.closed().size(); ++closed_seen_) {
      for (auto& [id, machine] : machines_) {
        if (machine.stream == driver_.closed()[closed_seen_].first) {
          machine.stream = StreamId{};
        }
      }
    }
  }
  void Say(NodeId node, decltype(link::AgentToHead::body) body) {
    Machine& machine = machines_.at(node);
    if (!machine.stream) {
      return;
    }
    last_[node] = {machine.incarnation, ++machine.sequence, std::move(body)};
    Send(node, last_[node]);
  }
  void Repeat(NodeId node) {
    if (machines_.at(node).stream && last_.contains(node)) {
      Send(node, last_[node]);
    }
  }
  void Cut(NodeId node) {
    Machine& machine = machines_.at(node);
    if (machine.stream) {
      const StreamId stream = std::exchange(machine.stream, StreamId{});
      driver_.TakeMessages(stream);  // On their way, and lost.
      driver_.On(AgentClosed{stream});
    }
  }
  void Reboot(NodeId node) {
    if (Roll(8) != 0) {
      return;
    }
    Cut(node);
    Machine& machine = machines_.at(node);
    machine.ranks.clear();
    machine.untold.clear();
    driver_.Registration(node).boot_id = "boot-" + std::to_string(++machine.boot);
  }
  void RestartHead() {
    for (auto& [id, machine] : machines_) {
      driver_.TakeMessages(machine.stream);
      machine.stream = StreamId{};
    }
    driver_.Restart();
  }
  link::RankFacts Facts(const link::RankKey& key, const LocalRank& rank) { return {key, rank.state, 77, rank.end}; }
  void Connect(NodeId node) {
    Machine& machine = machines_.at(node);
    if (machine.stream) {
      return;
    }
    std::vector<link::RankFacts> facts;
    for (const auto& [key, rank] : machine.ranks) {
      facts.push_back(Facts(key, rank));
    }
    machine.stream = driver_.Connect(node, std::move(facts));
    machine.incarnation = driver_.IncarnationOf(node);
    machine.sequence = 1;
    machine.untold.clear();
    last_.erase(node);
    ForgetClosed();
  }
  void Tell(NodeId node, const link::RankKey& key) {
    Machine& machine = machines_.at(node);
    if (!machine.stream) {
      return;
    }
    if (const auto rank = machine.ranks.find(key); rank != machine.ranks.end()) {
      Say(node, link::RankChanged{Facts(key, rank->second)});
    }
    machine.untold.erase(key);
  }

  // One rank here goes on, or the head hears of one.
  void Progress(NodeId node, bool well = false) {
    Machine& machine = machines_.at(node);
    if (!machine.untold.empty() && machine.stream && (well || Roll(2) == 0)) {
      Tell(node, *machine.untold.begin());
      return;
    }
    std::vector<link::RankKey> living;
    for (const auto& [key, rank] : machine.ranks) {
      if (rank.alive()) {
        living.push_back(key);
      }
    }
    if (living.empty()) {
      return;
    }
    const link::RankKey key = living[Roll(living.size())];
    LocalRank& rank = machine.ranks.at(key);
    if (rank.state == WorkerState::kStarting && (well || Roll(8) != 0)) {
      rank.state = WorkerState::kRunning;
    } else {
      rank.end = {};
      switch (well ? 0 : Roll(9)) {
        case 5:
          rank.end = HeadDriver::Code(3);
          break;
        case 6:
          rank.end = HeadDriver::Signal(9);
          break;
        case 7:
          rank.end = HeadDriver::Code(1);
          rank.end.peer_lost = true;
          break;
        case 8:
          rank.end.start_failed = true;
          rank.end.port_in_use = key.rank == 0;
          rank.end.exit_code = 127;
          break;
        default:
          break;
      }
      rank.state = WorkerState::kExited;
    }
    machine.untold.insert(key);
  }
  static void Stop(LocalRank& rank) {
    if (rank.alive()) {
      rank.state = WorkerState::kExited;
      rank.end = HeadDriver::Stopped();
    }
  }

  void Deliver(NodeId node) {
    Machine& machine = machines_.at(node);
    if (!machine.stream) {
      return;
    }
    for (const link::HeadToAgent& message : driver_.TakeMessages(machine.stream)) {
      if (const auto* registered = std::get_if<link::Registered>(&message.body)) {
        std::set<link::RankKey> named;
        for (const link::StartGroup& group : registered->groups) {
          for (const auto& rank : group.ranks) {
            named.insert({group.job, group.attempt, rank.rank});
          }
          Start(machine, group);
        }
        for (auto& [key, rank] : machine.ranks) {
          if (!named.contains(key) && rank.alive()) {
            Stop(rank);
            machine.untold.insert(key);
          }
        }
        std::erase_if(machine.ranks, [&](const auto& entry) {
          return std::find(registered->kept_jobs.begin(), registered->kept_jobs.end(), entry.first.job) ==
                 registered->kept_jobs.end();
        });
      } else if (const auto* start = std::get_if<link::StartGroup>(&message.body)) {
        Start(machine, *start);
      } else if (const auto* stop = std::get_if<link::StopGroup>(&message.body)) {
        for (auto& [key, rank] : machine.ranks) {
          if (key.job == stop->job && key.attempt <= stop->attempt && rank.alive()) {
            Stop(rank);
            machine.untold.insert(key);
          }
        }
      } else if (const auto* forget = std::get_if<link::ForgetRanks>(&message.body)) {
        std::erase_if(machine.ranks, [&](const auto& entry) {
          const bool gone = entry.first.job == forget->job && entry.first.attempt <= forget->attempt;
          CHECK_FALSE((gone && entry.second.alive()));
          return gone;
        });
      } else if (const auto* done = std::get_if<link::ForgetJob>(&message.body)) {
        std::erase_if(machine.ranks, [&](const auto& entry) {
          const bool gone = entry.first.job == done->job;
          CHECK_FALSE((gone && entry.second.alive()));
          return gone;
        });
      }
    }
  }
  static void Start(Machine& machine, const link::StartGroup& group) {
    for (const link::RankAssignment& rank : group.ranks) {
      machine.ranks.try_emplace({group.job, group.attempt, rank.rank}, LocalRank{.devices = rank.devices});
    }
  }

  // On the machines themselves: no device has two owners, whatever the head believes.
  void CheckDevices() {
    for (const auto& [id, machine] : machines_) {
      std::map<std::uint32_t, Amount> used;
      for (const auto& [key, rank] : machine.ranks) {
        for (const scheduler::DeviceShare& device : rank.devices) {
          used[device.index] += rank.alive() ? device.share : Amount{};
        }
      }
      for (const auto& [index, share] : used) {
        CHECK(share <= Amount::Units(1));
      }
    }
  }

  // A head built from the journal knows what this one knows.
  void CheckRestart() {
    std::vector<Record> records;
    for (const auto& [key, record] : driver_.journal()) {
      records.push_back(record);
    }
    const Head rebuilt({}, std::move(records), "another", driver_.now());
    rebuilt.CheckInvariants();
    REQUIRE(rebuilt.jobs().size() == driver_.head().jobs().size());
    for (const auto& [id, job] : driver_.head().jobs()) {
      CHECK(store::Encode(job) == store::Encode(*rebuilt.FindJob(id)));
    }
    CHECK(store::Encode(rebuilt.cluster()) == store::Encode(driver_.head().cluster()));
    const auto before = driver_.head().Nodes();
    const auto after = rebuilt.Nodes();
    REQUIRE(before.size() == after.size());
    for (std::size_t i = 0; i < before.size(); ++i) {
      CHECK(before[i].used == after[i].used);
      CHECK((before[i].state == NodeState::kDead) == (after[i].state == NodeState::kDead));
    }
  }

  std::mt19937_64 random_;
  HeadDriver driver_;
  std::map<NodeId, Machine> machines_;
  std::map<NodeId, link::AgentToHead> last_;
  std::size_t closed_seen_ = 0;
};

TEST_CASE("random events break no invariant, lend no device twice, and settle once all is well", "[head][random]") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(1, 41)));
  CAPTURE(seed);
  Storm storm(seed);
  for (int step = 0; step < 400; ++step) {
    storm.Step();
  }
  CHECK(storm.Settles());
  CHECK(storm.AgentsAreClean());
}

}  // namespace
}  // namespace rayctl::head
