#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>

#include "base/unique_fd.h"
#include "client/channel.h"
#include "tests/daemon/rpc/head_fixture.h"

namespace rayctl::client {
namespace {

// A listener that answers every connection with some words, as another program's server would.
class Stranger {
 public:
  Stranger() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    REQUIRE(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
    REQUIRE(::listen(listener_.get(), 4) == 0);
    REQUIRE(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] {
      const UniqueFd connection(::accept(listener_.get(), nullptr, nullptr));
      if (connection.valid()) {
        static_cast<void>(::write(connection.get(), "220 mail ready\r\n", 16));
      }
    });
  }
  ~Stranger() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  const std::string& address() const { return address_; }

 private:
  UniqueFd listener_;
  std::string address_;
  std::thread thread_;
};

TEST_CASE("the CA comes out of the head's handshake by its hash", "[fetch_ca]") {
  const rpc::test::TestHead head;
  const auto pem = FetchCa(head.address(), head.authority().sha256());
  REQUIRE(pem.ok());
  CHECK(*pem == head.authority().identity().certificate_pem);
}

TEST_CASE("another cluster's head is told apart", "[fetch_ca]") {
  const rpc::test::TestHead head;
  CHECK(absl::IsUnauthenticated(FetchCa(head.address(), std::string(64, 'a')).status()));
}

TEST_CASE("a plain-text head and another program are not heads", "[fetch_ca]") {
  const Stranger stranger;
  CHECK(absl::IsUnavailable(FetchCa(stranger.address(), std::string(64, 'a')).status()));
  const rpc::test::TestHead plain(/*insecure=*/true);
  CHECK(absl::IsUnavailable(FetchCa(plain.address(), std::string(64, 'a')).status()));
}

TEST_CASE("a closed port and a bad address say so", "[fetch_ca]") {
  std::string address;
  {
    const rpc::test::TestHead head;
    address = head.address();
  }
  const absl::Status closed = FetchCa(address, std::string(64, 'a')).status();
  CHECK(absl::IsUnavailable(closed));
  CHECK(std::string(closed.message()).find("refused; that address means this machine itself") != std::string::npos);
  CHECK(absl::IsInvalidArgument(FetchCa("nowhere", std::string(64, 'a')).status()));
}

TEST_CASE("a server that never answers is given up at the deadline", "[fetch_ca]") {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  REQUIRE(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
  REQUIRE(::listen(listener.get(), 4) == 0);
  REQUIRE(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
  const auto pem = FetchCa("127.0.0.1:" + std::to_string(ntohs(address.sin_port)), std::string(64, 'a'),
                           std::chrono::milliseconds(50));
  CHECK(absl::IsUnavailable(pem.status()));
}

}  // namespace
}  // namespace rayctl::client
