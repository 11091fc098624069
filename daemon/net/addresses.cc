#include "daemon/net/addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <array>
#include <memory>

#include "fmt/format.h"

namespace rayctl::net {

std::string FirstAddress() {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) == 0) {
    const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(found, &::freeifaddrs);
    for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
      const bool usable = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_LOOPBACK) == 0;
      if (!usable || entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) {
        continue;
      }
      std::array<char, INET_ADDRSTRLEN> text{};
      const auto* const address = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr);
      if (::inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size()) != nullptr) {
        return text.data();
      }
    }
  }
  return "127.0.0.1";
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
