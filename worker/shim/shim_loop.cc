#include "worker/shim/shim_loop.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "base/units.h"
#include "worker/process/errors.h"
#include "worker/process/proc.h"
#include "worker/shim/checkpoint_copy.h"
#include "worker/shim/connection.h"
#include "worker/shim/event_loop.h"
#include "worker/shim/rank_process.h"
#include "worker/shim/shim.h"
#include "worker/shim/state_file.h"

namespace rayctl::shim {

namespace {

constexpr std::size_t kSocketPathMax = 100;
constexpr int kBacklog = 128;
constexpr std::size_t kRankConnectionsMax = 4096;
constexpr std::uint32_t kStateVersion = 1;
constexpr int kCopyPipe = 3;  // The only descriptor that a copying child keeps beside 0 to 2.

// First byte of what a copying child sends; the rest is a ReportSpooled with the files, or why not.
constexpr char kCopied = 'c';
constexpr char kCopyNoSpace = 's';
constexpr char kCopyFailed = 'f';

void Log(const std::string& text) {
  const std::string line = FormatTime(SystemClock().Read().wall) + " " + text + "\n";
  std::fputs(line.c_str(), stderr);
}

std::string Fields(const RankRef& rank) {
  return "group=" + std::to_string(rank.group) + " attempt=" + std::to_string(rank.attempt) +
         " rank=" + std::to_string(rank.rank);
}

absl::Status CheckFolder(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) < 0) {
    return process::ErrnoStatus("looking at " + path, errno);
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & 077U) != 0) {
    return absl::InvalidArgumentError(path + " must be a folder that only this user can enter (mode 0700)");
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> Listen(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() > kSocketPathMax) {
    return absl::InvalidArgumentError("the socket path " + path + " is longer than " + std::to_string(kSocketPathMax) +
                                      " bytes; choose a shorter --run-dir");
  }
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) {
    return process::ErrnoStatus("making a socket", errno);
  }
  // Whoever listened here is dead: the lock on the state file says so.
  if (::unlink(path.c_str()) < 0 && errno != ENOENT) {
    return process::ErrnoStatus("removing " + path, errno);
  }
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0 ||
      ::chmod(path.c_str(), 0600) < 0 || ::listen(fd.get(), kBacklog) < 0) {
    return process::ErrnoStatus("listening on " + path, errno);
  }
  return fd;
}

struct Copy {
  RankRef rank;
  std::uint64_t number = 0;
  std::string store_dir;
  UniqueFd pipe;
  std::string answer;
};

struct RankConnection {
  std::unique_ptr<Connection> connection;
  pid_t pid = 0;
  std::optional<RankRef> rank;  // Once welcomed.
};

class Loop final : public ShimLoop {
 public:
  explicit Loop(const ShimLoopOptions& options)
      : options_(options),
        agent_path_(options.run_dir + "/shim-" + std::to_string(options.job.value) + ".sock"),
        rank_path_(options.run_dir + "/rank-" + std::to_string(options.job.value) + ".sock"),
        job_dir_(options.state_dir + "/jobs/" + std::to_string(options.job.value)),
        machine_(Config(options), clock_.Read()) {}

  ~Loop() override {
    if (ours_) {
      ::unlink(agent_path_.c_str());
      ::unlink(rank_path_.c_str());
    }
  }

  absl::Status Prepare();
  absl::Status Run() override;

 private:
  struct Pending {
    Event event;
    std::uint64_t speaker = 0;  // The rank connection that a RankSaid came over.
  };

  static ShimConfig Config(const ShimLoopOptions& options) {
    ShimConfig config;
    config.job = options.job;
    config.pid = ::getpid();
    config.agent_grace = options.agent_grace;
    return config;
  }

  void Deliver(Event event, std::uint64_t speaker = 0) { pending_.push_back({std::move(event), speaker}); }
  void Drain();
  bool AttachSpeaker(RankSaid& said, std::uint64_t speaker);
  void ArmTimer();

  void Carry(const Spawn& effect);
  void Carry(const Kill& effect);
  void Carry(const SendAgent& effect);
  void Carry(const SendRank& effect);
  void Carry(const WriteState& effect);
  void Carry(const CopyCheckpoint& effect);
  void Carry(const CloseRankSocket& effect);
  void Carry(const Exit& effect);

  void AcceptAll(const UniqueFd& listener, void (Loop::*take)(UniqueFd, const ucred&));
  void TakePeer(UniqueFd socket, void (Loop::*take)(UniqueFd, const ucred&));
  void TakeAgent(UniqueFd socket, const ucred& peer);
  void TakeRank(UniqueFd socket, const ucred& peer);
  void AgentMessage(const std::string& bytes);
  void RankMessage(std::uint64_t id, const std::string& bytes);
  void RankClosed(std::uint64_t id);
  std::optional<RankRef> RankOfProcess(pid_t pid) const;
  void RefuseRank(RankConnection& peer, const local::RankId& id, local::RefusalCode code, const std::string& why);
  // Connections end inside their own handlers, so they are deleted later.
  void Bury(std::unique_ptr<Connection> connection) { graveyard_.push_back(std::move(connection)); }

  void Signals();
  void ReapOrphans();
  // Kills what an ended rank left behind. Returns the ended ranks that still have something.
  std::set<RankRef> Sweep();
  void Settle();
  std::string Mark(const RankRef& rank) const {
    return std::to_string(::getpid()) + "." + std::to_string(rank.group) + "." + std::to_string(rank.attempt) + "." +
           std::to_string(rank.rank);
  }
  void CopyReadable(pid_t pid);
  void KillEverything();

  const ShimLoopOptions options_;
  const std::string agent_path_;
  const std::string rank_path_;
  const std::string job_dir_;
  SystemClock clock_;
  EventLoop loop_;
  Shim machine_;
  std::optional<StateFile> state_;
  bool ours_ = false;  // The sockets' names.
  bool state_failing_ = false;
  UniqueFd signals_;
  UniqueFd agent_listener_;
  UniqueFd rank_listener_;
  UniqueFd reserve_;  // Given up for a moment to turn a connection away when there are no descriptors left.
  std::unique_ptr<Connection> agent_;
  std::map<std::uint64_t, RankConnection> rank_connections_;
  std::map<RankRef, std::uint64_t> connection_of_rank_;
  std::uint64_t next_connection_ = 1;
  std::vector<std::unique_ptr<Connection>> graveyard_;
  std::map<RankRef, std::unique_ptr<RankProcess>> processes_;
  std::vector<std::unique_ptr<RankProcess>> ended_processes_;
  std::map<pid_t, Copy> copies_;
  std::deque<Pending> pending_;
  std::uint64_t speaker_ = 0;  // While effects of a hello are carried out: the connection that it came over.
  bool settle_ = false;        // Something about an ended rank may have changed.
  bool terminating_ = false;
  std::optional<Exit> exit_;
};

absl::Status Loop::Prepare() {
  if (absl::Status checked = CheckFolder(options_.run_dir); !checked.ok()) {
    return checked;
  }
  local::ShimStateHeader header;
  header.set_version(kStateVersion);
  header.set_shim_pid(::getpid());
  header.set_shim_start_ticks(process::StartTicks(::getpid()));
  header.set_job_id(options_.job.value);
  header.set_boot_id(process::BootId());
  absl::StatusOr<StateFile> state = StateFile::Create(job_dir_ + "/shim.state", header);
  if (!state.ok()) {
    return state.status();
  }
  state_ = *std::move(state);
  ours_ = true;
  absl::StatusOr<UniqueFd> agents = Listen(agent_path_);
  if (!agents.ok()) {
    return agents.status();
  }
  agent_listener_ = *std::move(agents);
  absl::StatusOr<UniqueFd> ranks = Listen(rank_path_);
  if (!ranks.ok()) {
    return ranks.status();
  }
  rank_listener_ = *std::move(ranks);
  reserve_.Reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));

  // Whatever a rank leaves behind becomes our child, so that it can be found.
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) < 0) {
    return process::ErrnoStatus("becoming a sub-reaper", errno);
  }
  for (const int ignored : {SIGPIPE, SIGHUP, SIGINT}) {
    ::signal(ignored, SIG_IGN);
  }
  sigset_t watched;
  ::sigemptyset(&watched);
  ::sigaddset(&watched, SIGCHLD);
  ::sigaddset(&watched, SIGTERM);
  if (::sigprocmask(SIG_SETMASK, &watched, nullptr) < 0) {
    return process::ErrnoStatus("blocking signals", errno);
  }
  signals_.Reset(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) {
    return process::ErrnoStatus("making a signalfd", errno);
  }
  absl::Status status = loop_.Open();
  status.Update(loop_.Watch(signals_.get(), EPOLLIN, [this] { Signals(); }));
  status.Update(loop_.Watch(agent_listener_.get(), EPOLLIN, [this] { AcceptAll(agent_listener_, &Loop::TakeAgent); }));
  status.Update(loop_.Watch(rank_listener_.get(), EPOLLIN, [this] { AcceptAll(rank_listener_, &Loop::TakeRank); }));
  if (!status.ok()) {
    return status;
  }
  loop_.OnTimer([this] {
    Deliver(Tick{});
    settle_ = true;
  });
  if (options_.agent_fd >= 0) {
    UniqueFd agent(options_.agent_fd);
    const int flags = ::fcntl(agent.get(), F_GETFL);
    if (flags < 0 || ::fcntl(agent.get(), F_SETFL, flags | O_NONBLOCK) < 0 ||
        ::fcntl(agent.get(), F_SETFD, FD_CLOEXEC) < 0) {
      return process::ErrnoStatus("using --agent-fd " + std::to_string(options_.agent_fd), errno);
    }
    TakePeer(std::move(agent), &Loop::TakeAgent);
  }
  return absl::OkStatus();
}

absl::Status Loop::Run() {
  Log("shim started job=" + std::to_string(options_.job.value) + " pid=" + std::to_string(::getpid()));
  while (true) {
    Drain();
    graveyard_.clear();
    ended_processes_.clear();
    if (exit_ || (terminating_ && !machine_.AnyRankAlive())) {
      break;
    }
    ArmTimer();
    if (absl::Status waited = loop_.WaitOnce(); !waited.ok()) {
      return waited;
    }
  }
  const std::string why = exit_ ? exit_->why : "SIGTERM";
  Log("shim ends job=" + std::to_string(options_.job.value) + " why=\"" + why + "\"");
  KillEverything();
  if (exit_ && exit_->remove_state) {
    state_->Remove();
    return absl::OkStatus();
  }
  return state_->Flush();
}

void Loop::Drain() {
  while (!pending_.empty() || settle_) {
    if (pending_.empty()) {
      Settle();
      continue;
    }
    Pending next = std::move(pending_.front());
    pending_.pop_front();
    if (auto* said = std::get_if<RankSaid>(&next.event); said != nullptr && !AttachSpeaker(*said, next.speaker)) {
      continue;
    }
    for (const Effect& effect : machine_.On(next.event, clock_.Read())) {
      std::visit([this](const auto& e) { Carry(e); }, effect);
    }
    speaker_ = 0;
  }
}

// A rank may send more right after its hello, so whose connection it is gets decided in the order of the messages.
bool Loop::AttachSpeaker(RankSaid& said, std::uint64_t speaker) {
  const auto peer = rank_connections_.find(speaker);
  if (peer == rank_connections_.end()) {
    return false;  // Closed in between.
  }
  if (said.message.has_hello()) {
    speaker_ = speaker;
    return true;
  }
  if (!peer->second.rank) {
    RefuseRank(peer->second, said.message.id(), local::REFUSAL_CODE_BAD_MESSAGE, "say hello first");
    return false;
  }
  said.rank = *peer->second.rank;
  return true;
}

void Loop::ArmTimer() {
  std::optional<SteadyTime> next = machine_.NextDeadline();
  for (const auto& [rank, process] : processes_) {
    if (const std::optional<SteadyTime> at = process->output_deadline()) {
      next = next ? std::min(*next, *at) : *at;
    }
  }
  loop_.SetTimer(next);
}

// ---- Effects.

void Loop::Carry(const Spawn& effect) {
  RankProcess::Deps deps{loop_, clock_, [this](Event event) { Deliver(std::move(event)); },
                         [this](RankRef) { settle_ = true; }, [](const std::string& text) { Log(text); }};
  std::unique_ptr<RankProcess> process =
      RankProcess::Start(effect.rank, effect.start, rank_path_, Mark(effect.rank), std::move(deps));
  if (process != nullptr) {
    Log("rank started " + Fields(effect.rank) + " pid=" + std::to_string(process->pid()));
    processes_[effect.rank] = std::move(process);
  }
}

void Loop::Carry(const Kill& effect) {
  const auto found = processes_.find(effect.rank);
  if (found == processes_.end()) {
    return;
  }
  Log("rank signalled " + Fields(effect.rank) + " signal=" + std::to_string(effect.signal));
  found->second->Signal(effect.signal);
  if (effect.signal == SIGKILL) {
    settle_ = true;
  }
}

void Loop::Carry(const SendAgent& effect) {
  if (agent_ != nullptr) {
    agent_->Send(effect.message.SerializeAsString());
  }
}

void Loop::Carry(const SendRank& effect) {
  std::uint64_t id = speaker_;
  if (id == 0) {
    const auto found = connection_of_rank_.find(effect.rank);
    if (found == connection_of_rank_.end()) {
      return;
    }
    id = found->second;
  }
  const auto peer = rank_connections_.find(id);
  if (peer == rank_connections_.end()) {
    return;
  }
  if (effect.message.has_welcome()) {
    peer->second.rank = effect.rank;
    connection_of_rank_[effect.rank] = id;
  }
  peer->second.connection->Send(effect.message.SerializeAsString());
}

void Loop::Carry(const WriteState& effect) {
  const absl::Status written = state_->Append(effect.record);
  if (!written.ok() && !state_failing_) {
    Log("state is not written, it is kept and tried again: " + std::string(written.message()));
  }
  state_failing_ = !written.ok();
}

void Loop::Carry(const CopyCheckpoint& effect) {
  Copy copy;
  copy.rank = effect.rank;
  copy.number = effect.number;
  copy.store_dir = job_dir_ + "/checkpoints/group_" + std::to_string(effect.rank.group) + "/attempt_" +
                   std::to_string(effect.rank.attempt) + "/rank_" + std::to_string(effect.rank.rank) + "/report_" +
                   std::to_string(effect.number);
  const auto fail = [&](const std::string& why) {
    Deliver(CheckpointCopied{effect.rank, effect.number, "", {}, why, false});
  };
  if (effect.from.empty() || effect.from.front() != '/') {
    return fail("the checkpoint folder must be an absolute path");
  }
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) < 0) {
    return fail("copying the checkpoint: " + process::ErrnoText(errno));
  }
  copy.pipe.Reset(ends[0]);
  UniqueFd answer(ends[1]);
  const pid_t shim = ::getpid();
  // A process of its own: a large checkpoint must not keep the loop from the other ranks. There is one thread, so that
  // the child may do as it likes.
  const pid_t pid = ::fork();
  if (pid < 0) {
    return fail("copying the checkpoint: " + process::ErrnoText(errno));
  }
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != shim || ::dup2(answer.get(), kCopyPipe) < 0) {
      ::_exit(1);
    }
    ::syscall(SYS_close_range, kCopyPipe + 1, ~0U, 0);
    const absl::StatusOr<std::vector<local::CheckpointFile>> files = CopyFolder(effect.from, copy.store_dir);
    std::string text;
    if (files.ok()) {
      local::ReportSpooled list;
      for (const local::CheckpointFile& file : *files) {
        *list.add_files() = file;
      }
      text = kCopied + list.SerializeAsString();
    } else {
      text = (absl::IsResourceExhausted(files.status()) ? kCopyNoSpace : kCopyFailed) +
             std::string(files.status().message());
    }
    for (std::size_t done = 0; done < text.size();) {
      const ssize_t n = ::write(kCopyPipe, text.data() + done, text.size() - done);
      if (n < 0) {
        ::_exit(1);
      }
      done += static_cast<std::size_t>(n);
    }
    ::_exit(0);
  }
  const int fd = copy.pipe.get();
  copies_[pid] = std::move(copy);
  if (const absl::Status watched = loop_.Watch(fd, EPOLLIN, [this, pid] { CopyReadable(pid); }); !watched.ok()) {
    ::kill(pid, SIGKILL);
    copies_.erase(pid);
    fail(std::string(watched.message()));
  }
}

void Loop::CopyReadable(pid_t pid) {
  Copy& copy = copies_.at(pid);
  std::array<char, 4096> bytes;
  const ssize_t n = ::read(copy.pipe.get(), bytes.data(), bytes.size());
  if (n > 0) {
    copy.answer.append(bytes.data(), static_cast<std::size_t>(n));
    return;
  }
  loop_.Forget(copy.pipe.get());
  CheckpointCopied copied;
  copied.rank = copy.rank;
  copied.number = copy.number;
  local::ReportSpooled list;
  if (!copy.answer.empty() && copy.answer[0] == kCopied && list.ParseFromString(copy.answer.substr(1))) {
    copied.store_dir = copy.store_dir;
    copied.files.assign(list.files().begin(), list.files().end());
  } else {
    copied.no_space = !copy.answer.empty() && copy.answer[0] == kCopyNoSpace;
    copied.error = copy.answer.size() > 1 ? copy.answer.substr(1) : "copying the checkpoint was interrupted";
  }
  copies_.erase(pid);  // The process itself is reaped like any orphan.
  Deliver(std::move(copied));
}

void Loop::Carry(const CloseRankSocket& effect) {
  std::uint64_t id = speaker_;
  if (id == 0) {
    const auto found = connection_of_rank_.find(effect.rank);
    if (found == connection_of_rank_.end()) {
      return;
    }
    id = found->second;
  }
  const auto peer = rank_connections_.find(id);
  if (peer == rank_connections_.end()) {
    return;
  }
  if (peer->second.rank) {
    connection_of_rank_.erase(*peer->second.rank);
  }
  peer->second.connection->Close();
  Bury(std::move(peer->second.connection));
  rank_connections_.erase(peer);
}

void Loop::Carry(const Exit& effect) { exit_ = effect; }

// ---- Sockets.

void Loop::AcceptAll(const UniqueFd& listener, void (Loop::*take)(UniqueFd, const ucred&)) {
  while (true) {
    UniqueFd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.valid()) {
      TakePeer(std::move(socket), take);
      continue;
    }
    if ((errno == EMFILE || errno == ENFILE) && reserve_.valid()) {
      Log("a connection is turned away: " + process::ErrnoText(errno));
      reserve_.Reset();
      UniqueFd unwanted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      unwanted.Reset();
      reserve_.Reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      continue;
    }
    if (errno == ECONNABORTED || errno == EINTR) {
      continue;
    }
    return;
  }
}

void Loop::TakePeer(UniqueFd socket, void (Loop::*take)(UniqueFd, const ucred&)) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 || peer.uid != ::geteuid()) {
    Log("a connection of another user is refused uid=" + std::to_string(peer.uid));
    return;
  }
  (this->*take)(std::move(socket), peer);
}

void Loop::TakeAgent(UniqueFd socket, const ucred& peer) {
  Log("agent connected pid=" + std::to_string(peer.pid));
  if (agent_ != nullptr) {  // A newer connection replaces the older.
    agent_->Close();
    Bury(std::move(agent_));
  }
  Connection::Handlers handlers{[this](const std::string& bytes) { AgentMessage(bytes); },
                                [this](const std::string& why) {
                                  Log("agent gone why=\"" + why + "\"");
                                  Bury(std::move(agent_));
                                  Deliver(AgentClosed{});
                                }};
  agent_ = std::make_unique<Connection>(loop_, std::move(socket), std::move(handlers));
  if (const absl::Status watched = agent_->Watch(); !watched.ok()) {
    Log("agent is refused: " + std::string(watched.message()));
    agent_.reset();
    Deliver(AgentClosed{});
    return;
  }
  Deliver(AgentConnected{});
}

void Loop::AgentMessage(const std::string& bytes) {
  AgentSaid said;
  if (said.message.ParseFromString(bytes)) {
    Deliver(std::move(said));
    return;
  }
  local::ShimToAgent refusal;
  refusal.mutable_id()->set_job_id(options_.job.value);
  refusal.mutable_refused()->set_code(local::REFUSAL_CODE_BAD_MESSAGE);
  refusal.mutable_refused()->set_message("a frame that holds no AgentToShim");
  agent_->Send(refusal.SerializeAsString());
}

void Loop::TakeRank(UniqueFd socket, const ucred& peer) {
  if (rank_connections_.size() >= kRankConnectionsMax) {
    Log("a rank connection is refused: " + std::to_string(kRankConnectionsMax) + " are open");
    return;
  }
  const std::uint64_t id = next_connection_++;
  Connection::Handlers handlers{[this, id](const std::string& bytes) { RankMessage(id, bytes); },
                                [this, id](const std::string&) { RankClosed(id); }};
  RankConnection& rank = rank_connections_[id];
  rank.pid = peer.pid;
  rank.connection = std::make_unique<Connection>(loop_, std::move(socket), std::move(handlers));
  if (const absl::Status watched = rank.connection->Watch(); !watched.ok()) {
    Log("a rank connection is refused: " + std::string(watched.message()));
    rank_connections_.erase(id);
  }
}

std::optional<RankRef> Loop::RankOfProcess(pid_t pid) const {
  for (const auto& [rank, process] : processes_) {
    if (process::IsSelfOrDescendant(pid, process->pid())) {
      return rank;
    }
  }
  // One that was orphaned, and is our child by now, still carries its rank's mark.
  const std::optional<std::string> mark = process::EnvironmentOf(pid, kMarkVariable);
  for (const auto& [rank, process] : processes_) {
    if (mark == process->mark() && process::IsSelfOrDescendant(pid, ::getpid())) {
      return rank;
    }
  }
  return std::nullopt;
}

void Loop::RefuseRank(RankConnection& peer, const local::RankId& id, local::RefusalCode code, const std::string& why) {
  local::ShimReply reply;
  *reply.mutable_id() = id;
  reply.mutable_id()->set_sequence(0);
  reply.mutable_refused()->set_code(code);
  reply.mutable_refused()->set_message(why);
  peer.connection->Send(reply.SerializeAsString());
}

void Loop::RankMessage(std::uint64_t id, const std::string& bytes) {
  RankConnection& peer = rank_connections_.at(id);
  RankSaid said;
  if (!said.message.ParseFromString(bytes)) {
    return RefuseRank(peer, {}, local::REFUSAL_CODE_BAD_MESSAGE, "a frame that holds no RankMessage");
  }
  if (said.message.has_hello()) {
    const std::optional<RankRef> rank = RankOfProcess(peer.pid);
    if (!rank) {
      return RefuseRank(peer, said.message.id(), local::REFUSAL_CODE_WRONG_USER,
                        "process " + std::to_string(peer.pid) + " belongs to no rank of this shim");
    }
    said.rank = *rank;
  }
  Deliver(std::move(said), id);
}

void Loop::RankClosed(std::uint64_t id) {
  const auto found = rank_connections_.find(id);
  if (found == rank_connections_.end()) {
    return;
  }
  if (found->second.rank) {
    connection_of_rank_.erase(*found->second.rank);
    Deliver(RankSocketClosed{*found->second.rank});
  }
  Bury(std::move(found->second.connection));
  rank_connections_.erase(found);
}

// ---- Processes.

void Loop::Signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo == static_cast<std::uint32_t>(SIGTERM) && !terminating_) {
      Log("SIGTERM: every rank is killed");
      terminating_ = true;
      for (const auto& [rank, process] : processes_) {
        process->Signal(SIGKILL);
      }
    }
  }
  ReapOrphans();
}

void Loop::ReapOrphans() {
  while (true) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0) {
      return;
    }
    const auto leader = std::find_if(processes_.begin(), processes_.end(), [&](const auto& entry) {
      return entry.second->pid() == info.si_pid && !entry.second->leader_ended();
    });
    if (leader != processes_.end()) {
      leader->second->CheckLeader();  // Its own object reaps it.
      continue;
    }
    ::waitpid(info.si_pid, nullptr, 0);
    settle_ = true;
  }
}

std::set<RankRef> Loop::Sweep() {
  std::set<RankRef> busy;
  const bool any_leader_alive = std::any_of(processes_.begin(), processes_.end(),
                                            [](const auto& entry) { return !entry.second->leader_ended(); });
  for (const pid_t child : process::ChildrenOf(::getpid())) {
    if (copies_.contains(child)) {
      continue;
    }
    const pid_t group = ::getpgid(child);
    const std::optional<std::string> mark = process::EnvironmentOf(child, kMarkVariable);
    const RankProcess* owner = nullptr;
    RankRef owner_rank;
    bool is_leader = false;
    for (const auto& [rank, process] : processes_) {
      is_leader = is_leader || (child == process->pid() && !process->leader_ended());
      if (group == process->pid() || mark == process->mark()) {
        owner = process.get();
        owner_rank = rank;
      }
    }
    if (is_leader || (owner != nullptr && !owner->leader_ended())) {
      continue;
    }
    // Without a group or a mark that we know it may belong to any rank, and goes with the last.
    if (owner == nullptr && any_leader_alive && (!mark || mark->empty())) {
      continue;
    }
    ::kill(child, SIGKILL);
    if (owner != nullptr) {
      busy.insert(owner_rank);
    }
  }
  return busy;
}

// Tells the end of every rank whose processes are gone and whose output is complete.
void Loop::Settle() {
  settle_ = false;
  const bool any_ended =
      std::any_of(processes_.begin(), processes_.end(), [](const auto& entry) { return entry.second->leader_ended(); });
  if (!any_ended) {
    return;
  }
  const std::set<RankRef> busy = Sweep();
  const SteadyTime now = clock_.Read().steady;
  for (auto entry = processes_.begin(); entry != processes_.end();) {
    RankProcess& process = *entry->second;
    const bool gone = process.leader_ended() && !process.output_open() && !busy.contains(entry->first);
    const bool late = process.output_deadline() && now >= *process.output_deadline();
    if (!gone && !late) {
      ++entry;
      continue;
    }
    if (std::optional<Exited> exited = process.Finish()) {
      Log("rank ended " + Fields(entry->first) + " code=" + std::to_string(exited->exit_code) +
          " signal=" + std::to_string(exited->signal) + (gone ? "" : " output=unfinished"));
      Deliver(*std::move(exited));
    }
    ended_processes_.push_back(std::move(entry->second));
    entry = processes_.erase(entry);
  }
}

void Loop::KillEverything() {
  ::unlink(agent_path_.c_str());
  ::unlink(rank_path_.c_str());
  ours_ = false;
  processes_.clear();
  while (true) {
    const std::vector<pid_t> children = process::ChildrenOf(::getpid());
    if (children.empty()) {
      return;
    }
    for (const pid_t child : children) {
      ::kill(child, SIGKILL);
    }
    // Each has been sent SIGKILL, so that one of them ends; what it leaves behind becomes our child in turn.
    ::waitpid(-1, nullptr, 0);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShimLoop>> ShimLoop::Open(const ShimLoopOptions& options) {
  auto loop = std::make_unique<Loop>(options);
  if (absl::Status prepared = loop->Prepare(); !prepared.ok()) {
    return prepared;
  }
  return std::unique_ptr<ShimLoop>(std::move(loop));
}

}  // namespace rayctl::shim
