#include "daemon/net/port_owner.h"

#include <netdb.h>
#include <pwd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/unique_fd.h"
#include "fmt/format.h"

namespace rayctl::net {
namespace {

namespace fs = std::filesystem;

constexpr char kListening[] = "0A";  // TCP_LISTEN in /proc/net/tcp.

// The sockets that listen on the port: inodes, and whose they are.
std::map<std::string, uid_t> ListeningSockets(std::uint16_t port) {
  std::map<std::string, uid_t> sockets;
  const std::string suffix = fmt::format(":{:04X}", port);
  for (const char* const path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream table(path);
    std::string line;
    std::getline(table, line);  // Headings.
    while (std::getline(table, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
      fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
      uid_t owner = 0;
      if (fields && state == kListening && local.ends_with(suffix) && absl::SimpleAtoi(uid, &owner)) {
        sockets[inode] = owner;
      }
    }
  }
  return sockets;
}

std::string UserName(uid_t uid) {
  const passwd* const entry = ::getpwuid(uid);
  return entry == nullptr ? fmt::format("{}", uid) : std::string(entry->pw_name);
}

std::string ReadLine(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

std::string DescribePortOwner(std::uint16_t port) {
  std::map<std::string, uid_t> wanted;
  for (const auto& [inode, owner] : ListeningSockets(port)) {
    wanted[fmt::format("socket:[{}]", inode)] = owner;
  }
  std::error_code error;
  for (fs::directory_iterator process("/proc", error), end; !error && process != end; process.increment(error)) {
    const std::string pid = process->path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    std::error_code denied;  // Of other users' processes, and of those that end meanwhile.
    for (fs::directory_iterator fd(process->path() / "fd", denied), last; !denied && fd != last; fd.increment(denied)) {
      std::error_code gone;
      if (wanted.contains(fs::read_symlink(fd->path(), gone).string())) {
        return fmt::format("{} (pid {})", ReadLine(process->path() / "comm"), pid);
      }
    }
  }
  return wanted.empty() ? "a process that has just gone"
                        : fmt::format("a process of user {}", UserName(wanted.begin()->second));
}

absl::Status PortTaken(std::uint16_t port, std::string_view flag) {
  return absl::AlreadyExistsError(fmt::format("port {} is taken by {}; {} chooses another, {} 0 any free one", port,
                                              DescribePortOwner(port), flag, flag));
}

absl::Status CheckListen(const std::string& host, std::uint16_t port, std::string_view flag) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error =
      ::getaddrinfo(host.empty() ? nullptr : host.c_str(), fmt::format("{}", port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(fmt::format("{} is no address of this machine: {}", host, ::gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(found, &::freeaddrinfo);
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    const UniqueFd socket(::socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket.valid()) {
      continue;  // A machine without IPv6.
    }
    const int on = 1;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (entry->ai_family == AF_INET6) {
      ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
    }
    // SO_REUSEADDR lets two sockets bind one port until one listens.
    if (::bind(socket.get(), entry->ai_addr, entry->ai_addrlen) == 0 && ::listen(socket.get(), 1) == 0) {
      continue;
    }
    if (errno == EADDRINUSE) {
      return PortTaken(port, flag);
    }
    if (errno == EACCES) {
      return absl::PermissionDeniedError(fmt::format("port {} is only for root; {} chooses another", port, flag));
    }
    if (errno == EADDRNOTAVAIL && !host.empty()) {
      return absl::InvalidArgumentError(fmt::format("{} is no address of this machine", host));
    }
  }
  return absl::OkStatus();
}

}  // namespace rayctl::net
