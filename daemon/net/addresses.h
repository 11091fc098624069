#pragma once

#include <string>

namespace rayctl::net {

// The first IPv4 address of this machine that is not loopback, in the order of its interfaces; "127.0.0.1" when it has
// none.
std::string FirstAddress();

// Every address: "", "0.0.0.0", "::".
bool IsAnyHost(const std::string& host);
bool IsLoopbackHost(const std::string& host);

// "host:port", with brackets around an IPv6 address.
std::string JoinAddress(const std::string& host, unsigned port);

}  // namespace rayctl::net
