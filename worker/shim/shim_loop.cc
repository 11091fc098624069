#include "worker/shim/shim_loop.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

#include "base/errno_status.h"
#include "base/units.h"
#include "worker/process/proc.h"
#include "worker/shim/shim_loop_impl.h"

namespace rayctl::shim {

namespace {

constexpr std::uint32_t kStateVersion = 1;
// FNV-1a.
constexpr std::uint64_t kHashBasis = 0xcbf29ce484222325ULL;
constexpr std::uint64_t kHashPrime = 0x100000001b3ULL;

// Of this job of this state folder on this machine: whoever has the folder finds it again, nobody else has it.
std::string JobCgroupName(const std::string& state_dir, JobId job) {
  struct stat info {};
  ::stat(state_dir.c_str(), &info);  // It was made before; if not, zeros and the path name it as well.
  std::uint64_t hash = kHashBasis;
  for (const char byte : state_dir + ":" + std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino)) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * kHashPrime;
  }
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(hash));
  return std::string(process::kCgroupPrefix) + digits.data() + "-" + std::to_string(job.value);
}

absl::Status CheckFolder(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) < 0) {
    return ErrnoStatus("looking at " + path, errno);
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & 077U) != 0) {
    return absl::InvalidArgumentError(path + " must be a folder that only this user can enter (mode 0700)");
  }
  return absl::OkStatus();
}

}  // namespace

void Log(const std::string& text) {
  const std::string line = FormatTime(SystemClock().Read().wall) + " " + text + "\n";
  std::fputs(line.c_str(), stderr);
}

std::string Fields(const RankRef& rank) {
  return "group=" + std::to_string(rank.group) + " attempt=" + std::to_string(rank.attempt) +
         " rank=" + std::to_string(rank.rank);
}

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
  cgroup_.emplace(process::FindCgroupParents(process::ReadCgroupLayout()),
                  JobCgroupName(options_.state_dir, options_.job));
  for (const std::string& folder : cgroup_->Folders()) {
    header.add_cgroups(folder);
  }
  absl::StatusOr<StateFile> state = TakeStateFile(header);
  if (!state.ok()) {
    return state.status();
  }
  state_ = *std::move(state);
  ours_ = true;
  for (const std::string& folder : cgroup_->Folders()) {
    if (::access(folder.c_str(), F_OK) == 0) {  // Of a shim that was killed together with its agent.
      if (absl::Status ended = process::EndCgroup(folder); !ended.ok()) {
        return ended;
      }
    }
  }
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
  if (AgentHungUp()) {
    state_->Remove();
    return AgentGone();
  }
  reserve_.Reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));

  // Whatever a rank leaves behind becomes our child, so that it can be found.
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) < 0) {
    return ErrnoStatus("becoming a sub-reaper", errno);
  }
  for (const int ignored : {SIGPIPE, SIGHUP, SIGINT}) {
    ::signal(ignored, SIG_IGN);
  }
  sigset_t watched;
  ::sigemptyset(&watched);
  ::sigaddset(&watched, SIGCHLD);
  ::sigaddset(&watched, SIGTERM);
  if (::sigprocmask(SIG_SETMASK, &watched, nullptr) < 0) {
    return ErrnoStatus("blocking signals", errno);
  }
  signals_.Reset(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) {
    return ErrnoStatus("making a signalfd", errno);
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
      return ErrnoStatus("using --agent-fd " + std::to_string(options_.agent_fd), errno);
    }
    TakePeer(std::move(agent), &Loop::TakeAgent);
  }
  return absl::OkStatus();
}

// An agent looks for the shims of the one before it by their sockets. A shim whose agent was gone before it listened
// may have been missed, so it ends, and what it was sent is lost with it; from then on the next agent finds it. The
// shim that the next agent spawns for the job meanwhile waits until that one is gone, as long as its own agent lives.
absl::StatusOr<StateFile> Loop::TakeStateFile(const local::ShimStateHeader& header) {
  const std::string path = job_dir_ + "/shim.state";
  if (options_.agent_fd < 0) {
    return StateFile::Create(path, header);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (AgentHungUp()) {
    return AgentGone();
  }
  absl::StatusOr<StateFile> state = StateFile::Create(path, header, StateFile::IfHeld::kWait);
  ::prctl(PR_SET_PDEATHSIG, 0);
  return state;
}

bool Loop::AgentHungUp() const {
  pollfd agent{.fd = options_.agent_fd, .events = POLLRDHUP, .revents = 0};
  return options_.agent_fd >= 0 && ::poll(&agent, 1, 0) > 0;
}

absl::Status Loop::AgentGone() const { return absl::CancelledError("the agent that spawned this shim has gone"); }

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

void Loop::ArmTimer() {
  std::optional<SteadyTime> next = machine_.NextDeadline();
  for (const auto& [rank, process] : processes_) {
    if (const std::optional<SteadyTime> at = process->output_deadline()) {
      next = next ? std::min(*next, *at) : *at;
    }
  }
  loop_.SetTimer(next);
}

void Loop::Carry(const WriteState& effect) {
  const absl::Status written = state_->Append(effect.record);
  if (!written.ok() && !state_failing_) {
    Log("state is not written, it is kept and tried again: " + std::string(written.message()));
  }
  state_failing_ = !written.ok();
}

void Loop::Carry(const Exit& effect) { exit_ = effect; }

absl::StatusOr<std::unique_ptr<ShimLoop>> ShimLoop::Open(const ShimLoopOptions& options) {
  auto loop = std::make_unique<Loop>(options);
  if (absl::Status prepared = loop->Prepare(); !prepared.ok()) {
    return prepared;
  }
  return std::unique_ptr<ShimLoop>(std::move(loop));
}

}  // namespace rayctl::shim
