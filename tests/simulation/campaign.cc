#include "tests/simulation/campaign.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "fmt/format.h"
#include "tests/simulation/simulation.h"

namespace rayctl::sim {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr std::uint64_t kFixedSeeds = 50;
constexpr double kDiesSlowly = 0.2;
constexpr double kDiesSlowlyInCrowds = 0.7;
constexpr Duration kKillTakesMean = seconds(10);
constexpr std::int32_t kExitNotFound = 127;
constexpr std::int32_t kExitSignalBase = 128;

// What the program says when a machine aborts. Made before the run: a signal handler may not build strings.
char g_last_words[512];

extern "C" void SayLastWords(int) {
  // Nothing can be done if this cannot be written.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, g_last_words, std::strlen(g_last_words));
}

// One run: draws its cluster, its jobs and its misfortunes from the seed.
class Campaign {
 public:
  Campaign(std::uint64_t seed, const CampaignOptions& options)
      : options_(options),
        random_(seed ^ 0x5eed),
        peaceful_(random_.Chance(0.08)),
        crowded_(random_.Chance(0.4)),
        sim_(seed, DrawShape(), options.print_trace) {}

  void Run() {
    sim_.Begin();
    if (!peaceful_) {
      sim_.LoseAnswers(0.1);
      for (std::size_t i = 0; i < sim_.hosts(); ++i) {
        sim_.host(i).SetPortTaken(0.03);
      }
      mean_time_to_fault_ = random_.Between(seconds(5), seconds(60));
      NextFault();
    }
    mean_time_to_job_ =
        options_.troubled / static_cast<int>(crowded_ ? random_.Between(60, 120) : random_.Between(15, 45));
    NextJob();
    sim_.RunFor(options_.troubled);
    healed_ = true;
    sim_.HealEverything();
    if (const std::string what = sim_.SettlesWithin(options_.settle_limit); !what.empty()) {
      throw Violation(fmt::format("does not come to rest: {}", what));
    }
    if (peaceful_) {
      CheckScripts();
    }
    CountJobs();
    if (random_.Chance(0.25)) {
      StopAll();
    }
  }

  Simulation& sim() { return sim_; }

 private:
  Simulation::Shape DrawShape() {
    Simulation::Shape shape;
    const std::uint64_t nodes = options_.nodes ? *options_.nodes : random_.Between(2, 5);
    for (std::uint64_t i = 0; i < nodes; ++i) {
      NodeShape node;
      node.cpus = static_cast<std::int64_t>(random_.Between(2, 8));
      node.gpus = random_.Chance(0.5) ? static_cast<std::int64_t>(random_.Between(1, 4)) : 0;
      node.labels["rack"] = i % 2 == 0 ? "r0" : "r1";
      shape.nodes.push_back(node);
    }
    if (!peaceful_) {
      shape.network.duplicate = random_.Chance(0.5) ? 0.02 : 0;
      shape.network.reorder = random_.Chance(0.5) ? 0.01 : 0;
      shape.network.lose = random_.Chance(0.5) ? 0.005 : 0;
      shape.network.delay_max = random_.Chance(0.3) ? milliseconds(200) : milliseconds(2);
    }
    return shape;
  }

  // Between nothing and twice the mean.
  Duration Around(Duration mean) { return random_.Between(Duration(0), 2 * mean); }

  void NextJob() {
    if (healed_) {
      return;
    }
    const std::uint64_t request = sim_.Submit(DrawJob());
    if (random_.Chance(0.15)) {
      sim_.world().queue.After(Around(seconds(20)), [this, request] {
        if (const std::optional<JobId> job = sim_.JobOf(request)) {
          sim_.Cancel(*job);
        }
      });
    }
    if (random_.Chance(0.2)) {
      sim_.world().queue.After(Around(seconds(5)), [this, request] {
        if (const std::optional<JobId> job = sim_.JobOf(request)) {
          sim_.ReadOutput(*job);
        }
      });
    }
    // Sometimes a burst.
    sim_.world().queue.After(random_.Chance(0.3) ? Duration(0) : Around(mean_time_to_job_), [this] { NextJob(); });
  }

  Script DrawScript() {
    Script script;
    script.runs = random_.Chance(0.3) ? Around(milliseconds(50)) : Around(seconds(25));
    script.ignores_term = random_.Chance(0.1);
    if (random_.Chance(crowded_ ? kDiesSlowlyInCrowds : kDiesSlowly)) {
      script.kill_takes = Around(kKillTakesMean);
    }
    return script;
  }

  JobPlan DrawJob() {
    JobPlan plan;
    JobSpec& spec = plan.spec;
    spec.argv = {"train"};
    spec.num_workers = static_cast<std::uint32_t>(random_.Chance(0.3) ? 1 : random_.Between(2, 6));
    spec.num_workers_max = spec.num_workers;
    spec.placement_strategy = static_cast<PlacementStrategy>(random_.Between(1, 4));
    spec.resources_per_worker.Set(kCpu, Amount{random_.Chance(0.3) ? Amount::kUnit / 2 : Amount::kUnit});
    if (random_.Chance(crowded_ ? 0.6 : 0.25)) {
      spec.resources_per_worker.Set(kGpu, Amount{random_.Chance(0.5) ? Amount::kUnit / 2 : Amount::kUnit});
    }
    if (random_.Chance(0.02)) {
      spec.resources_per_worker.Set("unheard_of", Amount::Units(1));
    }
    if (random_.Chance(0.1)) {
      spec.label_selector["rack"] = "r1";
    }
    spec.priority = static_cast<std::int32_t>(random_.Below(3));
    spec.max_failures = random_.Chance(0.5) ? 0 : static_cast<std::int32_t>(random_.Between(1, 4));
    spec.agent_grace = random_.Chance(0.2) ? random_.Between(seconds(5), seconds(30)) : Duration(seconds(60));
    spec.grace_period =
        random_.Chance(0.3) ? random_.Between(Duration(0), Duration(seconds(3))) : Duration(seconds(10));
    if (random_.Chance(0.05)) {
      spec.head_grace = random_.Between(seconds(1), seconds(20));
    }
    // The journal keeps milliseconds.
    for (Duration* duration : {&spec.agent_grace, &spec.grace_period, &spec.head_grace}) {
      *duration = std::chrono::duration_cast<milliseconds>(*duration);
    }
    if (random_.Chance(0.1)) {
      spec.timeout = seconds(random_.Between(5, 120));
    }
    // A third of the jobs wait for a folder first; drawn from what is drawn already, so that seeds keep their meaning.
    if (spec.num_workers % 3 == 0) {
      spec.working_dir = std::string(64, 'd');
    }
    plan.plan.usual = DrawScript();
    plan.plan.usual.leaves_with_peers = random_.Chance(0.5);
    const Rank victim = static_cast<Rank>(random_.Below(spec.num_workers));
    switch (random_.Below(10)) {
      case 0: {  // Fails, always or for a time.
        Script& script = plan.plan.of_rank[victim] = DrawScript();
        script.exit_code = static_cast<std::int32_t>(random_.Between(1, 255));
        break;
      }
      case 1: {
        Script& script = plan.plan.of_rank[victim] = DrawScript();
        script.signal = random_.Chance(0.5) ? SIGSEGV : SIGABRT;
        break;
      }
      case 2:
        plan.plan.of_rank[victim].cannot_exec = true;
        break;
      case 3:
        plan.plan.usual.hangs = true;
        break;
      default:
        break;
    }
    if (random_.Chance(0.5)) {
      plan.plan.failing_attempts = static_cast<AttemptNumber>(random_.Between(1, 2));
    }
    return plan;
  }

  std::size_t AnyHost() { return static_cast<std::size_t>(random_.Below(sim_.hosts())); }
  void Later(Duration delay, std::function<void()> action) {
    sim_.world().queue.After(delay, [this, action = std::move(action)] {
      if (!healed_) {
        action();
      }
    });
  }

  void NextFault() {
    Later(Around(mean_time_to_fault_), [this] {
      Fault();
      NextFault();
    });
  }

  void Fault() {
    const std::size_t index = AnyHost();
    NodeHost& host = sim_.host(index);
    const auto what = [this](const std::string& kind) {
      sim_.world().Say("fault: " + kind);
      sim_.world().Count("fault: " + kind);
    };
    switch (random_.Below(11)) {
      case 0: {
        const std::vector<std::uint64_t> living = sim_.processes().Living();
        if (!living.empty()) {
          what("rank killed");
          const Process& process = sim_.processes().Get(living[random_.Below(living.size())]);
          sim_.host(process.host).SignalRank(process.number, SIGKILL);
        }
        break;
      }
      case 1:
        what("agent killed");
        host.KillAgent();
        Later(random_.Chance(0.7) ? Around(seconds(8)) : Around(seconds(70)), [&host] { host.StartAgent(); });
        break;
      case 2:
        what("agent stalled");
        host.FreezeAgent();
        Later(random_.Chance(0.7) ? Around(seconds(8)) : Around(seconds(40)), [&host] { host.ThawAgent(); });
        break;
      case 3: {
        const std::vector<JobId> shims = host.LivingShims();
        if (!shims.empty()) {
          what("shim killed");
          host.KillShim(shims[random_.Below(shims.size())]);
        }
        break;
      }
      case 4:
        what("node reboots");
        host.PowerOff(random_.Chance(0.5), random_.Chance(0.5));
        Later(random_.Between(seconds(1), seconds(90)), [&host] { host.PowerOn(); });
        break;
      case 5:
      case 6:
        what("node cut off");
        sim_.CutNode(index, true);
        Later(random_.Chance(crowded_ ? 0.3 : 0.6) ? Around(seconds(5)) : Around(seconds(50)),
              [this, index] { sim_.CutNode(index, false); });
        break;
      case 7: {
        what("node half cut off");
        const Way way = random_.Chance(0.5) ? Way::kUp : Way::kDown;
        sim_.network().SetCut(index, way, true);
        Later(Around(seconds(30)), [this, index, way] { sim_.network().SetCut(index, way, false); });
        break;
      }
      case 8:
        if (random_.Chance(0.5)) {
          what("head killed");
          sim_.head_host().Kill();
          RestartHeadLater();
        } else {
          what("head killed in a commit");
          sim_.head_host().KillInNextCommit([this] { RestartHeadLater(); });
        }
        break;
      case 9:
        what("head stalled");
        sim_.head_host().Stall();
        Later(random_.Between(milliseconds(500), Duration(seconds(45))), [this] { sim_.head_host().Resume(); });
        break;
      default:
        what("disk slow");
        sim_.head_host().SlowDisk(true);
        Later(Around(seconds(20)), [this] { sim_.head_host().SlowDisk(false); });
        break;
    }
  }

  // Where nothing was done to them, jobs end exactly as their ranks were told to.
  void CheckScripts() {
    for (const auto& [id, job] : sim_.head().jobs()) {
      const JobPlan& plan = sim_.PlanOfJob(id);
      if (!IsFinal(job.state) || job.reason == Reason::kUser || job.reason == Reason::kTimeout ||
          plan.plan.usual.hangs) {
        continue;
      }
      const bool fails = !plan.plan.of_rank.empty();
      const std::int64_t failing = fails ? std::int64_t{plan.plan.failing_attempts} : 0;
      const bool succeeds = failing <= plan.spec.max_failures;
      const Script script = fails ? plan.plan.of_rank.begin()->second : Script{};
      const Reason reason = succeeds             ? Reason::kNone
                            : script.cannot_exec ? Reason::kStartFailed
                            : script.signal != 0 ? Reason::kSignaled
                                                 : Reason::kExited;
      const std::int32_t code = succeeds             ? 0
                                : script.cannot_exec ? kExitNotFound
                                : script.signal != 0 ? kExitSignalBase + script.signal
                                                     : script.exit_code;
      const std::int64_t failures = succeeds ? failing : plan.spec.max_failures + 1;
      if ((job.state == JobState::kSucceeded) != succeeds || job.reason != reason || job.exit_code != code ||
          job.failures != failures) {
        throw Violation(fmt::format("job {} ended {} {} with {} after {} failures, its script says {} with {} after {}",
                                    id.value, Name(job.state), Name(job.reason), job.exit_code.value_or(-1),
                                    job.failures, Name(reason), code, failures));
      }
    }
  }

  void RestartHeadLater() {
    Later(random_.Chance(0.7) ? Around(seconds(1)) : Around(seconds(40)), [this] { sim_.head_host().Start(); });
  }

  void CountJobs() {
    for (const auto& [id, job] : sim_.head().jobs()) {
      sim_.world().Count(
          fmt::format("job {}{}{}", Name(job.state), job.reason == Reason::kNone ? "" : "/", Name(job.reason)));
    }
  }

  // `rayctl stop` on the head's machine, with a job running.
  void StopAll() {
    JobPlan plan;
    plan.spec.argv = {"train"};
    plan.plan.usual.hangs = true;
    const JobId job = sim_.SubmitAndWait(plan);
    if (!sim_.RunUntil([&] { return sim_.Job(job).state == JobState::kRunning; }, minutes(1))) {
      throw Violation("a job does not start on a cluster at rest");
    }
    sim_.StopCluster();
    const bool stopped = sim_.RunUntil(
        [this] {
          if (!sim_.head_host().stopped_cluster()) {
            return false;
          }
          for (std::size_t i = 0; i < sim_.hosts(); ++i) {
            if (sim_.host(i).agent_runs() || !sim_.host(i).LivingShims().empty()) {
              return false;
            }
          }
          return true;
        },
        minutes(1));
    if (!stopped || !sim_.processes().Living().empty()) {
      throw Violation("a stopped cluster does not end");
    }
    if (sim_.Job(job).state != JobState::kCancelled || sim_.Job(job).reason != Reason::kClusterStopped) {
      throw Violation(fmt::format("a job of a stopped cluster ended {}", Name(sim_.Job(job).state)));
    }
    sim_.world().Count("clusters stopped");
  }

  CampaignOptions options_;
  Random random_;
  bool peaceful_;
  bool crowded_;  // There is always somebody who waits for what is given back, devices above all.
  Simulation sim_;
  Duration mean_time_to_fault_{0};
  Duration mean_time_to_job_{0};
  bool healed_ = false;
};

std::optional<std::uint64_t> Number(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr || *text == '\0' ? std::nullopt : std::optional(std::strtoull(text, nullptr, 10));
}

}  // namespace

void PrepareLastWords(std::uint64_t seed, const std::string& replay_command) {
  const std::string words = fmt::format("seed {} aborts; replay: {}\n", seed, replay_command);
  std::strncpy(g_last_words, words.c_str(), sizeof(g_last_words) - 1);
  struct sigaction action {};
  action.sa_handler = SayLastWords;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGABRT, &action, nullptr);
}

std::string ReplayCommand(std::uint64_t seed) {
  return fmt::format("./dev sim --seed {} (or: RAYCTL_SIM_SEED={} build/dev/tests/simulation/simulation_test)", seed,
                     seed);
}

CampaignResult RunSeed(std::uint64_t seed, const CampaignOptions& options) {
  PrepareLastWords(seed, ReplayCommand(seed));
  Campaign campaign(seed, options);
  CampaignResult result;
  result.seed = seed;
  try {
    campaign.Run();
  } catch (const Violation& violation) {
    result.violation = violation.what();
    campaign.sim().world().Say("broken: " + result.violation);
  }
  World& world = campaign.sim().world();
  result.trace_hash = world.trace.hash();
  result.trace_lines = world.trace.lines();
  result.events = world.queue.events();
  result.virtual_time = world.queue.now();
  result.counts = world.counts;
  return result;
}

std::vector<std::uint64_t> SimulationSeeds() {
  if (const auto one = Number("RAYCTL_SIM_SEED")) {
    return {*one};
  }
  const std::uint64_t first = Number("RAYCTL_SIM_FIRST").value_or(1);
  const std::uint64_t count = Number("RAYCTL_SIM_SEEDS").value_or(kFixedSeeds);
  std::vector<std::uint64_t> seeds;
  for (std::uint64_t i = 0; i < count; ++i) {
    seeds.push_back(first + i);
  }
  return seeds;
}

}  // namespace rayctl::sim
