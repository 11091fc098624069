#include "tests/worker/shim_fixture.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <stdexcept>

#include "worker/process/cgroups.h"
#include "worker/shim/state_file.h"

namespace rayctl::shim {

bool Readable(int fd) {
  pollfd wanted{fd, POLLIN, 0};
  return ::poll(&wanted, 1, kDeadlineMillis) == 1;
}

UniqueFd PidfdOf(pid_t pid) { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

std::string LineFrom(const UniqueFd& fifo) {
  std::string line;
  char byte = 0;
  while (Readable(fifo.get()) && ::read(fifo.get(), &byte, 1) == 1 && byte != '\n') {
    line.push_back(byte);
  }
  return line;
}

template <class Out, class In>
void Peer<Out, In>::SendRaw(const std::string& bytes) {
  const std::string frame = process::EncodeFrame(bytes).value();
  if (::send(fd_.get(), frame.data(), frame.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(frame.size())) {
    throw std::runtime_error("the shim does not take a message");
  }
}

template <class Out, class In>
std::optional<In> Peer<Out, In>::Next() {
  while (true) {
    if (const std::optional<std::string> bytes = reader_.Next().value()) {
      In message;
      if (!message.ParseFromString(*bytes)) {
        throw std::runtime_error("the shim sent something else");
      }
      return message;
    }
    if (!Readable(fd_.get())) {
      throw std::runtime_error("the shim says nothing");
    }
    const auto read = reader_.ReadFrom(fd_.get());
    if (!read.ok() || *read == process::FrameReader::Read::kClosed) {
      return std::nullopt;
    }
  }
}

template class Peer<local::AgentToShim, local::ShimToAgent>;
template class Peer<local::RankMessage, local::ShimReply>;

UniqueFd ConnectTo(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0) {
    throw std::runtime_error("nobody listens on " + path);
  }
  return fd;
}

ShimProgram::ShimProgram(std::chrono::milliseconds agent_grace, bool agent_by_fd) : agent_grace_(agent_grace) {
  if (::mkdir(run_dir().c_str(), 0700) < 0) {
    throw std::runtime_error("no folder for sockets");
  }
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) < 0) {
    throw std::runtime_error("no socket pair");
  }
  agent_.emplace(UniqueFd(ends[0]));
  const UniqueFd theirs(ends[1]);
  process::SpawnOptions options;
  options.argv = Arguments();
  if (agent_by_fd) {
    options.argv.insert(options.argv.end(), {"--agent-fd", std::to_string(theirs.get())});
    options.keep_fds = {theirs.get()};
  }
  const UniqueFd log(::open((dir_.path() + "/shim.log").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  options.stdout_fd = log.get();
  options.stderr_fd = log.get();
  options.new_session = true;
  process_ = process::WorkerProcess::Spawn(options).value();
  if (process_->FinishStart()) {
    throw std::runtime_error("the shim program cannot be executed");
  }
}

ShimProgram::~ShimProgram() {
  if (process_ && !process_->Poll()) {
    process_->Signal(SIGTERM);
    Readable(process_->pidfd());
  }
  // What an agent does after a shim that a test has killed.
  process_.reset();
  if (const absl::StatusOr<ShimState> state = ReadShimState(state_path()); state.ok()) {
    for (const std::string& folder : state->header.cgroups()) {
      CHECK(process::EndCgroup(folder).ok());
    }
  }
}

std::vector<std::string> ShimProgram::Arguments() const {
  return {RAYCTL_SHIM_PROGRAM,
          "--job",
          "7",
          "--state-dir",
          dir_.path() + "/state",
          "--run-dir",
          run_dir(),
          "--agent-grace-ms",
          std::to_string(agent_grace_.count())};
}

void ShimProgram::Hello(std::uint64_t replay_after) {
  Send([&](local::AgentToShim& m) {
    m.mutable_hello()->set_protocol(1);
    m.mutable_hello()->set_replay_after(replay_after);
  });
}

void ShimProgram::Reconnect() { agent_.emplace(ConnectTo(agent_socket())); }

void ShimProgram::Send(const std::function<void(local::AgentToShim&)>& set) {
  local::AgentToShim message;
  message.mutable_id()->set_job_id(7);
  set(message);
  agent_->Send(message);
}

void ShimProgram::Start(std::uint32_t rank, std::vector<std::string> argv, std::vector<std::string> env,
                        const std::function<void(local::RankStart&)>& set) {
  Send([&](local::AgentToShim& m) {
    local::RankStart* start = m.mutable_start()->add_ranks();
    start->set_rank(rank);
    for (const std::string& argument : argv) {
      start->add_argv(argument);
    }
    start->add_env("PATH=/usr/bin:/bin");
    for (const std::string& variable : env) {
      start->add_env(variable);
    }
    start->set_working_dir(dir_.path() + "/state/jobs/7/work");
    start->set_log_path(log_path(rank));
    start->mutable_context()->set_world_size(2);
    if (set) {
      set(*start);
    }
  });
}

local::ShimToAgent ShimProgram::Await(local::ShimToAgent::BodyCase kind) {
  while (const std::optional<local::ShimToAgent> message = agent_->Next()) {
    if (message->body_case() == kind) {
      return *message;
    }
  }
  throw std::runtime_error("the shim closed the connection");
}

process::ExitStatus ShimProgram::AwaitEnd() {
  if (!Readable(process_->pidfd())) {
    throw std::runtime_error("the shim does not end");
  }
  return process_->Poll().value();
}

UniqueFd ShimProgram::MakeFifo(const std::string& name) {
  const std::string path = FifoPath(name);
  if (::mkfifo(path.c_str(), 0600) < 0) {
    throw std::runtime_error("no fifo");
  }
  return UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC));  // Both ways, so that neither side's open waits.
}

}  // namespace rayctl::shim
