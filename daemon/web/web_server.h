#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace rayctl::web {

inline constexpr char kDashboardPortFlag[] = "--dashboard-port";

struct WebOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0 picks one.
  std::string version;
  std::uint32_t api = 1;
};

// Plain HTTP on the loopback: GET /healthz and /version; anything else is 404. Lives on the thread that runs `io`.
class WebServer {
 public:
  // ALREADY_EXISTS: the port is taken, by whom. INVALID_ARGUMENT: not a loopback address of this machine.
  static absl::StatusOr<std::unique_ptr<WebServer>> Start(WebOptions options, boost::asio::io_context& io);
  ~WebServer();

  std::uint16_t port() const;
  std::string url() const;
  // Takes no more connections and closes those there are.
  void Stop();

 private:
  class Impl;
  explicit WebServer(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace rayctl::web
