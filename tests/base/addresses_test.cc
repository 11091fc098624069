#include "base/addresses.h"

#include <catch2/catch.hpp>

namespace rayctl::net {
namespace {

std::string Chosen(const std::vector<Interface>& interfaces) {
  const auto chosen = ChooseReachable(interfaces);
  return chosen ? chosen->name + " " + chosen->address : "none";
}

const Interface kLoopback{"lo", "127.0.0.1", true};
const Interface kLoopback6{"lo", "::1", true};
const Interface kLinkLocal{"eth0", "fe80::5054:ff:fe12:3456", false};
const Interface kGlobal6{"eth0", "fd77::1", false};

TEST_CASE("a machine is reached by its first address that is not loopback, IPv4 before IPv6", "[net]") {
  CHECK(Chosen({kLoopback, {"eth0", "10.0.0.1", false}, {"eth1", "10.1.0.1", false}}) == "eth0 10.0.0.1");
  CHECK(Chosen({kLoopback, kGlobal6, {"eth1", "10.1.0.1", false}}) == "eth1 10.1.0.1");
}

TEST_CASE("without IPv4 it is an address that is valid beyond one link", "[net]") {
  CHECK(Chosen({kLoopback, kLoopback6, kLinkLocal, kGlobal6}) == "eth0 fd77::1");
  CHECK(Chosen({kLoopback, kLoopback6, kLinkLocal}) == "none");
  CHECK(Chosen({kLoopback}) == "none");
}

TEST_CASE("an IPv6 address stands in brackets before its port", "[net]") {
  CHECK(JoinAddress("fd77::1", 6379) == "[fd77::1]:6379");
  CHECK(JoinAddress("[fd77::1]", 6379) == "[fd77::1]:6379");
  CHECK(JoinAddress("10.0.0.1", 6379) == "10.0.0.1:6379");
}

}  // namespace
}  // namespace rayctl::net
