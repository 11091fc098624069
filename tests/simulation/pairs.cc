#include "tests/simulation/pairs.h"

#include <algorithm>
#include <csignal>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "tests/simulation/campaign.h"
#include "tests/simulation/simulation.h"

namespace rayctl::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr std::uint32_t kRanks = 2;
constexpr std::int32_t kMaxFailures = 6;
constexpr Duration kRuns = seconds(20);
constexpr Duration kRankFailsAfter = seconds(1);
constexpr Duration kGracePeriod = seconds(5);
constexpr Duration kMomentLimit = minutes(1);
// Far longer than both outages, every grace and every attempt one after the other.
constexpr Duration kSettleLimit = minutes(15);
constexpr double kHasSpareNode = 0.4;
constexpr double kHeadDiesInCommit = 0.3;

// Outages. A short one passes by unnoticed; a middling one makes a node suspect; a long one makes it dead.
constexpr Duration kShort = seconds(5);
constexpr Duration kMiddling = seconds(25);
constexpr Duration kLongMin = seconds(31);
constexpr Duration kLongMax = seconds(90);
// What the rules of nodes forgive: silence, and an agent that is away.
constexpr Duration kSilenceForgiven = seconds(30);
constexpr Duration kAgentGrace = seconds(60);
// A count may end this much before or after what the outage took: heartbeats, connecting again, the head's own restart.
constexpr Duration kSlack = seconds(5);

// A fault as it is drawn.
struct Fault {
  Victim victim;
  std::size_t host = 0;
  Duration lasts{0};
  bool in_commit = false;
  bool says_goodbye = false;
  bool loses_state = false;
};

class Pair {
 public:
  Pair(std::uint64_t seed, bool print_trace)
      : cell_(CellOf(seed)), random_(seed ^ 0x9a125), sim_(seed, DrawShape(), print_trace) {}

  std::string Run() {
    sim_.Begin();
    Reach();
    sim_.RunFor(DrawDelay());
    const Fault first = Draw(cell_.first);
    Fault second = Draw(cell_.second);
    gap_ = DrawGap();
    Strike(first);
    sim_.RunFor(gap_);
    Strike(second);
    sim_.RunFor(std::max(first.lasts - gap_, second.lasts));
    // All that was struck is well again by now, but what the heads and agents have to do about it is not.
    const bool ended = sim_.RunUntil([this] { return sim_.head_host().running() && Ended(); }, kSettleLimit);
    if (!ended) {
      throw Violation("the job does not end");
    }
    sim_.HealEverything();
    if (const std::string what = sim_.SettlesWithin(kSettleLimit); !what.empty()) {
      throw Violation(fmt::format("does not come to rest: {}", what));
    }
    return Judge(first, second);
  }

  Simulation& sim() { return sim_; }
  const Cell& cell() const { return cell_; }

 private:
  Simulation::Shape DrawShape() {
    spare_ = random_.Chance(kHasSpareNode);
    Simulation::Shape shape;
    for (std::uint32_t i = 0; i < cell_.nodes + (spare_ ? 1 : 0); ++i) {
      NodeShape node;
      node.cpus = kRanks / cell_.nodes;
      shape.nodes.push_back(node);
    }
    return shape;
  }

  // ---- Up to the moment.
  JobPlan Gang() {
    JobPlan plan;
    plan.spec.argv = {"train"};
    plan.spec.num_workers = kRanks;
    plan.spec.num_workers_max = kRanks;
    plan.spec.placement_strategy = cell_.nodes > 1 ? PlacementStrategy::kStrictSpread : PlacementStrategy::kStrictPack;
    plan.spec.max_failures = kMaxFailures;
    plan.spec.grace_period = kGracePeriod;
    plan.plan.usual.runs = kRuns;
    // So that stopping and recovering last long enough to be struck, up to the end of grace.
    plan.plan.usual.ignores_term = random_.Chance(0.7);
    plan.plan.usual.leaves_with_peers = random_.Chance(0.3);
    return plan;
  }

  void Reach() {
    if (cell_.moment == Moment::kQueued) {
      // Fills the cluster.
      JobPlan blocker = Gang();
      blocker.spec.num_workers = blocker.spec.num_workers_max = spare_ && cell_.nodes > 1 ? kRanks + 1 : kRanks;
      const JobId filling = sim_.SubmitAndWait(blocker);
      if (spare_ && cell_.nodes == 1) {
        others_.push_back(sim_.SubmitAndWait(Gang()));
      }
      others_.push_back(filling);
      Await(filling, JobState::kRunning);
      job_ = sim_.SubmitAndWait(Gang());
      Await(job_, JobState::kQueued);
      return;
    }
    JobPlan plan = Gang();
    if (cell_.moment == Moment::kRecovering) {
      plan.plan.of_rank[0] = Script{.runs = kRankFailsAfter, .exit_code = 3};
      plan.plan.failing_attempts = 1;
      plan.plan.usual.leaves_with_peers = false;
      plan.plan.usual.ignores_term = true;
    }
    job_ = sim_.SubmitAndWait(std::move(plan));
    if (cell_.moment == Moment::kStarting) {
      Await(job_, JobState::kStarting);
      return;
    }
    Await(job_, JobState::kRunning);
    if (cell_.moment == Moment::kStopping) {
      sim_.Cancel(job_);
      Await(job_, JobState::kStopping);
    } else if (cell_.moment == Moment::kRecovering) {
      Await(job_, JobState::kRecovering);
    }
  }

  void Await(JobId job, JobState state) {
    if (!sim_.RunUntil([&] { return sim_.Job(job).state == state; }, kMomentLimit)) {
      throw Violation(fmt::format("job {} is {} and should be {}", job.value, Name(sim_.Job(job).state), Name(state)));
    }
  }

  // How far into the moment.
  Duration DrawDelay() {
    switch (cell_.moment) {
      case Moment::kStarting:
        return random_.Between(Duration(0), milliseconds(30));
      case Moment::kStopping:
      case Moment::kRecovering:
        return random_.Between(Duration(0), random_.Chance(0.5) ? Duration(milliseconds(20)) : kGracePeriod);
      default:
        return random_.Between(Duration(0), kShort);
    }
  }

  // From the first fault to the second.
  Duration DrawGap() {
    switch (random_.Below(5)) {
      case 0:
        return Duration(0);
      case 1:
        return random_.Between(Duration(0), milliseconds(20));
      case 2:
        return random_.Between(Duration(0), seconds(2));
      case 3:
        return random_.Between(Duration(0), seconds(15));
      default:
        return random_.Between(Duration(0), minutes(1));
    }
  }

  Duration DrawOutage() {
    switch (random_.Below(5)) {
      case 0:
        return random_.Between(kLongMin, kLongMax);
      case 1:
      case 2:
        return random_.Between(kShort, kMiddling);
      default:
        return random_.Between(milliseconds(1), kShort);
    }
  }

  Fault Draw(Victim victim) {
    Fault fault{.victim = victim};
    fault.host = random_.Below(cell_.nodes);
    fault.lasts = victim == Victim::kShim || victim == Victim::kRank ? Duration(0) : DrawOutage();
    fault.in_commit = random_.Chance(kHeadDiesInCommit);
    fault.says_goodbye = random_.Chance(0.3);
    fault.loses_state = random_.Chance(0.3);
    return fault;
  }

  // ---- The blow, and what a person or systemd does then.
  void Later(Duration delay, std::function<void()> action) { sim_.world().queue.After(delay, std::move(action)); }

  void Strike(const Fault& fault) {
    sim_.world().Say(fmt::format("fault: {} at host {} for {:.3f} s",
                                 kVictimNames[static_cast<std::size_t>(fault.victim)], fault.host,
                                 std::chrono::duration<double>(fault.lasts).count()));
    NodeHost& host = sim_.host(fault.host);
    bool struck = true;
    switch (fault.victim) {
      case Victim::kHead: {
        const auto again = [this, lasts = fault.lasts] { Later(lasts, [this] { sim_.head_host().Start(); }); };
        struck = sim_.head_host().running();
        if (fault.in_commit && struck) {
          sim_.head_host().KillInNextCommit(again);
        } else {
          sim_.head_host().Kill();
          again();
        }
        break;
      }
      case Victim::kAgent:
        struck = host.agent_runs();
        host.KillAgent();
        Later(fault.lasts, [&host] { host.StartAgent(); });
        break;
      case Victim::kShim: {
        const std::vector<JobId> shims = host.LivingShims();
        struck = !shims.empty();
        if (struck) {
          host.KillShim(shims[random_.Below(shims.size())]);
        }
        break;
      }
      case Victim::kRank:
        struck = KillARank(fault.host);
        break;
      case Victim::kCut:
        sim_.CutNode(fault.host, true);
        Later(fault.lasts, [this, at = fault.host] { sim_.CutNode(at, false); });
        break;
      case Victim::kReboot:
        struck = host.powered();
        host.PowerOff(fault.says_goodbye, fault.loses_state);
        Later(fault.lasts, [&host] { host.PowerOn(); });
        break;
      case Victim::kHeadStopped:
        struck = sim_.head_host().running();
        sim_.head_host().Stall();
        Later(fault.lasts, [this] { sim_.head_host().Resume(); });
        break;
      case Victim::kAgentStopped:
        struck = host.agent_runs();
        host.FreezeAgent();
        Later(fault.lasts, [&host] { host.ThawAgent(); });
        break;
      case Victim::kShimStopped:
        struck = !host.LivingShims().empty();
        for (const JobId job : host.LivingShims()) {
          host.FreezeShim(job);
          Later(fault.lasts, [&host, job] { host.ThawShim(job); });
        }
        break;
    }
    sim_.world().Count(struck ? "faults" : "faults that found nothing to strike");
  }

  bool KillARank(std::size_t host) {
    std::vector<std::uint64_t> here;
    for (const std::uint64_t number : sim_.processes().Living()) {
      if (sim_.processes().Get(number).host == host) {
        here.push_back(number);
      }
    }
    if (here.empty()) {
      return false;
    }
    return sim_.host(host).SignalRank(here[random_.Below(here.size())], SIGKILL);
  }

  // ---- The end.
  bool Ended() {
    bool ended = IsFinal(sim_.Job(job_).state);
    for (const JobId other : others_) {
      ended = ended && IsFinal(sim_.Job(other).state);
    }
    return ended;
  }

  // How many attempts this fault may cost by itself.
  static AttemptNumber Costs(const Fault& fault) {
    switch (fault.victim) {
      case Victim::kShim:
      case Victim::kRank:
      case Victim::kReboot:
        return 1;
      case Victim::kAgent:
        return fault.lasts > kAgentGrace - kSlack ? 1 : 0;
      case Victim::kCut:
      case Victim::kAgentStopped:
        return fault.lasts > kSilenceForgiven - kSlack ? 1 : 0;
      case Victim::kHead:
      case Victim::kHeadStopped:
      case Victim::kShimStopped:
        return 0;
    }
    return 0;
  }
  // Nothing is heard of the node while it lasts.
  static bool Silences(const Fault& fault) {
    return fault.victim == Victim::kCut || fault.victim == Victim::kAgentStopped || fault.victim == Victim::kAgent ||
           fault.victim == Victim::kReboot;
  }

  std::string Judge(const Fault& first, const Fault& second) {
    AttemptNumber most = (cell_.moment == Moment::kRecovering ? 1 : 0) + Costs(first) + Costs(second);
    // Two short silences that follow each other are a long one.
    if (most < 2 && Silences(first) && Silences(second) && first.host == second.host &&
        Costs(first) + Costs(second) == 0 && first.lasts + second.lasts > kSilenceForgiven - kSlack &&
        gap_ < first.lasts + kSlack) {
      ++most;
    }
    std::vector<JobId> jobs = others_;
    jobs.push_back(job_);
    for (const JobId id : jobs) {
      const head::JobRecord& job = sim_.Job(id);
      const JobState right =
          cell_.moment == Moment::kStopping && id == job_ ? JobState::kCancelled : JobState::kSucceeded;
      if (job.state != right) {
        throw Violation(
            fmt::format("job {} ended {}, not {}: {}", id.value, Name(job.state), Name(right), job.message));
      }
      if (job.attempt.number > most) {
        throw Violation(fmt::format("job {} needed attempt {}, {} is the most: {}", id.value, job.attempt.number, most,
                                    job.message));
      }
    }
    const head::JobRecord& job = sim_.Job(job_);
    return fmt::format("{} in attempt {}", Name(job.state), job.attempt.number);
  }

  Cell cell_;
  Random random_;
  bool spare_ = false;
  Simulation sim_;
  JobId job_;
  std::vector<JobId> others_;
  Duration gap_{0};
};

}  // namespace

Cell CellOf(std::uint64_t seed) {
  std::uint64_t number = seed % kCells;
  const auto take = [&number](std::uint64_t of) { return std::exchange(number, number / of) % of; };
  Cell cell{};
  cell.nodes = static_cast<std::uint32_t>(take(2) + 1);
  cell.moment = static_cast<Moment>(take(kMomentNames.size()));
  cell.second = static_cast<Victim>(take(kVictimNames.size()));
  cell.first = static_cast<Victim>(take(kVictimNames.size()));
  return cell;
}

std::string PairName(const Cell& cell) {
  const auto [low, high] = std::minmax({static_cast<std::size_t>(cell.first), static_cast<std::size_t>(cell.second)});
  return fmt::format("{} + {}", kVictimNames[low], kVictimNames[high]);
}

std::string PairReplayCommand(std::uint64_t seed) { return fmt::format("./dev sim --pairs --seed {} --trace", seed); }

PairResult RunPair(std::uint64_t seed, bool print_trace) {
  PrepareLastWords(seed, PairReplayCommand(seed));
  Pair pair(seed, print_trace);
  PairResult result;
  result.seed = seed;
  result.cell = pair.cell();
  try {
    result.outcome = pair.Run();
  } catch (const Violation& violation) {
    result.violation = violation.what();
    pair.sim().world().Say("broken: " + result.violation);
  }
  World& world = pair.sim().world();
  result.trace_hash = world.trace.hash();
  result.trace_lines = world.trace.lines();
  result.events = world.queue.events();
  result.virtual_time = world.queue.now();
  result.counts = world.counts;
  return result;
}

}  // namespace rayctl::sim
