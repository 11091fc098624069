#pragma once

#include <sys/types.h>

#include <boost/asio/ip/tcp.hpp>
#include <istream>
#include <optional>

namespace rayctl::net {

// The user who holds the other end of a TCP connection within this machine: `peer` and `own` as our end sees them.
// nullopt: it is not held here, or /proc does not tell.
std::optional<uid_t> PeerUser(const boost::asio::ip::tcp::endpoint& peer, const boost::asio::ip::tcp::endpoint& own);

// The same in one table as /proc/net/tcp (IPv4) or /proc/net/tcp6 shows it. `mapped`: look for IPv4 addresses as an
// IPv6 socket has them.
std::optional<uid_t> PeerUserIn(std::istream& table, const boost::asio::ip::tcp::endpoint& peer,
                                const boost::asio::ip::tcp::endpoint& own, bool mapped);

}  // namespace rayctl::net
