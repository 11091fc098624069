#include "daemon/agent/agent_daemon.h"

#include <grpc/grpc.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "base/clock.h"
#include "base/startup_memory.h"
#include "base/status_text.h"
#include "daemon/agent/agent.h"
#include "daemon/agent/device_watcher.h"
#include "daemon/agent/head_link.h"
#include "daemon/agent/identity_store.h"
#include "daemon/agent/job_folders.h"
#include "daemon/agent/log_keeper.h"
#include "daemon/agent/output_sender.h"
#include "daemon/agent/private_cluster.h"
#include "daemon/agent/runtime_files.h"
#include "daemon/agent/shim_link.h"
#include "daemon/agent/working_dirs.h"
#include "daemon/net/client_watch.h"
#include "daemon/net/kept_file.h"
#include "daemon/net/notify.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"
#include "worker/process/cgroups.h"
#include "worker/process/proc.h"

namespace rayctl::agent {
namespace {

namespace asio = boost::asio;

constexpr int kMallocArenas = 2;  // One loop thread and few of gRPC: more arenas only hold memory.

// The first refusal may only mean that the saved certificate is of an older cluster.
constexpr int kRefusalsMax = 2;
// What is still open ends within this, a Join on its way included, or the process goes without it.
constexpr std::chrono::seconds kEndPatience{10};
// A driver that has not woken its devices by then is left alone. `rayctl start` waits longer.
constexpr std::chrono::seconds kDriverPatience{20};

bool IsRefusal(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

// The file by which `stop` and others find this process. It goes when all else has ended, for who does not find it
// takes the process for gone.
struct Advertised {
  explicit Advertised(std::string file) : path(std::move(file)) {}
  ~Advertised() { Withdraw(); }
  Advertised(const Advertised&) = delete;
  Advertised& operator=(const Advertised&) = delete;

  void Withdraw() {
    std::error_code error;
    if (std::exchange(present, false) && !std::filesystem::remove(path, error) && error) {
      spdlog::warn("file left behind path={} why={}", path, error.message());
    }
  }

  const std::string path;
  bool present = false;
};

// Delivers events to the machine and carries out its effects. One thread.
class AgentDaemon {
 public:
  AgentDaemon(const AgentOptions& options, link::Register registration, NodeDevices devices, ReadyPipe& ready,
              Advertised& advertised)
      : options_(options),
        ready_(ready),
        advertised_(advertised),
        work_(loop_.get_executor()),
        signals_(loop_, SIGINT, SIGTERM),
        deadline_(loop_),
        start_deadline_(loop_),
        kept_(loop_, advertised.path, [](const absl::Status& made) { NoteLoss(made); }),
        client_(loop_, options.client_fd,
                [this] {
                  Deliver(Stop{"the program that this cluster served has ended", /*at_once=*/true});
                }),
        cluster_(ClusterOf({options.state_dir, options.token_file, options.address, options.insecure})),
        agent_(MakeConfig(options, std::move(registration)), clock_.Read()),
        shims_(loop_, {options.state_dir, options.run_dir, options.shim_program},
               [this](Event event) { Deliver(std::move(event)); }),
        head_(loop_,
              {options.address, options.state_dir, options.token_file, options.node_name, options.version,
               options.node.is_head_node, options.insecure, cluster_},
              [this](Event event) { Deliver(std::move(event)); }),
        output_(loop_, options.state_dir, [this](const link::RankKey& key) { return IsLive(key); }),
        devices_(loop_, std::move(devices), options.run_dir, [this](Event event) { Deliver(std::move(event)); }),
        working_dirs_(loop_, options.state_dir, [this](Event event) { Deliver(std::move(event)); }),
        logs_(loop_, options.state_dir, {.bytes_max = options.logs_max.value_or(DefaultLogBytesMax(options.state_dir))},
              [this] { return agent_.registered() ? std::optional(agent_.LiveFrom()) : std::nullopt; }) {}

  int Run() {
    WaitForSignal();
    start_deadline_.expires_after(options_.start_timeout);
    start_deadline_.async_wait([this](boost::system::error_code error) {
      if (!error) {
        StartTimedOut();
      }
    });
    if (const absl::Status settled = SettleFolders(); settled.ok()) {
      shims_.Scan();
      logs_.Touch();
    } else {
      FailStart(Text(settled));
    }
    loop_.run();
    return exit_code_;
  }

 private:
  static AgentConfig MakeConfig(const AgentOptions& options, link::Register registration) {
    AgentConfig config;
    config.registration = std::move(registration);
    config.state_dir = options.state_dir;
    config.node_name = options.node_name;
    config.pid = ::getpid();
    config.seed = std::random_device()();
    config.pids_max = options.pids_max.value_or(DefaultPidsMax());
    config.base_env = InheritedEnvironment();
    return config;
  }

  static void NoteLoss(const absl::Status& made) {
    if (made.ok()) {
      spdlog::warn("somebody removed what others find this agent by; it was made again");
    } else {
      spdlog::error("others cannot find this agent any more why={}", Text(made));
    }
  }

  absl::Status SettleFolders() {
    if (cluster_.empty()) {
      return absl::OkStatus();
    }
    return SettleJobFolders(options_.state_dir, cluster_, [this] {
      // A wrong token must not end what runs.
      const absl::Status confirmed = head_.CheckCluster();
      return confirmed.ok() ? shims_.EndFound() : confirmed;
    });
  }

  void WaitForSignal() {
    signals_.async_wait([this](boost::system::error_code error, int signal) {
      if (error) {
        return;
      }
      if (signal == SIGTERM) {
        spdlog::info("agent ends and leaves its ranks running");
        End(0);
        return;
      }
      Deliver(Stop{"rayctl stop on this node"});
      WaitForSignal();
    });
  }

  void Deliver(Event event) {
    if (ending_) {
      return;
    }
    events_.push_back(std::move(event));
    if (delivering_) {
      return;  // By the loop below, after what is being carried out.
    }
    delivering_ = true;
    while (!events_.empty() && !ending_) {
      const Event next = std::move(events_.front());
      events_.pop_front();
      Observe(next);
      for (const Effect& effect : agent_.On(next, clock_.Read())) {
        std::visit([this](const auto& what) { Carry(what); }, effect);
      }
      if (agent_.registered()) {
        BecomeReady("");
      }
      working_dirs_.SetHead(agent_.registered() ? head_.channel() : nullptr, InsecureNode());
    }
    delivering_ = false;
    ArmDeadline();
  }

  void Observe(const Event& event) {
    if (const auto* closed = std::get_if<HeadClosed>(&event)) {
      spdlog::warn("head away why={}", Text(closed->why));
      output_.CloseAll();  // Transfers belong to the stream that ordered them.
      last_failure_ = closed->why;
      if (IsRefusal(closed->why) && ++refusals_ >= kRefusalsMax && !ready_once_) {
        FailStart(Text(closed->why));
      }
    }
  }

  void ArmDeadline() {
    const std::optional<SteadyTime> next = agent_.NextDeadline();
    if (ending_) {
      return;  // The timer bounds the end now.
    }
    if (!next) {
      deadline_.cancel();
      return;
    }
    deadline_.expires_at(*next);
    deadline_.async_wait([this](boost::system::error_code error) {
      if (!error) {
        Deliver(Tick{});
      }
    });
  }

  // ---- The start.
  void BecomeReady(const std::string& remark) {
    if (ready_once_ || !head_.identity()) {
      return;
    }
    ready_once_ = true;
    start_deadline_.cancel();
    const Identity& identity = *head_.identity();
    spdlog::info("ready node={} name={} head={}", identity.node_id, identity.node_name, options_.address);
    const nlohmann::ordered_json file = {{"pid", ::getpid()},
                                         {"start_ticks", process::StartTicks(::getpid())},
                                         {"address", options_.address},
                                         {"dashboard_url", ""},
                                         {"state_dir", options_.state_dir},
                                         {"node_id", identity.node_id},
                                         {"node_name", identity.node_name},
                                         {"version", options_.version},
                                         {"insecure", options_.insecure},
                                         {"private", options_.client_fd >= 0}};
    if (const absl::Status status = kept_.Keep(file.dump() + "\n"); !status.ok()) {
      FailStart(Text(status));
      return;
    }
    advertised_.present = true;
    nlohmann::ordered_json line = {
        {"ok", true},          {"address", options_.address}, {"port", 0},
        {"dashboard_url", ""}, {"node_id", identity.node_id}, {"node_name", identity.node_name}};
    if (!remark.empty()) {
      line["remark"] = remark;
    }
    ReleaseStartupMemory();
    Notify("READY=1");
    ready_.Say(line);
  }

  void StartTimedOut() {
    const std::string why =
        fmt::format("head unreachable at {}: {}", options_.address,
                    last_failure_.ok() ? "it does not answer the registration" : Text(last_failure_));
    const std::vector<link::RankFacts> ranks = agent_.Ranks();
    const bool keeps_ranks = std::any_of(
        ranks.begin(), ranks.end(), [](const link::RankFacts& facts) { return facts.state != WorkerState::kExited; });
    if (keeps_ranks && head_.identity()) {
      BecomeReady(why + "; the ranks here go on");
      return;
    }
    FailStart(why);
  }

  void FailStart(const std::string& why) {
    spdlog::error("start failed why={}", why);
    ready_.Say({{"ok", false}, {"error", why}});
    End(1);
  }

  // ---- Effects.
  void Carry(const ConnectHead&) { head_.Connect(); }
  void Carry(const CloseHead& close) {
    output_.CloseAll();
    head_.Close(close.why);
  }
  void Carry(const SendHead& send) { head_.Send(send.message); }
  void Carry(const SpawnShim& spawn) {
    logs_.Touch();
    shims_.Spawn(spawn);
  }
  void Carry(const SendShim& send) { shims_.Send(send); }
  void Carry(const RemoveShim& remove) { shims_.Remove(remove.job); }
  void Carry(const WriteFile& write) {
    if (const absl::Status status = WriteFileWhole(write.path, write.contents); !status.ok()) {
      spdlog::error("file not written path={} why={}", write.path, Text(status));
    }
  }
  void Carry(const CheckPort& check) { Deliver(PortChecked{check.key, PortIsFree(check.port)}); }
  void Carry(const OutputWanted& wanted) { output_.Open(wanted.what, head_.channel(), InsecureNode()); }
  void Carry(const LookAtDevices& look) { devices_.Look(look); }
  void Carry(const PrepareWorkDir& prepare) { working_dirs_.Prepare(prepare); }
  void Carry(const OutputUnwanted& unwanted) { output_.Close(unwanted.transfer); }
  void Carry(const OutputEnded& ended) {
    output_.RankEnded(ended.key);
    logs_.Touch();
  }
  void Carry(const Exit& exit) {
    spdlog::info("agent ends code={} why={}", exit.code, exit.why);
    if (exit.code != 0) {
      shims_.KillAll();
    }
    if (!ready_once_) {
      ready_.Say({{"ok", false}, {"error", "stopped before it was ready: " + exit.why}});
    }
    End(exit.code);
  }

  // Who this node says it is to a head without certificates; 0 for one with.
  std::uint64_t InsecureNode() const { return options_.insecure && head_.identity() ? head_.identity()->node_id : 0; }

  bool IsLive(const link::RankKey& key) const {
    const std::vector<link::RankFacts> ranks = agent_.Ranks();
    return std::any_of(ranks.begin(), ranks.end(), [&key](const link::RankFacts& facts) {
      return facts.key == key && facts.state != WorkerState::kExited;
    });
  }

  void Notify(std::string_view state) const {
    if (const absl::Status told = net::Notify(options_.notify_socket, state); !told.ok()) {
      spdlog::warn("service manager not told why={}", Text(told));
    }
  }

  // ---- The end.
  void End(int code) {
    if (ending_) {
      return;
    }
    ending_ = true;
    exit_code_ = code;
    Notify("STOPPING=1");
    signals_.cancel();
    start_deadline_.cancel();
    kept_.LetGo();
    deadline_.expires_after(kEndPatience);
    deadline_.async_wait([this, code](boost::system::error_code error) {
      if (!error) {
        spdlog::warn("calls are still open at the end");
        advertised_.Withdraw();
        std::_Exit(code);
      }
    });
    output_.Finish([this] { head_.Finish([this] { loop_.stop(); }); });
  }

  const AgentOptions& options_;
  ReadyPipe& ready_;
  Advertised& advertised_;
  const SystemClock clock_;
  asio::io_context loop_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  asio::signal_set signals_;
  asio::steady_timer deadline_;
  asio::steady_timer start_deadline_;
  net::KeptFile kept_;
  net::ClientWatch client_;
  const std::string cluster_;  // Its jobs are here; another one's only after the next start.
  Agent agent_;
  ShimLink shims_;
  HeadLink head_;
  OutputSender output_;
  DeviceWatcher devices_;
  WorkingDirs working_dirs_;
  LogKeeper logs_;

  std::deque<Event> events_;
  bool delivering_ = false;
  bool ready_once_ = false;
  bool ending_ = false;
  int refusals_ = 0;
  int exit_code_ = 0;
  absl::Status last_failure_;
};

// Between one channel and the next gRPC would end its threads and make them anew.
struct GrpcHold {
  GrpcHold() { ::grpc_init(); }
  ~GrpcHold() { ::grpc_shutdown(); }
  GrpcHold(const GrpcHold&) = delete;
  GrpcHold& operator=(const GrpcHold&) = delete;
};

}  // namespace

int RunAgent(const AgentOptions& options) {
  ::mallopt(M_ARENA_MAX, kMallocArenas);
  Advertised advertised(options.run_dir + "/agent.json");
  const GrpcHold grpc;
  ReadyPipe ready(options.ready_fd);
  const auto refuse = [&ready](const absl::Status& status) {
    spdlog::error("start failed why={}", Text(status));
    ready.Say({{"ok", false}, {"error", Text(status)}});
    return 1;
  };
  RaiseDescriptorLimit();
  // A head or a shim that goes away is an error of the write, not the end of this process.
  std::signal(SIGPIPE, SIG_IGN);
  const absl::StatusOr<UniqueFd> lock = LockStateFolder(options.state_dir);
  if (!lock.ok()) {
    return refuse(lock.status());
  }
  if (const absl::Status status = net::MakeRuntimeFolder(options.run_dir); !status.ok()) {
    return refuse(status);
  }
  // Before the node is described, which says what is not limited.
  if (const absl::Status status = process::HandOnControllers(process::ReadCgroupLayout()); !status.ok()) {
    spdlog::warn("no cgroup controllers for jobs why={}", Text(status));
  }
  const std::vector<std::string> environment = InheritedEnvironment();
  NodeDevices devices = FindDevices({.root = {}, .environment = environment}, environment, kDriverPatience);
  absl::StatusOr<link::Register> registration = DescribeNode(options.node, options.version, devices);
  if (!registration.ok()) {
    return refuse(registration.status());
  }
  if (options.client_fd < 0) {
    return AgentDaemon(options, *std::move(registration), std::move(devices), ready, advertised).Run();
  }
  const UniqueFd head = HeadBeside(options.run_dir);
  const int code = AgentDaemon(options, *std::move(registration), std::move(devices), ready, advertised).Run();
  RemovePrivateCluster(head, options.state_dir, options.run_dir);
  return code;
}

}  // namespace rayctl::agent
