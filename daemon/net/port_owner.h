#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace rayctl::net {

// Who listens on a TCP port of this machine, for an error message: `redis-server (pid 812)`, or `a process of user
// ann` when /proc tells no more than that.
std::string DescribePortOwner(std::uint16_t port);

// ALREADY_EXISTS, by whom and which flag changes it: `port 6379 is taken by redis-server (pid 812); --port chooses
// another, --port 0 any free one`.
absl::Status PortTaken(std::uint16_t port, std::string_view flag);

// Whether `host:port` can be listened on; an empty host is every address. ALREADY_EXISTS: PortTaken.
// INVALID_ARGUMENT: no such address here. PERMISSION_DENIED: a port that this user may not have.
absl::Status CheckListen(const std::string& host, std::uint16_t port, std::string_view flag);

}  // namespace rayctl::net
