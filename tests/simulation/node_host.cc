#include "tests/simulation/node_host.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "fmt/format.h"
#include "tests/simulation/describe.h"

namespace rayctl::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kJoinRetry = seconds(1);
constexpr std::uint32_t kPortMin = 20'000;
constexpr std::uint32_t kPortMax = 29'999;
constexpr Duration kSocketDelayMin = microseconds(10);
constexpr Duration kSocketDelayMax = microseconds(500);
// Clocks of machines that nobody set are further off than this; no decision may rest on them.
constexpr Duration kSkewMax = std::chrono::hours(30);

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

}  // namespace

NodeHost::NodeHost(Deps deps, std::size_t index, NodeShape shape)
    : deps_(std::move(deps)), random_(deps_.world.random.Fork()), index_(index), shape_(std::move(shape)) {
  clock_.wall_skew = random_.Between(Duration(0), 2 * kSkewMax) - kSkewMax;
}

std::string SimulatedGpuId(std::uint32_t index) { return fmt::format("GPU-{}", index); }

// ---- Power.

void NodeHost::PowerOn() {
  if (powered_) {
    return;
  }
  powered_ = true;
  ++boot_;
  clock_.steady_offset = random_.Between(seconds(1), std::chrono::hours(1000));
  deps_.world.Say(fmt::format("host {} boots", index_));
  StartAgent();
}

void NodeHost::PowerOff(bool says_goodbye, bool loses_state) {
  if (!powered_) {
    return;
  }
  deps_.world.Say(fmt::format("host {} goes down", index_));
  deps_.processes.ClearLeftovers(index_);
  powered_ = false;
  if (!says_goodbye) {
    deps_.network.LosePower(index_);
  }
  wants_agent_ = false;
  if (agent_ != nullptr) {
    deps_.network.CloseFromAgent(agent_->stream);
    agent_.reset();
  }
  ++agent_life_;
  frozen_ = false;
  for (auto& [job, shim] : shims_) {
    shim->Die();
    buried_.push_back(std::move(shim));
  }
  shims_.clear();
  if (loses_state) {
    state_files_.clear();
  }
}

// ---- The agent process.

void NodeHost::StartAgent() {
  if (!powered_ || agent_ != nullptr || wants_agent_) {
    return;
  }
  wants_agent_ = true;
  ++agent_life_;
  exit_code_.reset();
  if (id_) {
    BeginAgent();
  } else {
    Join();
  }
}

void NodeHost::Join() {
  const std::uint64_t life = agent_life_;
  deps_.join(fmt::format("node-{}", index_), id_, [this, life](NodeId id) {
    if (life == agent_life_ && wants_agent_ && agent_ == nullptr && !id_) {
      id_ = id;
      BeginAgent();
    }
  });
  deps_.world.queue.After(kJoinRetry, [this, life] {
    if (life == agent_life_ && wants_agent_ && agent_ == nullptr && !id_) {
      Join();
    }
  });
}

void NodeHost::BeginAgent() {
  buried_.clear();
  agent::AgentConfig config;
  link::Register& registration = config.registration;
  registration.version = "0.1.0";
  registration.boot_id = fmt::format("boot-{}-{}", index_, boot_);
  registration.address = fmt::format("10.0.0.{}", index_ + 1);
  registration.interface_name = "eth0";
  registration.resources = Resources{{std::string(kCpu), Amount::Units(shape_.cpus)},
                                     {std::string(kMemory), Amount::Units(shape_.memory_bytes)}};
  if (shape_.gpus > 0) {
    registration.resources.Set(kGpu, Amount::Units(shape_.gpus));
  }
  registration.labels = shape_.labels;
  for (std::int64_t i = 0; i < shape_.gpus; ++i) {
    registration.devices.push_back(
        {.vendor = "nvidia", .id = SimulatedGpuId(static_cast<std::uint32_t>(i)), .name = "simulated"});
  }
  registration.port_min = kPortMin;
  registration.port_max = kPortMax;
  registration.is_head_node = index_ == 0;
  config.state_dir = "/state";
  config.node_name = fmt::format("node-{}", index_);
  config.pid = next_pid_++;
  config.seed = random_.Next();
  config.base_env = {"PATH=/usr/bin:/bin"};
  agent_ = std::make_unique<AgentProcess>(std::move(config), clock_.Read(deps_.world.queue.now()), deps_.world,
                                          [this] { Deliver(agent::Tick{}); });
  deps_.world.Say(fmt::format("host {} agent starts", index_));
  // The scan: every shim's state file, and the sockets of the living ones.
  LaterInAgent(random_.Between(milliseconds(1), milliseconds(50)), [this] {
    std::map<JobId, bool> found;
    for (const auto& [job, file] : state_files_) {
      found[job] = false;
    }
    for (const auto& [job, shim] : shims_) {
      found[job] = true;
    }
    for (const auto& [job, living] : found) {
      agent::ShimFound event{.job = job, .living = living};
      if (living) {
        agent_->links[job].connection = next_connection_++;
        ConnectShim(job);
      } else {
        event.ranks = RanksOf(state_files_[job]);
      }
      Deliver(event);
    }
    agent_->scanned = true;
    CheckScanned();
  });
}

void NodeHost::CheckScanned() {
  if (agent_ == nullptr || !agent_->scanned) {
    return;
  }
  for (const auto& [job, shim] : agent_->links) {
    if (!shim.said_hello) {
      return;
    }
  }
  agent_->scanned = false;
  Deliver(agent::ShimsScanned{});
}

void NodeHost::LaterInAgent(Duration delay, std::function<void()> action) {
  deps_.world.queue.After(delay, [this, life = agent_life_, action = std::move(action)] {
    if (life == agent_life_ && agent_ != nullptr) {
      action();
    }
  });
}

void NodeHost::KillAgent() {
  if (agent_ == nullptr) {
    wants_agent_ = false;
    ++agent_life_;
    return;
  }
  deps_.world.Say(fmt::format("host {} agent dies", index_));
  EndAgentProcess();
}

void NodeHost::EndAgentProcess() {
  wants_agent_ = false;
  frozen_ = false;
  ++agent_life_;
  const std::unique_ptr<AgentProcess> ending = std::move(agent_);
  deps_.network.CloseFromAgent(ending->stream);
  for (const auto& [job, link] : ending->links) {
    deps_.world.queue.After(random_.Between(kSocketDelayMin, kSocketDelayMax),
                            [this, job = job, connection = link.connection] {
                              if (const auto shim = shims_.find(job); shim != shims_.end()) {
                                shim->second->AgentDrops(connection);
                              }
                            });
  }
}

void NodeHost::FreezeAgent() {
  if (agent_ != nullptr && !frozen_) {
    deps_.world.Say(fmt::format("host {} agent stalls", index_));
    frozen_ = true;
  }
}

void NodeHost::ThawAgent() {
  if (agent_ == nullptr || !frozen_) {
    return;
  }
  deps_.world.Say(fmt::format("host {} agent goes on", index_));
  frozen_ = false;
  while (agent_ != nullptr && !frozen_ && !agent_->frozen_events.empty()) {
    const agent::Event event = std::move(agent_->frozen_events.front());
    agent_->frozen_events.pop_front();
    Deliver(event);
  }
}

void NodeHost::StopAgent(const std::string& why) {
  if (agent_ != nullptr) {
    Deliver(agent::Stop{why});
  }
}

void NodeHost::Deliver(const agent::Event& event) {
  if (agent_ == nullptr) {
    return;
  }
  if (frozen_) {
    agent_->frozen_events.push_back(event);
    return;
  }
  deps_.world.Say(fmt::format("host {} agent: {}", index_, Describe(event)));
  const std::uint64_t life = agent_life_;
  for (const agent::Effect& effect : agent_->machine.On(event, clock_.Read(deps_.world.queue.now()))) {
    CarryOut(effect);
    if (life != agent_life_ || agent_ == nullptr) {
      return;
    }
  }
  ScheduleAlarm();
}

std::vector<agent::DeviceFacts> NodeHost::LookAtDevices() const {
  std::vector<agent::DeviceFacts> facts(static_cast<std::size_t>(shape_.gpus));
  const auto hold = [&](const std::vector<std::string>& devices, const agent::DeviceHolder& holder) {
    for (std::uint32_t i = 0; i < facts.size(); ++i) {
      if (std::find(devices.begin(), devices.end(), SimulatedGpuId(i)) != devices.end()) {
        facts[i].holders.push_back(holder);
      }
    }
  };
  for (const std::uint64_t number : deps_.processes.Living()) {
    const Process& process = deps_.processes.Get(number);
    if (process.host == index_) {
      hold(process.devices, {process.pid, "rank", link::RankKey{process.job, process.attempt, process.rank}});
    }
  }
  for (const Processes::Leftover& leftover : deps_.processes.Leftovers(deps_.world.queue.now())) {
    if (leftover.host == index_) {
      hold(leftover.devices, {1, "leftover", std::nullopt});
    }
  }
  return facts;
}

void NodeHost::ScheduleAlarm() {
  const std::optional<SteadyTime> deadline = agent_->machine.NextDeadline();
  agent_->alarm.Set(deadline ? std::optional(clock_.ToSim(*deadline)) : std::nullopt);
}

void NodeHost::CarryOut(const agent::Effect& effect) {
  std::visit(Overloaded{
                 [this](const agent::ConnectHead&) {
                   deps_.network.CloseFromAgent(agent_->stream);
                   agent_->stream = deps_.network.Connect(index_);
                 },
                 [this](const agent::CloseHead&) { deps_.network.CloseFromAgent(agent_->stream); },
                 [this](const agent::SendHead& send) { deps_.network.SendUp(agent_->stream, id_, send.message); },
                 [this](const agent::SpawnShim& spawn) { SpawnShim(spawn.job, spawn.agent_grace); },
                 [this](const agent::SendShim& send) { SendShim(send.job, send.message); },
                 [this](const agent::RemoveShim& remove) {
                   if (shims_.contains(remove.job)) {
                     throw Violation(
                         fmt::format("host {}: the agent removed the socket and state file of job {}, whose "
                                     "shim lives",
                                     index_, remove.job.value));
                   }
                   agent_->links.erase(remove.job);
                   state_files_.erase(remove.job);
                 },
                 [](const agent::WriteFile&) {},
                 [this](const agent::CheckPort& check) {
                   LaterInAgent(milliseconds(1), [this, key = check.key] {
                     Deliver(agent::PortChecked{key, !random_.Chance(port_taken_)});
                   });
                 },
                 [this](const agent::PrepareWorkDir& prepare) {
                   LaterInAgent(random_.Between(milliseconds(1), seconds(2)), [this, job = prepare.job] {
                     Deliver(agent::WorkDirPrepared{job, absl::OkStatus()});
                   });
                 },
                 [this](const agent::LookAtDevices& look) {
                   LaterInAgent(random_.Between(milliseconds(1), seconds(1)), [this, number = look.look] {
                     Deliver(agent::DevicesLooked{number, LookAtDevices()});
                   });
                 },
                 [](const agent::OutputWanted&) {},
                 [](const agent::OutputUnwanted&) {},
                 [](const agent::OutputEnded&) {},
                 [this](const agent::Exit& exit) {
                   deps_.world.Say(fmt::format("host {} agent exits {}: {}", index_, exit.code, exit.why));
                   exit_code_ = exit.code;
                   EndAgentProcess();
                 },
             },
             effect);
}

// ---- Shims.

void NodeHost::SpawnShim(JobId job, Duration agent_grace) {
  agent_->links[job] = {.connection = next_connection_++};
  LaterInAgent(random_.Between(milliseconds(1), milliseconds(20)), [this, job, agent_grace] {
    if (!shims_.contains(job)) {
      state_files_[job];  // The header is written before anything else.
      shims_[job] = std::make_unique<ShimHost>(
          ShimHost::Deps{
              .world = deps_.world,
              .processes = deps_.processes,
              .watcher = deps_.watcher,
              .clock = clock_,
              .write_state = [this, job](const local::ShimStateRecord& record) { state_files_[job].push_back(record); },
              .next_pid = [this] { return next_pid_++; },
              .to_agent = [this, job](const local::ShimToAgent& message) { FromShim(job, message); },
              .exited = [this, job](bool remove_state) { ShimEnded(job, remove_state); },
          },
          index_, job, agent_grace);
    }
    ConnectShim(job);
  });
}

void NodeHost::ConnectShim(JobId job) {
  LaterInAgent(random_.Between(kSocketDelayMin, kSocketDelayMax), [this, job] {
    const auto link = agent_->links.find(job);
    const auto shim = shims_.find(job);
    if (link == agent_->links.end()) {
      return;
    }
    if (shim == shims_.end() || shim->second->exited()) {
      TellShimClosed(job, link->second.connection, "its socket is gone");
      return;
    }
    link->second.open = true;
    shim->second->AgentConnects(link->second.connection);
    for (const local::AgentToShim& message : std::exchange(link->second.waiting, {})) {
      SendShim(job, message);
    }
  });
}

void NodeHost::SendShim(JobId job, const local::AgentToShim& message) {
  const auto found = agent_->links.find(job);
  if (found == agent_->links.end()) {
    return;
  }
  ShimLink& link = found->second;
  if (!link.open) {
    link.waiting.push_back(message);
    return;
  }
  const SimTime now = deps_.world.queue.now();
  link.last_down = std::max(link.last_down, now + random_.Between(kSocketDelayMin, kSocketDelayMax));
  // What was written reaches the shim even when the agent dies in between.
  deps_.world.queue.After(link.last_down - now, [this, job, connection = link.connection, message] {
    if (const auto shim = shims_.find(job); shim != shims_.end()) {
      shim->second->FromAgent(connection, message);
    }
  });
}

void NodeHost::FromShim(JobId job, const local::ShimToAgent& message) {
  const auto shim = shims_.find(job);
  if (agent_ == nullptr || shim == shims_.end()) {
    return;
  }
  const auto found = agent_->links.find(job);
  if (found == agent_->links.end() || found->second.connection != shim->second->connection()) {
    return;
  }
  ShimLink& link = found->second;
  const SimTime now = deps_.world.queue.now();
  link.last_up = std::max(link.last_up, now + random_.Between(kSocketDelayMin, kSocketDelayMax));
  LaterInAgent(link.last_up - now, [this, job, connection = link.connection, message] {
    const auto live = agent_->links.find(job);
    if (live == agent_->links.end() || live->second.connection != connection) {
      return;
    }
    live->second.said_hello = live->second.said_hello || message.has_hello();
    Deliver(agent::ShimMessage{job, message});
    CheckScanned();
  });
}

void NodeHost::ShimEnded(JobId job, bool remove_state) {
  const auto found = shims_.find(job);
  if (found == shims_.end()) {
    return;
  }
  const std::uint64_t connection = found->second->connection();
  buried_.push_back(std::move(found->second));
  shims_.erase(found);
  if (remove_state) {
    state_files_.erase(job);
  }
  TellShimClosed(job, connection, "the shim has ended");
}

void NodeHost::TellShimClosed(JobId job, std::uint64_t connection, const std::string& why) {
  if (agent_ == nullptr) {
    return;
  }
  const auto link = agent_->links.find(job);
  if (link == agent_->links.end() || link->second.connection != connection) {
    return;
  }
  const SimTime now = deps_.world.queue.now();
  const SimTime at = std::max(link->second.last_up, now + random_.Between(kSocketDelayMin, kSocketDelayMax));
  LaterInAgent(at - now, [this, job, connection, why] {
    const auto live = agent_->links.find(job);
    if (live == agent_->links.end() || live->second.connection != connection) {
      return;
    }
    agent_->links.erase(live);
    const auto file = state_files_.find(job);
    Deliver(agent::ShimClosed{
        job, file == state_files_.end() ? std::vector<local::RankStatus>() : RanksOf(file->second), why});
    CheckScanned();
  });
}

void NodeHost::KillShim(JobId job) {
  const auto found = shims_.find(job);
  if (found == shims_.end()) {
    return;
  }
  deps_.world.Say(fmt::format("host {} shim {} dies", index_, job.value));
  found->second->Die();
  ShimEnded(job, false);
}

void NodeHost::FreezeShim(JobId job) {
  if (const auto found = shims_.find(job); found != shims_.end()) {
    found->second->Freeze();
  }
}

void NodeHost::ThawShim(JobId job) {
  if (const auto found = shims_.find(job); found != shims_.end()) {
    found->second->Thaw();
  }
}

bool NodeHost::SignalRank(std::uint64_t process, int signal) {
  for (auto& [job, shim] : shims_) {
    if (shim->Owns(process)) {
      shim->SignalRank(process, signal, true);
      return true;
    }
  }
  return false;
}

void NodeHost::EndRank(std::uint64_t process, std::int32_t exit_code, const std::string& last_output) {
  for (auto& [job, shim] : shims_) {
    if (shim->Owns(process)) {
      shim->EndRank(process, exit_code, 0, last_output);
      return;
    }
  }
}

std::vector<JobId> NodeHost::LivingShims() const {
  std::vector<JobId> jobs;
  for (const auto& [job, shim] : shims_) {
    jobs.push_back(job);
  }
  return jobs;
}

std::vector<link::RankFacts> NodeHost::Ranks() const {
  return agent_ == nullptr ? std::vector<link::RankFacts>() : agent_->machine.Ranks();
}

// ---- The stream to the head.

void NodeHost::OnHeadConnected(StreamId stream) {
  if (agent_ != nullptr && agent_->stream == stream) {
    Deliver(agent::HeadConnected{});
  }
}

void NodeHost::OnHeadMessage(StreamId stream, link::HeadToAgent message) {
  if (agent_ != nullptr && agent_->stream == stream) {
    Deliver(agent::HeadMessage{std::move(message)});
  }
}

void NodeHost::OnHeadClosed(StreamId stream, absl::Status why) {
  if (agent_ != nullptr && agent_->stream == stream) {
    Deliver(agent::HeadClosed{std::move(why)});
  }
}

}  // namespace rayctl::sim
