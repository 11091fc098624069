#include "daemon/net/peer_user.h"

#include <array>
#include <fstream>
#include <span>
#include <sstream>
#include <string>

#include "fmt/format.h"

namespace rayctl::net {
namespace {

namespace ip = boost::asio::ip;

// The kernel prints each four bytes of an address as one number in the machine's byte order, which is little-endian on
// every machine that rayctl is built for.
std::string Words(std::span<const unsigned char> bytes) {
  std::string text;
  for (std::size_t word = 0; word < bytes.size(); word += 4) {
    text += fmt::format("{:02X}{:02X}{:02X}{:02X}", bytes[word + 3], bytes[word + 2], bytes[word + 1], bytes[word]);
  }
  return text;
}

std::string InTable(const ip::tcp::endpoint& endpoint, bool mapped) {
  const ip::address& address = endpoint.address();
  std::string words;
  if (address.is_v4() && !mapped) {
    words = Words(address.to_v4().to_bytes());
  } else {
    words = Words((address.is_v4() ? ip::make_address_v6(ip::v4_mapped, address.to_v4()) : address.to_v6()).to_bytes());
  }
  return fmt::format("{}:{:04X}", words, endpoint.port());
}

}  // namespace

std::optional<uid_t> PeerUserIn(std::istream& table, const ip::tcp::endpoint& peer, const ip::tcp::endpoint& own,
                                bool mapped) {
  // The row of the peer's socket has our end as its remote one.
  const std::string wanted_local = InTable(peer, mapped);
  const std::string wanted_remote = InTable(own, mapped);
  std::string line;
  std::getline(table, line);  // Headings.
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, queues, timer, retransmits;
    uid_t uid = 0;
    if (fields >> slot >> local >> remote && local == wanted_local && remote == wanted_remote &&
        fields >> state >> queues >> timer >> retransmits >> uid) {
      return uid;
    }
  }
  return std::nullopt;
}

std::optional<uid_t> PeerUser(const ip::tcp::endpoint& peer, const ip::tcp::endpoint& own) {
  if (peer.address().is_v4()) {
    std::ifstream table("/proc/net/tcp");
    if (const std::optional<uid_t> uid = PeerUserIn(table, peer, own, false)) {
      return uid;
    }
  }
  std::ifstream table("/proc/net/tcp6");
  return PeerUserIn(table, peer, own, true);
}

}  // namespace rayctl::net
