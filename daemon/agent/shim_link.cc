#include "daemon/agent/shim_link.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <deque>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_text.h"
#include "base/unique_fd.h"
#include "daemon/agent/leftovers.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"
#include "worker/process/cgroups.h"
#include "worker/process/frame.h"
#include "worker/process/proc.h"
#include "worker/shim/state_file.h"

namespace rayctl::agent {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr std::size_t kReadBytes = 64UL << 10;
constexpr std::size_t kWaitingBytesMax = 64UL << 20;  // A shim that reads nothing for so long is taken for dead.
constexpr int kAgentFd = 3;                           // Of a spawned shim.
// From a closed socket until the process must have ended of itself.
constexpr std::chrono::seconds kExitWait{3};

// What a shim's state file says.
shim::ShimState StateInFile(const std::string& path) {
  absl::StatusOr<shim::ShimState> state = shim::ReadShimState(path);
  if (!state.ok()) {
    if (state.status().code() != absl::StatusCode::kNotFound) {
      spdlog::warn("shim state unreadable path={} why={}", path, Text(state.status()));
    }
    return {};
  }
  return *std::move(state);
}

absl::Status Errno(std::string_view what) {
  return absl::InternalError(fmt::format("{}: {}", what, std::strerror(errno)));
}

struct Child {
  pid_t pid = 0;
  UniqueFd pidfd;
  UniqueFd socket;
};

UniqueFd OpenPidfd(pid_t pid) { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

// Everything that posix_spawn needs, freed together.
class SpawnSetup {
 public:
  SpawnSetup() {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
  }
  ~SpawnSetup() {
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

absl::StatusOr<Child> SpawnProcess(const ShimLink::Options& options, const SpawnShim& spawn) {
  const std::string folder = fmt::format("{}/jobs/{}", options.state_dir, spawn.job.value);
  std::error_code made;
  std::filesystem::create_directories(folder, made);
  if (made) {
    return absl::InternalError(fmt::format("making {}: {}", folder, made.message()));
  }
  std::array<int, 2> pair{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) {
    return Errno("socketpair");
  }
  Child child;
  child.socket.Reset(pair[0]);
  const UniqueFd theirs(pair[1]);

  SpawnSetup setup;
  const std::string log = folder + "/shim.log";
  ::posix_spawn_file_actions_addopen(&setup.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&setup.actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_addopen(&setup.actions, STDERR_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::posix_spawn_file_actions_adddup2(&setup.actions, theirs.get(), kAgentFd);
  ::posix_spawn_file_actions_addclosefrom_np(&setup.actions, kAgentFd + 1);
  sigset_t all;
  sigset_t none;
  ::sigfillset(&all);
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigdefault(&setup.attributes, &all);
  ::posix_spawnattr_setsigmask(&setup.attributes, &none);
  ::posix_spawnattr_setflags(&setup.attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);

  std::vector<std::string> words = {
      options.shim_program,
      "--job",
      std::to_string(spawn.job.value),
      "--state-dir",
      options.state_dir,
      "--run-dir",
      options.run_dir,
      "--agent-grace-ms",
      std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(spawn.agent_grace).count()),
      "--agent-fd",
      std::to_string(kAgentFd)};
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  std::string path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
  std::array<char*, 2> env = {path.data(), nullptr};
  const int error = ::posix_spawn(&child.pid, options.shim_program.c_str(), &setup.actions, &setup.attributes,
                                  argv.data(), env.data());
  if (error != 0) {
    return absl::InternalError(fmt::format("starting {}: {}", options.shim_program, std::strerror(error)));
  }
  child.pidfd = OpenPidfd(child.pid);
  if (!child.pidfd.valid()) {
    const absl::Status status = Errno("pidfd_open");
    ::kill(child.pid, SIGKILL);
    ::waitpid(child.pid, nullptr, 0);
    return status;
  }
  return child;
}

// The shim that listens at `path`. NOT_FOUND: none does.
absl::StatusOr<Child> ConnectTo(const std::string& path) {
  Child shim;
  shim.socket.Reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!shim.socket.valid()) {
    return Errno("socket");
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(fmt::format("the path {} is too long for a socket", path));
  }
  path.copy(address.sun_path, path.size());
  if (::connect(shim.socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::NotFoundError(fmt::format("connecting to {}: {}", path, std::strerror(errno)));
  }
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (::getsockopt(shim.socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return Errno("SO_PEERCRED");
  }
  if (peer.uid != ::geteuid()) {
    return absl::PermissionDeniedError(fmt::format("{} is served by another user", path));
  }
  shim.pid = peer.pid;
  shim.pidfd = OpenPidfd(peer.pid);
  if (!shim.pidfd.valid()) {
    return absl::NotFoundError(fmt::format("{}: its process has ended", path));
  }
  return shim;
}

std::optional<JobId> ParseJob(std::string_view text) {
  JobId job;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), job.value);
  return error == std::errc() && end == text.data() + text.size() && job ? std::optional(job) : std::nullopt;
}

}  // namespace

// One shim: its socket and its process. Lives until both are gone.
class ShimLink::Connection : public std::enable_shared_from_this<ShimLink::Connection> {
 public:
  Connection(ShimLink& link, JobId job, Child child)
      : link_(link),
        job_(job),
        pid_(child.pid),
        socket_(link.loop_, asio::local::stream_protocol(), child.socket.Release()),
        process_(link.loop_, child.pidfd.Release()),
        timer_(link.loop_) {}

  void Start() {
    Read();
    process_.async_wait(asio::posix::stream_descriptor::wait_read, [self = shared_from_this()](error_code error) {
      if (!error) {
        self->ProcessEnded();
      }
    });
  }

  // Kills a shim that has not said hello by then.
  void ExpectHello(std::chrono::milliseconds wait) {
    timer_.expires_after(wait);
    timer_.async_wait([self = shared_from_this()](error_code error) {
      if (!error && !self->said_hello_) {
        self->Fail("it does not answer");
      }
    });
  }

  void Send(const std::string& message) {
    if (!socket_.is_open()) {
      return;  // Its end is on its way.
    }
    absl::StatusOr<std::string> frame = process::EncodeFrame(message);
    if (!frame.ok()) {
      Fail(Text(frame.status()));
      return;
    }
    waiting_bytes_ += frame->size();
    if (waiting_bytes_ > kWaitingBytesMax) {
      Fail("it reads nothing");
      return;
    }
    waiting_.push_back(*std::move(frame));
    if (waiting_.size() == 1) {
      Write();
    }
  }

  void Kill() { ::syscall(SYS_pidfd_send_signal, process_.native_handle(), SIGKILL, nullptr, 0); }

  // Forgets it: nothing is delivered any more.
  void Drop() {
    dropped_ = true;
    error_code ignored;  // It is going either way.
    socket_.close(ignored);
    process_.close(ignored);
    timer_.cancel();
  }

 private:
  void Read() {
    socket_.async_read_some(asio::buffer(buffer_), [self = shared_from_this()](error_code error, std::size_t size) {
      if (self->dropped_) {
        return;
      }
      if (error) {
        self->SocketClosed();
        return;
      }
      self->reader_.Append({self->buffer_.data(), size});
      if (self->TakeFrames()) {
        self->Read();
      }
    });
  }

  bool TakeFrames() {
    while (true) {
      absl::StatusOr<std::optional<std::string>> frame = reader_.Next();
      if (!frame.ok()) {
        Fail(Text(frame.status()));
        return false;
      }
      if (!frame->has_value()) {
        return true;
      }
      local::ShimToAgent message;
      if (!message.ParseFromString(**frame)) {
        Fail("it sent what is no message");
        return false;
      }
      said_hello_ = said_hello_ || message.has_hello();
      link_.Hear(job_, std::move(message));
      if (dropped_ || !socket_.is_open()) {
        return false;
      }
    }
  }

  void Write() {
    asio::async_write(socket_, asio::buffer(waiting_.front()),
                      [self = shared_from_this()](error_code error, std::size_t size) {
                        if (error || self->dropped_) {
                          return;  // The reader sees the end too, after what was sent before it.
                        }
                        self->waiting_bytes_ -= size;
                        self->waiting_.pop_front();
                        if (!self->waiting_.empty()) {
                          self->Write();
                        }
                      });
  }

  void Fail(const std::string& why) {
    spdlog::warn("shim given up job={} pid={} why={}", job_.value, pid_, why);
    why_ = why;
    Kill();
    error_code ignored;
    socket_.close(ignored);
    SocketClosed();
  }

  void SocketClosed() {
    socket_done_ = true;
    if (process_done_) {
      Finish();
      return;
    }
    // It may have closed the socket and live on; its ranks must not.
    timer_.expires_after(kExitWait);
    timer_.async_wait([self = shared_from_this()](error_code error) {
      if (!error && !self->process_done_) {
        self->Kill();
      }
    });
  }

  void ProcessEnded() {
    process_done_ = true;
    // One that an earlier agent started is no child of ours, unless that agent was this very process.
    int status = 0;
    const bool reaped = ::waitpid(pid_, &status, WNOHANG) == pid_;
    // One that ends of itself leaves no process behind. How another's child ended cannot be known.
    if (!reaped || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      link_.KillLeftoversOf(job_, pid_);
    }
    if (reaped && why_.empty()) {
      if (WIFSIGNALED(status)) {
        why_ = fmt::format("the shim was ended by signal {}", WTERMSIG(status));
      } else {
        why_ = fmt::format("the shim ended with code {}; see {}/jobs/{}/shim.log", WEXITSTATUS(status),
                           link_.options_.state_dir, job_.value);
      }
    }
    if (socket_done_) {
      Finish();
    }
    // Else what it sent last is still to be read, and then the end of the stream.
  }

  void Finish() {
    timer_.cancel();
    if (!dropped_) {
      dropped_ = true;
      link_.Gone(job_, why_.empty() ? "the shim has ended" : why_);
    }
  }

  ShimLink& link_;
  const JobId job_;
  const pid_t pid_;
  asio::local::stream_protocol::socket socket_;
  asio::posix::stream_descriptor process_;
  asio::steady_timer timer_;
  process::FrameReader reader_;
  std::array<char, kReadBytes> buffer_;
  std::deque<std::string> waiting_;
  std::size_t waiting_bytes_ = 0;
  std::string why_;
  bool said_hello_ = false;
  bool socket_done_ = false;
  bool process_done_ = false;
  bool dropped_ = false;
};

ShimLink::ShimLink(asio::io_context& loop, Options options, Deliver deliver)
    : loop_(loop), options_(std::move(options)), deliver_(std::move(deliver)) {}

ShimLink::~ShimLink() {
  for (auto& [job, connection] : connections_) {
    connection->Drop();
  }
}

std::string ShimLink::StateFile(JobId job) const {
  return fmt::format("{}/jobs/{}/shim.state", options_.state_dir, job.value);
}

std::string ShimLink::Socket(JobId job) const { return fmt::format("{}/shim-{}.sock", options_.run_dir, job.value); }

std::string ShimLink::RankSocket(JobId job) const {
  return fmt::format("{}/rank-{}.sock", options_.run_dir, job.value);
}

void ShimLink::KillLeftoversOf(JobId job, pid_t shim) const {
  const shim::ShimState state = StateInFile(StateFile(job));
  for (const std::string& folder : state.header.cgroups()) {
    if (const absl::Status ended = process::EndCgroup(folder); !ended.ok()) {
      spdlog::error("cgroup of a dead shim left behind job={} why={}", job.value, Text(ended));
    }
  }
  if (const std::size_t killed = KillLeftovers(shim, RankSocket(job)); killed != 0) {
    spdlog::warn("what a dead shim's ranks left running was killed job={} pid={} processes={}", job.value, shim,
                 killed);
  }
}

std::set<JobId> ShimLink::FoundJobs() const {
  namespace fs = std::filesystem;
  std::set<JobId> found;
  std::error_code missing;  // A folder that is not there holds nothing.
  for (const fs::directory_entry& entry : fs::directory_iterator(options_.run_dir, missing)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view kPrefix = "shim-";
    constexpr std::string_view kSuffix = ".sock";
    if (name.starts_with(kPrefix) && name.ends_with(kSuffix) && name.size() > kPrefix.size() + kSuffix.size()) {
      const auto job =
          ParseJob(std::string_view(name).substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size()));
      if (job) {
        found.insert(*job);
      }
    }
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(options_.state_dir + "/jobs", missing)) {
    const auto job = ParseJob(entry.path().filename().string());
    if (job && fs::exists(StateFile(*job), missing)) {
      found.insert(*job);
    }
  }
  return found;
}

absl::Status ShimLink::EndFound() const {
  for (const JobId job : FoundJobs()) {
    const absl::StatusOr<Child> shim = ConnectTo(Socket(job));
    pid_t pid = 0;
    if (shim.ok()) {
      pid = shim->pid;
      ::syscall(SYS_pidfd_send_signal, shim->pidfd.get(), SIGKILL, nullptr, 0);
      pollfd ended{shim->pidfd.get(), POLLIN, 0};
      if (::poll(&ended, 1, static_cast<int>(std::chrono::milliseconds(kExitWait).count())) == 0) {
        return absl::UnavailableError(
            fmt::format("the shim of job {} (pid {}) does not end, not even by SIGKILL", job.value, pid));
      }
    } else if (const shim::ShimState state = StateInFile(StateFile(job)); state.header.boot_id() == process::BootId()) {
      pid = static_cast<pid_t>(state.header.shim_pid());
    }
    if (pid > 0) {
      KillLeftoversOf(job, pid);
    }
    for (const std::string& path : {Socket(job), RankSocket(job)}) {
      std::error_code error;
      std::filesystem::remove(path, error);
      if (error) {
        return absl::UnavailableError(fmt::format("removing {}: {}", path, error.message()));
      }
    }
    spdlog::info("shim of another cluster ended job={} pid={}", job.value, pid);
  }
  return absl::OkStatus();
}

void ShimLink::Scan() {
  scanning_ = true;
  for (const JobId job : FoundJobs()) {
    Adopt(job);
  }
  ScanProgress({});
}

void ShimLink::Adopt(JobId job) {
  absl::StatusOr<Child> child = ConnectTo(Socket(job));
  if (!child.ok()) {
    spdlog::info("dead shim found job={} why={}", job.value, Text(child.status()));
    shim::ShimState state = StateInFile(StateFile(job));
    if (state.header.shim_pid() > 0 && state.header.boot_id() == process::BootId()) {
      KillLeftoversOf(job, static_cast<pid_t>(state.header.shim_pid()));
    }
    deliver_(ShimFound{job, false, std::move(state.ranks)});
    return;
  }
  spdlog::info("living shim found job={} pid={}", job.value, child->pid);
  const auto connection = std::make_shared<Connection>(*this, job, *std::move(child));
  connections_[job] = connection;
  awaited_.insert(job);
  connection->Start();
  connection->ExpectHello(options_.adopted_hello_wait);
  deliver_(ShimFound{job, true, {}});
}

void ShimLink::ScanProgress(JobId job) {
  awaited_.erase(job);
  if (scanning_ && awaited_.empty()) {
    scanning_ = false;
    deliver_(ShimsScanned{});
  }
}

void ShimLink::Spawn(const SpawnShim& spawn) {
  absl::StatusOr<Child> child = SpawnProcess(options_, spawn);
  if (!child.ok()) {
    asio::post(loop_, [this, job = spawn.job, why = Text(child.status())] { Gone(job, why); });
    return;
  }
  spdlog::info("shim started job={} pid={}", spawn.job.value, child->pid);
  const auto connection = std::make_shared<Connection>(*this, spawn.job, *std::move(child));
  connections_[spawn.job] = connection;
  connection->Start();
  connection->ExpectHello(options_.spawned_hello_wait);
}

void ShimLink::Send(const SendShim& send) {
  const auto it = connections_.find(send.job);
  if (it != connections_.end()) {
    it->second->Send(send.message.SerializeAsString());
  }
}

void ShimLink::Remove(JobId job) {
  for (const std::string& path : {Socket(job), RankSocket(job), StateFile(job)}) {
    std::error_code error;
    std::filesystem::remove(path, error);
    if (error) {
      spdlog::warn("file left behind path={} why={}", path, error.message());
    }
  }
}

void ShimLink::KillAll() {
  for (auto& [job, connection] : connections_) {
    connection->Kill();
  }
}

void ShimLink::Hear(JobId job, local::ShimToAgent message) {
  const bool hello = message.has_hello();
  if (message.has_refused()) {
    spdlog::warn("shim refused job={} why={}", job.value, message.refused().message());
  }
  deliver_(ShimMessage{job, std::move(message)});
  if (hello) {
    ScanProgress(job);
  }
}

void ShimLink::Gone(JobId job, const std::string& why) {
  spdlog::info("shim gone job={} why={}", job.value, why);
  connections_.erase(job);
  deliver_(ShimClosed{job, StateInFile(StateFile(job)).ranks, why});
  ScanProgress(job);
}

}  // namespace rayctl::agent
