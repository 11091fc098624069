#include "base/addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "fmt/format.h"

namespace rayctl::net {
namespace {

bool IsV6(const Interface& interface) { return interface.address.find(':') != std::string::npos; }

}  // namespace

bool IsLinkLocal(const Interface& interface) {
  in6_addr address{};
  return ::inet_pton(AF_INET6, interface.address.c_str(), &address) == 1 && IN6_IS_ADDR_LINKLOCAL(&address);
}

std::string AddressText(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bytes = nullptr;
  if (address->sa_family == AF_INET) {
    bytes = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  } else if (address->sa_family == AF_INET6) {
    bytes = &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  }
  return bytes != nullptr && ::inet_ntop(address->sa_family, bytes, text.data(), text.size()) != nullptr ? text.data()
                                                                                                         : "";
}

std::vector<Interface> Interfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    return {};
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::vector<Interface> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) {
      continue;
    }
    if (std::string address = AddressText(entry->ifa_addr); !address.empty()) {
      found.push_back({entry->ifa_name, std::move(address), (entry->ifa_flags & IFF_LOOPBACK) != 0});
    }
  }
  return found;
}

std::optional<Interface> ChooseReachable(const std::vector<Interface>& interfaces) {
  for (const bool v6 : {false, true}) {
    const auto it = std::find_if(interfaces.begin(), interfaces.end(), [v6](const Interface& each) {
      return !each.loopback && IsV6(each) == v6 && !IsLinkLocal(each);
    });
    if (it != interfaces.end()) {
      return *it;
    }
  }
  return std::nullopt;
}

std::string FirstAddress() {
  const std::optional<Interface> chosen = ChooseReachable(Interfaces());
  return chosen ? chosen->address : "127.0.0.1";
}

bool IsAnyHost(const std::string& host) { return host.empty() || host == "0.0.0.0" || host == "::" || host == "[::]"; }

bool IsLoopbackHost(const std::string& host) {
  return host == "localhost" || host == "::1" || host == "[::1]" || host.starts_with("127.");
}

std::string JoinAddress(const std::string& host, unsigned port) {
  const bool bare_v6 = host.find(':') != std::string::npos && !host.starts_with('[');
  return bare_v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

}  // namespace rayctl::net
