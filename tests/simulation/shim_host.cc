#include "tests/simulation/shim_host.h"

#include <csignal>
#include <sstream>
#include <tuple>
#include <utility>

#include "base/invariant.h"
#include "fmt/format.h"
#include "tests/simulation/describe.h"

namespace rayctl::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::string_view kPlanVariable = "SIM_PLAN=";
constexpr std::int32_t kNotFound = 127;

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

}  // namespace

std::vector<local::RankStatus> RanksOf(const StateFile& file) {
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, local::RankStatus> ranks;
  for (const local::ShimStateRecord& record : file) {
    local::RankStatus& status = ranks[{record.group(), record.attempt(), record.rank()}];
    status.set_group(record.group());
    status.set_attempt(record.attempt());
    status.set_rank(record.rank());
    if (record.has_starting()) {
      status.set_phase(local::RANK_PHASE_STARTING);
    } else if (record.has_started()) {
      status.set_phase(local::RANK_PHASE_RUNNING);
      status.set_pid(record.started().pid());
      status.set_pid_start_ticks(record.started().pid_start_ticks());
    } else if (record.has_exited()) {
      status.set_phase(local::RANK_PHASE_EXITED);
      *status.mutable_exit() = record.exited();
    }
  }
  std::vector<local::RankStatus> result;
  for (auto& [key, status] : ranks) {
    result.push_back(std::move(status));
  }
  return result;
}

ShimHost::ShimHost(Deps deps, std::size_t host, JobId job, Duration agent_grace)
    : deps_(std::move(deps)),
      random_(deps_.world.random.Fork()),
      host_(host),
      job_(job),
      shim_(shim::ShimConfig{.job = job, .pid = deps_.next_pid(), .agent_grace = agent_grace},
            deps_.clock.Read(deps_.world.queue.now())),
      alarm_(deps_.world, [this] { Handle(shim::Tick{}); }) {
  const std::optional<SteadyTime> deadline = shim_.NextDeadline();
  alarm_.Set(deadline ? std::optional(deps_.clock.ToSim(*deadline)) : std::nullopt);
}

ShimHost::~ShimHost() { *alive_ = false; }

void ShimHost::Later(Duration delay, std::function<void()> action) {
  deps_.world.queue.After(delay, [alive = alive_, this, action = std::move(action)] {
    if (*alive && !over_) {
      action();
    }
  });
}

void ShimHost::Handle(const shim::Event& event) {
  if (over_) {
    return;
  }
  if (frozen_) {
    waiting_.emplace_back([this, event] { Handle(event); });
    return;
  }
  deps_.world.Say(fmt::format("host {} shim {}: {}", host_, job_.value, Describe(event)));
  const std::vector<shim::Effect> effects = shim_.On(event, deps_.clock.Read(deps_.world.queue.now()));
  for (const shim::Effect& effect : effects) {
    if (over_) {
      break;
    }
    CarryOut(effect);
  }
  if (over_) {
    alarm_.Set(std::nullopt);
    return;
  }
  const std::optional<SteadyTime> deadline = shim_.NextDeadline();
  alarm_.Set(deadline ? std::optional(deps_.clock.ToSim(*deadline)) : std::nullopt);
}

void ShimHost::CarryOut(const shim::Effect& effect) {
  std::visit(Overloaded{
                 [this](const shim::Spawn& spawn) { Spawn(spawn); },
                 [this](const shim::Kill& kill) {
                   const auto child = children_.find(kill.rank);
                   if (child != children_.end() && !child->second.ended) {
                     SignalRank(child->second.process, kill.signal, false);
                   }
                 },
                 [this](const shim::SendAgent& send) {
                   if (connection_ != 0) {
                     deps_.to_agent(send.message);
                   }
                 },
                 [](const shim::SendRank&) {},  // Scripted ranks do not speak to their shim.
                 [this](const shim::WriteState& write) { deps_.write_state(write.record); },
                 [this](const shim::CopyCheckpoint& copy) {
                   Later(milliseconds(1), [this, copy] {
                     Handle(shim::CheckpointCopied{.rank = copy.rank, .number = copy.number, .store_dir = copy.from});
                   });
                 },
                 [](const shim::CloseRankSocket&) {},
                 [this](const shim::Exit& exit) {
                   deps_.world.Say(fmt::format("host {} shim {} exits: {}", host_, job_.value, exit.why));
                   over_ = true;
                   EndEveryRank();
                   deps_.exited(exit.remove_state);
                 },
             },
             effect);
}

void ShimHost::Spawn(const shim::Spawn& spawn) {
  Process process;
  process.host = host_;
  process.job = job_;
  process.attempt = spawn.rank.attempt;
  process.rank = spawn.rank.rank;
  process.pid = deps_.next_pid();
  process.began = deps_.world.queue.now();
  for (const std::string& variable : spawn.start.env()) {
    if (variable.starts_with(kDevicesVariable) && variable.size() > kDevicesVariable.size()) {
      std::istringstream ids(variable.substr(kDevicesVariable.size()));
      for (std::string id; std::getline(ids, id, ',');) {
        process.devices.push_back(id);
      }
    }
    if (variable.starts_with(kPlanVariable)) {
      process.script =
          deps_.watcher.PlanOf(variable.substr(kPlanVariable.size())).Of(spawn.rank.attempt, spawn.rank.rank);
    }
  }
  const std::uint64_t number = deps_.processes.Add(std::move(process)).number;
  if (const auto earlier = children_.find(spawn.rank); earlier != children_.end()) {
    throw Violation(fmt::format("job {} attempt {} rank {} was spawned twice by one shim", job_.value,
                                spawn.rank.attempt, spawn.rank.rank));
  }
  children_[spawn.rank] = {.process = number};
  deps_.watcher.OnSpawn(deps_.processes.Get(number), spawn.start);
  Later(random_.Between(milliseconds(1), milliseconds(20)), [this, ref = spawn.rank] { AfterExec(ref); });
}

void ShimHost::AfterExec(const shim::RankRef& ref) {
  Child& child = children_[ref];
  if (child.ended) {
    return;
  }
  const Script script = deps_.processes.Get(child.process).script;
  const std::uint64_t number = child.process;
  if (script.cannot_exec) {
    child.ended = true;
    deps_.processes.End(number, kNotFound, 0, deps_.world.queue.now());
    deps_.watcher.OnEnd(deps_.processes.Get(number));
    Handle(shim::SpawnFailed{.rank = ref, .exit_code = kNotFound, .why = "no such file or directory"});
    return;
  }
  child.running = true;
  Process& process = deps_.processes.Get(number);
  process.ran = true;
  const int early_signal = child.signal_before_exec;
  if (!script.hangs) {
    Later(script.runs,
          [this, number, script] { EndRank(number, script.signal != 0 ? 0 : script.exit_code, script.signal); });
  }
  Handle(shim::Spawned{.rank = ref, .pid = process.pid, .start_ticks = number});
  if (early_signal != 0 && !over_) {
    SignalRank(number, early_signal, process.by_fault);
  }
}

std::optional<shim::RankRef> ShimHost::RefOf(std::uint64_t process) const {
  for (const auto& [ref, child] : children_) {
    if (child.process == process) {
      return ref;
    }
  }
  return std::nullopt;
}

bool ShimHost::Owns(std::uint64_t process) const { return RefOf(process).has_value(); }

void ShimHost::SignalRank(std::uint64_t process, int signal, bool by_fault) {
  const std::optional<shim::RankRef> ref = RefOf(process);
  if (!ref || children_[*ref].ended) {
    return;
  }
  Child& child = children_[*ref];
  if (by_fault) {
    deps_.processes.Get(process).by_fault = true;
  }
  if (!child.running) {
    child.signal_before_exec = signal == SIGKILL ? SIGKILL : std::max(child.signal_before_exec, signal);
    return;
  }
  if (signal == SIGKILL) {
    const Duration takes = by_fault ? Duration(0) : deps_.processes.Get(process).script.kill_takes;
    Later(takes, [this, process] { EndRank(process, 0, SIGKILL); });
  } else if (!deps_.processes.Get(process).script.ignores_term) {
    Later(random_.Between(microseconds(100), milliseconds(300)),
          [this, process, signal] { EndRank(process, 0, signal); });
  }
}

void ShimHost::EndRank(std::uint64_t process, std::int32_t exit_code, std::int32_t signal,
                       const std::string& last_output) {
  const std::optional<shim::RankRef> ref = RefOf(process);
  if (!ref || children_[*ref].ended) {
    return;
  }
  children_[*ref].ended = true;
  deps_.processes.End(process, exit_code, signal, deps_.world.queue.now());
  deps_.watcher.OnEnd(deps_.processes.Get(process));
  Later(random_.Between(microseconds(50), milliseconds(5)), [this, ref = *ref, exit_code, signal, last_output] {
    Handle(shim::Exited{.rank = ref, .exit_code = exit_code, .signal = signal, .last_output = last_output});
  });
}

void ShimHost::EndEveryRank() {
  for (auto& [ref, child] : children_) {
    if (!child.ended) {
      child.ended = true;
      deps_.processes.Get(child.process).by_fault = true;
      deps_.processes.End(child.process, 0, SIGKILL, deps_.world.queue.now());
      deps_.watcher.OnEnd(deps_.processes.Get(child.process));
    }
  }
}

void ShimHost::Die() {
  over_ = true;
  alarm_.Set(std::nullopt);
  EndEveryRank();
}

void ShimHost::Freeze() {
  if (!over_ && !frozen_) {
    deps_.world.Say(fmt::format("host {} shim {} stalls", host_, job_.value));
    frozen_ = true;
  }
}

void ShimHost::Thaw() {
  if (over_ || !frozen_) {
    return;
  }
  deps_.world.Say(fmt::format("host {} shim {} goes on", host_, job_.value));
  frozen_ = false;
  while (!over_ && !waiting_.empty()) {
    const std::function<void()> next = std::move(waiting_.front());
    waiting_.pop_front();
    next();
  }
}

void ShimHost::AgentConnects(std::uint64_t connection) {
  if (frozen_) {
    waiting_.emplace_back([this, connection] { AgentConnects(connection); });
    return;
  }
  connection_ = connection;
  Handle(shim::AgentConnected{});
}

void ShimHost::AgentDrops(std::uint64_t connection) {
  if (frozen_) {
    waiting_.emplace_back([this, connection] { AgentDrops(connection); });
    return;
  }
  if (connection_ == connection) {
    connection_ = 0;
    Handle(shim::AgentClosed{});
  }
}

void ShimHost::FromAgent(std::uint64_t connection, const local::AgentToShim& message) {
  if (frozen_) {
    waiting_.emplace_back([this, connection, message] { FromAgent(connection, message); });
    return;
  }
  if (connection_ == connection) {
    Handle(shim::AgentSaid{message});
  }
}

}  // namespace rayctl::sim
