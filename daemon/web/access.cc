#include "daemon/web/access.h"

#include <boost/asio/ip/address.hpp>
#include <string_view>

#include "fmt/format.h"

namespace rayctl::web {
namespace {

constexpr std::string_view kBearer = "Bearer ";
constexpr char kHowToAuthorize[] =
    "send `Authorization: Bearer TOKEN`; `rayctl token create --role viewer` makes a token";

// "localhost:8265", "127.0.0.1", "[::1]:8265".
bool IsLoopbackName(std::string_view host) {
  if (host.starts_with('[')) {
    host = host.substr(1, host.find(']') == std::string_view::npos ? 0 : host.find(']') - 1);
  } else if (const std::size_t colon = host.rfind(':'); colon != std::string_view::npos) {
    host = host.substr(0, colon);
  }
  if (host == "localhost") {
    return true;
  }
  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(std::string(host), error);
  return !error && address.is_loopback();
}

Access Refuse(bool token_helps, std::string why) {
  return {.refused = Refused{.token_helps = token_helps, .why = std::move(why)}};
}

}  // namespace

Access Decide(const AccessFacts& facts) {
  if (facts.authorization) {
    const std::string_view value = *facts.authorization;
    if (!value.starts_with(kBearer)) {
      return Refuse(true, fmt::format("the Authorization field holds no bearer token; {}", kHowToAuthorize));
    }
    if (!facts.insecure) {
      return {.token = CheckToken{std::string(value.substr(kBearer.size()))}};
    }
  }
  if (!facts.reads) {
    return Refuse(true, fmt::format("only reading is free; {}", kHowToAuthorize));
  }
  if (!facts.on_loopback) {
    return Refuse(true, fmt::format("from another machine a token is needed; {}", kHowToAuthorize));
  }
  if (!IsLoopbackName(facts.host)) {
    return Refuse(false, fmt::format("the Host field names '{}', which is no loopback name", facts.host));
  }
  if (facts.origin && *facts.origin != "http://" + facts.host && *facts.origin != "https://" + facts.host) {
    return Refuse(false, fmt::format("a page of {} may not read this", *facts.origin));
  }
  if (!facts.insecure && facts.peer != facts.own) {
    return Refuse(true, fmt::format("only the user who runs the head reads without a token; {}", kHowToAuthorize));
  }
  return {};
}

}  // namespace rayctl::web
