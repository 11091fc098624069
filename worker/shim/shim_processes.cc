#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/errno_status.h"
#include "worker/process/proc.h"
#include "worker/shim/checkpoint_copy.h"
#include "worker/shim/shim_loop_impl.h"

namespace rayctl::shim {

namespace {

constexpr int kCopyPipe = 3;  // The only descriptor that a copying child keeps beside 0 to 2.

// First byte of what a copying child sends; the rest is a ReportSpooled with the files, or why not.
constexpr char kCopied = 'c';
constexpr char kCopyNoSpace = 's';
constexpr char kCopyFailed = 'f';

}  // namespace

void Loop::Carry(const Spawn& effect) {
  const std::string name = CgroupName(effect.rank);
  absl::StatusOr<process::JobCgroup::Place> place =
      cgroup_->Enter(name, {effect.start.memory_bytes_max(), effect.start.pids_max()});
  if (!place.ok()) {
    Deliver(SpawnFailed{effect.rank, process::kNotExecutable, std::string(place.status().message())});
    return;
  }
  RankProcess::Deps deps{loop_, clock_, [this](Event event) { Deliver(std::move(event)); },
                         [this](RankRef) { settle_ = true; }, [](const std::string& text) { Log(text); }};
  std::unique_ptr<RankProcess> process =
      RankProcess::Start(effect.rank, effect.start, rank_path_, Mark(effect.rank), *place, std::move(deps));
  if (process == nullptr) {
    cgroup_->Leave(name);
  } else {
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

void Loop::SweepCgroups(std::set<RankRef>& busy) {
  std::set<RankRef> ended;
  for (const auto& [rank, process] : processes_) {
    if (process->leader_ended()) {
      ended.insert(rank);
      if (!cgroup_->KillRank(CgroupName(rank))) {
        busy.insert(rank);
      }
    }
  }
  // Nobody of it has a leader any more: whatever it carries, it goes. Its end becomes our SIGCHLD, and we look again.
  if (ended.size() == processes_.size() && !cgroup_->KillAll()) {
    busy.insert(ended.begin(), ended.end());
  }
}

// Tells the end of every rank whose processes are gone and whose output is complete.
void Loop::Settle() {
  settle_ = false;
  const bool any_ended =
      std::any_of(processes_.begin(), processes_.end(), [](const auto& entry) { return entry.second->leader_ended(); });
  if (!any_ended) {
    return;
  }
  std::set<RankRef> busy = Sweep();
  SweepCgroups(busy);
  const SteadyTime now = clock_.Read().steady;
  for (auto entry = processes_.begin(); entry != processes_.end();) {
    RankProcess& process = *entry->second;
    const bool gone = process.leader_ended() && !process.output_open() && !busy.contains(entry->first);
    const bool late = process.output_deadline() && now >= *process.output_deadline();
    if (!gone && !late) {
      ++entry;
      continue;
    }
    const std::string name = CgroupName(entry->first);
    const process::JobCgroup::Usage usage = cgroup_->Ask(name);
    cgroup_->Leave(name);
    if (std::optional<Exited> exited = process.Finish()) {
      exited->out_of_memory = usage.out_of_memory;
      exited->memory_bytes_max = usage.memory_bytes_max;
      exited->memory_peak_bytes = std::max(exited->memory_peak_bytes, usage.memory_peak_bytes);
      exited->pids_max_reached = usage.pids_max_reached;
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
  cgroup_->KillAll();
  while (true) {
    const std::vector<pid_t> children = process::ChildrenOf(::getpid());
    if (children.empty()) {
      break;
    }
    for (const pid_t child : children) {
      ::kill(child, SIGKILL);
    }
    // Each has been sent SIGKILL, so that one of them ends; what it leaves behind becomes our child in turn.
    ::waitpid(-1, nullptr, 0);
  }
  if (const absl::Status removed = cgroup_->Remove(); !removed.ok()) {
    Log("a cgroup is left behind: " + std::string(removed.message()));
  }
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
    return fail("copying the checkpoint: " + ErrnoText(errno));
  }
  copy.pipe.Reset(ends[0]);
  UniqueFd answer(ends[1]);
  const pid_t shim = ::getpid();
  // A process of its own: a large checkpoint must not keep the loop from the other ranks. There is one thread, so that
  // the child may do as it likes.
  const pid_t pid = ::fork();
  if (pid < 0) {
    return fail("copying the checkpoint: " + ErrnoText(errno));
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

}  // namespace rayctl::shim
