// A rank that a test plays: it connects to its rank socket whenever the test asks for it and hands the connection over,
// so that the kernel names this process as the peer. Commands over RAYCTL_TEST_BRIDGE: 'c' connect, 'x' exit with code
// 0.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace {

int Connect(const char* path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0) {
    std::exit(3);
  }
  return fd;
}

void HandOver(int bridge, int fd) {
  char byte = 'f';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  if (::sendmsg(bridge, &message, 0) != 1) {
    std::exit(4);
  }
  ::close(fd);
}

}  // namespace

int main() {
  const int bridge = Connect(std::getenv("RAYCTL_TEST_BRIDGE"));
  char command = 0;
  while (::read(bridge, &command, 1) == 1 && command == 'c') {
    HandOver(bridge, Connect(std::getenv("RAYCTL_SOCKET")));
  }
  return command == 'x' ? 0 : 5;
}
