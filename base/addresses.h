#pragma once

#include <sys/socket.h>

#include <optional>
#include <string>
#include <vector>

namespace rayctl::net {

struct Interface {
  std::string name;
  std::string address;
  bool loopback = false;
};

// fe80::/10, which means something only together with an interface of the machine that uses it.
bool IsLinkLocal(const Interface& interface);
// "10.0.0.7", "fd00::7"; "" where it is neither IPv4 nor IPv6.
std::string AddressText(const sockaddr* address);

// Every address of this machine on an interface that is up, in the system's order.
std::vector<Interface> Interfaces();

// The one by which other machines reach this one, when nothing says more: the first IPv4 address that is not loopback,
// else the first IPv6 address that is neither loopback nor valid on one link alone.
std::optional<Interface> ChooseReachable(const std::vector<Interface>& interfaces);

// The address of ChooseReachable on this machine; "127.0.0.1" when it has none.
std::string FirstAddress();

// Every address: "", "0.0.0.0", "::".
bool IsAnyHost(const std::string& host);
bool IsLoopbackHost(const std::string& host);

// "host:port", with brackets around an IPv6 address.
std::string JoinAddress(const std::string& host, unsigned port);

}  // namespace rayctl::net
