#include <fcntl.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>

#include "base/errno_status.h"
#include "worker/process/proc.h"
#include "worker/shim/shim_loop_impl.h"

namespace rayctl::shim {

namespace {

constexpr std::size_t kSocketPathMax = 100;
constexpr int kBacklog = 128;
constexpr std::size_t kRankConnectionsMax = 4096;

}  // namespace

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
    return ErrnoStatus("making a socket", errno);
  }
  // Whoever listened here is dead: the lock on the state file says so.
  if (::unlink(path.c_str()) < 0 && errno != ENOENT) {
    return ErrnoStatus("removing " + path, errno);
  }
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0 ||
      ::chmod(path.c_str(), 0600) < 0 || ::listen(fd.get(), kBacklog) < 0) {
    return ErrnoStatus("listening on " + path, errno);
  }
  return fd;
}

void Loop::AcceptAll(const UniqueFd& listener, void (Loop::*take)(UniqueFd, const ucred&)) {
  while (true) {
    UniqueFd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.valid()) {
      TakePeer(std::move(socket), take);
      continue;
    }
    if ((errno == EMFILE || errno == ENFILE) && reserve_.valid()) {
      Log("a connection is turned away: " + ErrnoText(errno));
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

void Loop::Carry(const SendAgent& effect) {
  if (agent_ != nullptr) {
    agent_->Send(effect.message.SerializeAsString());
  }
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

}  // namespace rayctl::shim
