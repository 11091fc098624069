#include "daemon/net/notify.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/unique_fd.h"
#include "fmt/format.h"

namespace rayctl::net {

absl::Status Notify(const std::string& socket_path, std::string_view state) {
  if (socket_path.empty()) {
    return absl::OkStatus();
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(fmt::format("NOTIFY_SOCKET {} is too long for a socket", socket_path));
  }
  socket_path.copy(address.sun_path, socket_path.size());
  if (socket_path.front() == '@') {
    address.sun_path[0] = '\0';  // The kernel's own names for sockets without a file.
  }
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_path.size());
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid() || ::sendto(socket.get(), state.data(), state.size(), MSG_NOSIGNAL,
                                  reinterpret_cast<const sockaddr*>(&address), length) < 0) {
    return absl::UnavailableError(fmt::format("telling {} {}: {}", socket_path, state, std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace rayctl::net
