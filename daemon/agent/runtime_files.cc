#include "daemon/agent/runtime_files.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace rayctl::agent {
namespace {

bool CanListen(const sockaddr* address, socklen_t length, int family) {
  const UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    return true;  // No such family here: nobody holds the port in it.
  }
  const int on = 1;
  const int off = 0;
  // Connections that wait out their end do not hold a port for a server.
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (family == AF_INET6) {
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  return (::bind(fd.get(), address, length) == 0 && ::listen(fd.get(), 1) == 0) || errno != EADDRINUSE;
}

}  // namespace

absl::StatusOr<UniqueFd> LockStateFolder(const std::string& state_dir) {
  const std::string folder = state_dir + "/agent";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::InternalError(fmt::format("making {}: {}", folder, error.message()));
  }
  const std::string path = folder + "/lock";
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) {
    return absl::InternalError(fmt::format("opening {}: {}", path, std::strerror(errno)));
  }
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::AlreadyExistsError(fmt::format("an agent already runs on {}", state_dir));
  }
  return fd;
}

ReadyPipe::ReadyPipe(int fd) : fd_(fd) {
  if (fd >= 0) {
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
}

void ReadyPipe::Say(const nlohmann::ordered_json& line) {
  if (!fd_.valid()) {
    return;
  }
  const std::string text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  // Far below PIPE_BUF: whole or not at all.
  if (::write(fd_.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    spdlog::warn("nobody reads the ready line why={}", std::strerror(errno));
  }
  fd_.Reset();
}

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    spdlog::warn("descriptor limit unknown why={}", std::strerror(errno));
    return;
  }
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    spdlog::warn("descriptor limit not raised why={}", std::strerror(errno));
  }
}

bool PortIsFree(std::uint32_t port) {
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(static_cast<std::uint16_t>(port));
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = six.sin6_port;
  return CanListen(reinterpret_cast<const sockaddr*>(&four), sizeof(four), AF_INET) &&
         CanListen(reinterpret_cast<const sockaddr*>(&six), sizeof(six), AF_INET6);
}

}  // namespace rayctl::agent
