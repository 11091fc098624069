#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rayctl::web {

inline constexpr char kDashboardPortFlag[] = "--dashboard-port";
inline constexpr std::string_view kApiPrefix = "/api/v1/";

struct WebOptions {
  struct Tls {
    std::string certificate_chain_pem;
    std::string key_pem;
  };
  std::string host = "127.0.0.1";  // An address; what is not loopback is served by HTTPS.
  std::uint16_t port = 0;          // 0 picks one.
  std::string version;
  std::uint32_t api = 1;
  bool insecure = false;   // Whoever is on this machine may read.
  std::optional<Tls> tls;  // Not needed on loopback.
};

// What the server asks of the head, on the thread that runs `io`.
struct WebSources {
  // The JSON of a path below kApiPrefix. NOT_FOUND: there is nothing. INVALID_ARGUMENT: a wrong query.
  std::function<absl::StatusOr<std::string>(std::string_view path)> read;
  // OK: who holds the token may read. UNAUTHENTICATED, PERMISSION_DENIED: with what to do.
  std::function<absl::Status(std::string_view bearer)> check_token;
};

// GET and HEAD of /healthz and /version for everybody, of /api/v1/… by the rules of access.h; plain HTTP on loopback,
// HTTPS elsewhere. Lives on the thread that runs `io`.
class WebServer {
 public:
  // ALREADY_EXISTS: the port is taken, by whom. INVALID_ARGUMENT: not an address of this machine, or one that is not
  // loopback without TLS.
  static absl::StatusOr<std::unique_ptr<WebServer>> Start(WebOptions options, WebSources sources,
                                                          boost::asio::io_context& io);
  ~WebServer();
  class Impl;

  std::uint16_t port() const;
  std::string url() const;
  // Takes no more connections and closes those there are.
  void Stop();

 private:
  explicit WebServer(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace rayctl::web
