#include "daemon/net/peer_user.h"

#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <sstream>

namespace rayctl::net {
namespace {

namespace ip = boost::asio::ip;
using ip::tcp;

tcp::endpoint At(const char* address, std::uint16_t port) { return {ip::make_address(address), port}; }

constexpr char kTable[] =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    "   0: 0100007F:2049 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100 0 0 10 0\n"
    "   1: 0100007F:2049 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 12 1 0 20 4 30 10 -1\n"
    "   2: 0100007F:C350 0100007F:2049 01 00000000:00000000 00:00000000 00000000  1000        0 13 1 0 20 4 30 10 -1\n";
constexpr char kTable6[] =
    "  sl  local_address                         remote_address                        st tx_queue rx_queue tr "
    "tm->when "
    "retrnsmt   uid  timeout inode\n"
    "   0: 0000000000000000FFFF00000100007F:C351 0000000000000000FFFF00000100007F:2049 01 00000000:00000000 "
    "00:00000000 "
    "00000000  1001        0 14 1 0 20 4 30 10 -1\n"
    "   1: 00000000000000000000000001000000:C352 00000000000000000000000001000000:2049 01 00000000:00000000 "
    "00:00000000 "
    "00000000  1002        0 15 1 0 20 4 30 10 -1\n";

TEST_CASE("the user is that of the peer's row, not of our own", "[net]") {
  std::istringstream table(kTable);
  CHECK(PeerUserIn(table, At("127.0.0.1", 50000), At("127.0.0.1", 8265), false) == 1000U);
  std::istringstream again(kTable);
  CHECK_FALSE(PeerUserIn(again, At("127.0.0.1", 50001), At("127.0.0.1", 8265), false));
  std::istringstream other(kTable);
  CHECK_FALSE(PeerUserIn(other, At("127.0.0.2", 50000), At("127.0.0.1", 8265), false));
}

TEST_CASE("IPv6, and IPv4 by an IPv6 socket", "[net]") {
  std::istringstream mapped(kTable6);
  CHECK(PeerUserIn(mapped, At("127.0.0.1", 50001), At("127.0.0.1", 8265), true) == 1001U);
  std::istringstream six(kTable6);
  CHECK(PeerUserIn(six, At("::1", 50002), At("::1", 8265), true) == 1002U);
}

TEST_CASE("a real connection is this user's", "[net]") {
  boost::asio::io_context io;
  for (const char* const address : {"127.0.0.1", "::1"}) {
    boost::system::error_code error;
    tcp::acceptor acceptor(io);
    const tcp::endpoint any = At(address, 0);
    acceptor.open(any.protocol(), error);
    if (!error) {
      acceptor.bind(any, error);
    }
    if (error) {
      WARN(address << " is not there: " << error.message());  // A machine without IPv6.
      continue;
    }
    acceptor.listen();
    tcp::socket client(io);
    client.connect(acceptor.local_endpoint());
    const tcp::socket server = acceptor.accept();
    CHECK(PeerUser(server.remote_endpoint(), server.local_endpoint()) == ::geteuid());
  }
}

}  // namespace
}  // namespace rayctl::net
