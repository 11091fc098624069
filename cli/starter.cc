#include "cli/starter.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/json_text.h"
#include "base/status_text.h"
#include "base/whole_files.h"
#include "cli/call.h"
#include "cli/daemon_process.h"
#include "cli/output.h"
#include "cli/pairs.h"
#include "cli/places.h"
#include "cli/stop.h"
#include "cli/verbs.h"
#include "client/token.h"

namespace rayctl::cli {
namespace {

constexpr std::chrono::seconds kUndoPatience{10};

// Readable at SIGINT, SIGTERM or SIGHUP, which no longer end this program.
UniqueFd CatchInterrupts() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    ::sigaddset(&signals, signal);
  }
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  return UniqueFd(::signalfd(-1, &signals, SFD_CLOEXEC));
}

std::string ShimPath() { return (std::filesystem::path(OwnPath()).parent_path() / "rayctl-shim").string(); }

}  // namespace

int StartFailed(const absl::Status& status) {
  Remark(rayctl::Text(status));
  return absl::IsCancelled(status) ? kExitInterrupted : kExitRefused;
}

Starter::Starter(StartOptions options, client::EndpointSettings settings)
    : options_(std::move(options)), settings_(std::move(settings)), interrupt_(CatchInterrupts()) {}

int Starter::Run() {
  absl::Status status = Prepare();
  if (status.ok() && !options_.become.empty()) {
    status = Become();
  } else if (status.ok()) {
    status = StartWhatIsMissing();
  }
  if (!status.ok()) {
    return StartFailed(status);
  }
  if (is_head_node_) {
    Remember();
  }
  Announce();
  lock_.Reset();
  return options_.block ? Block() : kExitDone;
}

absl::Status Starter::Start() {
  absl::Status status = Prepare();
  if (status.ok()) {
    status = StartWhatIsMissing();
  }
  lock_.Reset();
  return status;
}

absl::Status Starter::StartWhatIsMissing() {
  absl::Status status = is_head_node_ && head_.pid < 0 ? StartHead() : absl::OkStatus();
  if (status.ok() && agent_.pid < 0) {
    status = StartAgent();
  }
  if (!status.ok()) {
    // A head without an agent is no cluster: leave nothing half started.
    for (DaemonProcess* const process : {&agent_, &head_}) {
      if (process->is_child) {
        EndProcess(process->pidfd.get(), SIGINT, kUndoPatience);
      }
    }
    RemoveEmptyRunDir();
  }
  return status;
}

absl::Status Starter::Prepare() {
  if (options_.node_name.empty()) {
    options_.node_name = HostName();
  }
  is_head_node_ = options_.head;
  std::string wanted = options_.state_dir;
  if (const char* const named = std::getenv("RAYCTL_STATE_DIR"); wanted.empty() && named != nullptr) {
    wanted = named;
  }
  if (wanted.empty() && !options_.head) {
    wanted = StateDirOfOwnHead();
  }
  if (wanted.empty()) {
    wanted = DefaultStateDir(settings_.home, options_.head ? fmt::format("{}-{}", options_.node_name, options_.port)
                                                           : options_.node_name + "-agent");
  }
  if (absl::Status status = OpenFolders(wanted); !status.ok()) {
    return status;
  }
  if (options_.fresh) {
    if (head_.pid > 0 || agent_.pid > 0) {
      return absl::FailedPreconditionError(AlreadyRunning());
    }
    const absl::StatusOr<std::string> aside = MoveAside(state_dir_);
    if (!aside.ok()) {
      return aside.status();
    }
    Remark(fmt::format("the state of before is in {}", *aside));
    if (absl::Status status = OpenFolders(state_dir_); !status.ok()) {
      return status;
    }
  }
  if (agent_.pid > 0 && (head_.pid > 0 || !is_head_node_)) {
    return absl::FailedPreconditionError(AlreadyRunning());
  }
  if (::access(ShimPath().c_str(), X_OK) != 0) {
    const std::string why = std::strerror(errno);
    RemoveEmptyRunDir();
    return absl::FailedPreconditionError(
        fmt::format("{}: {}; rayctl-shim has to be beside rayctl, as they are built and installed", ShimPath(), why));
  }
  return absl::OkStatus();
}

// Makes and locks the folders and looks who runs there.
absl::Status Starter::OpenFolders(const std::string& wanted) {
  absl::StatusOr<std::string> state_dir = MakeStateDir(wanted);
  if (!state_dir.ok()) {
    return state_dir.status();
  }
  state_dir_ = *std::move(state_dir);
  for (const char* const folder : {"log", "agent"}) {
    const std::string path = fmt::format("{}/{}", state_dir_, folder);
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
      return absl::InternalError(fmt::format("making {}: {}", path, std::strerror(errno)));
    }
  }
  lock_.Reset();
  absl::StatusOr<RunDirLock> run_dir = MakeRunDir(settings_.runtime_root, state_dir_);
  if (!run_dir.ok()) {
    return run_dir.status();
  }
  run_dir_ = std::move(run_dir->path);
  lock_ = std::move(run_dir->lock);
  for (const client::RunningDaemon& daemon : client::LookAround(settings_).daemons) {
    if (daemon.run_dir != run_dir_) {
      continue;
    }
    DaemonProcess& process = daemon.is_head ? head_ : agent_;
    process.verb = daemon.is_head ? "head" : "agent";
    process.pid = static_cast<pid_t>(daemon.pid);
    process.pidfd = OpenPidfd(process.pid);
    process.ready = {daemon.address, daemon.local_address, daemon.dashboard_url, daemon.node_id, daemon.node_name};
    if (daemon.is_head) {
      head_local_address_ = daemon.local_address.empty() ? daemon.address : daemon.local_address;
      options_.insecure = options_.insecure || daemon.insecure;
    }
  }
  return absl::OkStatus();
}

// `start --address` of a head on this machine, whose own agent is away, means that agent.
std::string Starter::StateDirOfOwnHead() {
  const std::vector<client::RunningDaemon> daemons = client::LookAround(settings_).daemons;
  for (const client::RunningDaemon& head : daemons) {
    const bool has_agent = std::any_of(daemons.begin(), daemons.end(), [&](const client::RunningDaemon& other) {
      return !other.is_head && other.run_dir == head.run_dir;
    });
    if (head.is_head && !has_agent && (head.address == options_.address || head.local_address == options_.address)) {
      is_head_node_ = true;
      return head.state_dir;
    }
  }
  return {};
}

// Goes on as the daemon itself; comes back only when it cannot.
absl::Status Starter::Become() {
  const bool is_head = options_.become == "head";
  if ((is_head ? head_ : agent_).pid > 0) {
    return absl::FailedPreconditionError(AlreadyRunning());
  }
  if (!is_head && is_head_node_ && head_.pid < 0) {
    return absl::FailedPreconditionError(
        fmt::format("the head on {} does not run yet, and its agent needs it", state_dir_));
  }
  absl::StatusOr<std::vector<std::string>> arguments = is_head ? HeadArguments() : AgentArguments();
  if (!arguments.ok()) {
    return arguments.status();
  }
  std::vector<std::string> words{OwnPath(), options_.become};
  words.insert(words.end(), arguments->begin(), arguments->end());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  std::signal(SIGPIPE, SIG_DFL);  // Ignored signals outlast an exec.
  ::execv("/proc/self/exe", argv.data());
  return absl::InternalError(fmt::format("becoming the {}: {}", options_.become, std::strerror(errno)));
}

std::vector<std::string> Starter::HeadArguments() const {
  std::vector<std::string> arguments{"--state-dir",      state_dir_,
                                     "--run-dir",        run_dir_,
                                     "--port",           std::to_string(options_.port),
                                     "--dashboard-host", options_.dashboard_host,
                                     "--dashboard-port", std::to_string(options_.dashboard_port)};
  const std::string host = options_.host.empty() && options_.insecure ? "127.0.0.1" : options_.host;
  if (!host.empty()) {
    arguments.insert(arguments.end(), {"--host", host});
  }
  if (!options_.node_ip_address.empty()) {
    arguments.insert(arguments.end(), {"--node-ip-address", options_.node_ip_address});
  }
  if (options_.insecure) {
    arguments.emplace_back("--insecure");
  }
  return arguments;
}

// What a daemon inherits to see when this process ends.
absl::StatusOr<int> Starter::ClientFd() {
  if (!options_.is_private) {
    return -1;
  }
  if (!self_.valid()) {
    self_ = OpenPidfd(::getpid());
  }
  return self_.valid() ? absl::StatusOr<int>(self_.get())
                       : absl::InternalError(fmt::format("watching this process: {}", std::strerror(errno)));
}

absl::StatusOr<DaemonProcess> Starter::StartOne(const std::string& verb, const std::vector<std::string>& arguments) {
  const absl::StatusOr<int> client_fd = ClientFd();
  return client_fd.ok() ? StartDaemon(verb, arguments, fmt::format("{}/log/{}.log", state_dir_, verb),
                                      {.interrupt_fd = interrupt_.get(), .client_fd = *client_fd})
                        : client_fd.status();
}

absl::Status Starter::StartHead() {
  absl::StatusOr<DaemonProcess> head = StartOne("head", HeadArguments());
  if (!head.ok()) {
    return head.status();
  }
  head_ = *std::move(head);
  // The agent beside it connects on the loopback where it can, which outlives a change of the machine's own address.
  head_local_address_ = head_.ready.local_address.empty() ? head_.ready.address : head_.ready.local_address;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> Starter::AgentArguments() {
  std::vector<std::string> arguments{"--state-dir", state_dir_,
                                     "--run-dir",   run_dir_,
                                     "--address",   is_head_node_ ? head_local_address_ : options_.address,
                                     "--node-name", options_.node_name};
  if (is_head_node_) {
    arguments.emplace_back("--head-node");
  }
  absl::StatusOr<std::string> token_file = AgentTokenFile();
  if (!token_file.ok()) {
    return token_file.status();
  }
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) {
      arguments.insert(arguments.end(), {name, value});
    }
  };
  add("--token-file", *token_file);
  add("--num-cpus", options_.num_cpus ? fmt::format("{}", *options_.num_cpus) : "");
  add("--num-gpus", options_.num_gpus ? fmt::format("{}", *options_.num_gpus) : "");
  add("--resources", options_.resources);
  add("--labels", options_.labels);
  add("--node-ip-address", options_.node_ip_address);
  add("--pids-max", options_.pids_max ? fmt::format("{}", *options_.pids_max) : "");
  add("--logs-max", options_.logs_max ? fmt::format("{}", *options_.logs_max) : "");
  if (options_.insecure) {
    arguments.emplace_back("--insecure");
  }
  add("--shim", ShimPath());
  return arguments;
}

absl::Status Starter::StartAgent() {
  absl::StatusOr<std::vector<std::string>> arguments = AgentArguments();
  if (!arguments.ok()) {
    return arguments.status();
  }
  absl::StatusOr<DaemonProcess> agent = StartOne("agent", *arguments);
  if (!agent.ok()) {
    return agent.status();
  }
  agent_ = *std::move(agent);
  return absl::OkStatus();
}

// Where the agent finds what lets it join; empty when it needs nothing.
absl::StatusOr<std::string> Starter::AgentTokenFile() {
  if (options_.insecure) {
    return std::string();
  }
  if (is_head_node_) {
    return JoinTokenFile();
  }
  if (!options_.token_file.empty()) {
    const absl::StatusOr<std::string> token = client::ReadTokenFile(options_.token_file);
    if (!token.ok()) {
      return token.status();
    }
    return std::filesystem::absolute(options_.token_file).string();
  }
  const std::string& token = !options_.token.empty() ? options_.token : settings_.env_token;
  if (!token.empty()) {
    if (const auto parsed = client::ParseToken(token); !parsed.ok()) {
      return absl::InvalidArgumentError(
          fmt::format("{}: {}", options_.token.empty() ? "RAYCTL_TOKEN" : "--token", rayctl::Text(parsed.status())));
    }
    // By a file, because the words of a command line are for everybody to read.
    const std::string path = state_dir_ + "/agent/join-token";
    if (absl::Status status = WriteWhole({{path, token + "\n"}}); !status.ok()) {
      return status;
    }
    return path;
  }
  if (::access((state_dir_ + "/agent/node.pem").c_str(), R_OK) == 0) {
    return std::string();  // It joined before and has its own certificate.
  }
  const absl::StatusOr<client::HostPort> at = client::SplitAddress(options_.address);
  if (at.ok()) {
    const std::string saved = fmt::format("{}/.rayctl/{}_{}/token", settings_.home, at->host, at->port);
    if (::access(saved.c_str(), R_OK) == 0) {
      return saved;
    }
  }
  return absl::UnauthenticatedError(
      fmt::format("joining {} wants a join token and there is none here; give it with --token-file, --token or "
                  "RAYCTL_TOKEN (`rayctl token create --role join` on the head's machine makes one)",
                  options_.address));
}

std::string Starter::JoinTokenFile() const { return state_dir_ + "/head/join-token"; }

// So that nobody on this machine or a shared home types a token.
void Starter::Remember() {
  if (options_.insecure || !head_.is_child) {
    return;
  }
  const absl::StatusOr<std::string> ca = ReadFile(state_dir_ + "/head/ca.pem");
  const absl::StatusOr<std::string> token = client::ReadTokenFile(state_dir_ + "/head/admin-token");
  absl::Status status = !ca.ok() ? ca.status() : token.status();
  if (status.ok()) {
    status = client::SaveCredentials(settings_.home, head_.ready.address, *ca, *token);
  }
  if (!status.ok()) {
    Remark(fmt::format("other machines of a shared home will need a token: {}", rayctl::Text(status)));
  }
}

void Starter::Announce() const {
  const std::string& address = is_head_node_ ? head_.ready.address : options_.address;
  const std::string token_file = is_head_node_ && !options_.insecure ? JoinTokenFile() : std::string();
  if (options_.format != Format::kText) {
    const auto text = [](const std::string& value) {
      return value.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(value);
    };
    AnswerObject({{"address", address},
                  {"dashboard_url", text(head_.ready.dashboard_url)},
                  {"token_file", text(token_file)},
                  {"state_dir", state_dir_},
                  {"node_id", agent_.ready.node_id}},
                 options_.format);
  } else if (is_head_node_) {
    Answer(fmt::format("address: {}\ndashboard: {}\njoin: rayctl start --address={}{}\n", address,
                       head_.ready.dashboard_url, address, token_file.empty() ? "" : " --token-file=" + token_file));
  } else {
    Answer(fmt::format("address: {}\nnode: {}\n", address,
                       agent_.ready.node_name.empty() ? options_.node_name : agent_.ready.node_name));
  }
}

// Stays until both daemons have ended, or ends them at Ctrl-C.
int Starter::Block() {
  while (true) {
    std::array<pollfd, 3> fds{
        {{interrupt_.get(), POLLIN, 0}, {head_.pidfd.get(), POLLIN, 0}, {agent_.pidfd.get(), POLLIN, 0}}};
    if (::poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) {
      Remark(fmt::format("waiting for the daemons: {}", std::strerror(errno)));
      return kExitRefused;
    }
    if (fds[0].revents != 0) {
      return StopDaemons(settings_, [this](const std::string& path) { return path == run_dir_; });
    }
    for (auto [process, fd] : {std::pair{&head_, &fds[1]}, std::pair{&agent_, &fds[2]}}) {
      if (fd->revents != 0) {
        WaitForEnd(process->pidfd.get(), std::chrono::milliseconds(0));  // Reaps it.
        process->pidfd.Reset();
        Remark(fmt::format("the {} has ended", process->verb));
      }
    }
    if (!head_.pidfd.valid() && !agent_.pidfd.valid()) {
      return kExitDone;
    }
  }
}

void Starter::RemoveEmptyRunDir() const {
  ::rmdir(run_dir_.c_str());
  ::rmdir(settings_.runtime_root.c_str());
}

std::string Starter::AlreadyRunning() const {
  std::string who;
  for (const DaemonProcess* const process : {&head_, &agent_}) {
    if (process->pid > 0) {
      who += fmt::format("{}{} (pid {})", who.empty() ? "" : " and ", process->verb, process->pid);
    }
  }
  return fmt::format("already running on {}: {}; `rayctl stop --state-dir {}` ends it", state_dir_, who, state_dir_);
}

}  // namespace rayctl::cli
