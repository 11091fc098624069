#include "daemon/web/web_server.h"

#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "daemon/net/addresses.h"
#include "daemon/net/port_owner.h"
#include "fmt/format.h"

namespace rayctl::web {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

constexpr std::chrono::seconds kIdleMax{30};
constexpr std::size_t kRequestBytesMax = 64 * 1024;
constexpr std::size_t kConnectionsMax = 256;

using Request = http::request<http::string_body>;
using Response = http::response<http::string_body>;

Response Answer(const WebOptions& options, const Request& request) {
  Response response{http::status::ok, request.version()};
  response.set(http::field::server, "rayctl/" + options.version);
  response.keep_alive(request.keep_alive());
  const std::string_view target(request.target().data(), request.target().size());
  const std::string_view path = target.substr(0, target.find('?'));
  const bool reads = request.method() == http::verb::get || request.method() == http::verb::head;
  if (reads && path == "/healthz") {
    response.set(http::field::content_type, "text/plain");
    response.body() = "ok";
  } else if (reads && path == "/version") {
    response.set(http::field::content_type, "application/json");
    response.body() = nlohmann::ordered_json{{"version", options.version}, {"api", options.api}}.dump();
  } else {
    response.result(http::status::not_found);
    response.set(http::field::content_type, "application/json");
    response.body() = nlohmann::json{{"error", "there is nothing at this address; see /healthz and /version"}}.dump();
  }
  if (request.method() == http::verb::head) {
    response.content_length(response.body().size());
    response.body().clear();
  } else {
    response.prepare_payload();
  }
  return response;
}

class Connection;

}  // namespace

class WebServer::Impl : public std::enable_shared_from_this<WebServer::Impl> {
 public:
  Impl(WebOptions web_options, asio::io_context& io) : options(std::move(web_options)), acceptor(io) {}

  void Accept();

  WebOptions options;
  tcp::acceptor acceptor;
  std::set<Connection*> connections;
};

namespace {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, std::set<Connection*>& all, const WebOptions& options, std::shared_ptr<void> server)
      : stream_(std::move(socket)), all_(all), options_(options), server_(std::move(server)) {
    all_.insert(this);
  }
  ~Connection() { all_.erase(this); }

  void Read() {
    parser_.emplace();
    parser_->body_limit(kRequestBytesMax);
    stream_.expires_after(kIdleMax);
    http::async_read(stream_, buffer_, *parser_,
                     [self = shared_from_this()](const beast::error_code& error, std::size_t) {
                       if (!error) {
                         self->Write();
                       }
                     });
  }
  void Close() {
    beast::error_code ignored;  // A connection that is gone already is closed as well.
    stream_.socket().close(ignored);
  }

 private:
  void Write() {
    response_ = Answer(options_, parser_->get());
    http::async_write(stream_, response_, [self = shared_from_this()](const beast::error_code& error, std::size_t) {
      if (!error && self->response_.keep_alive()) {
        self->Read();
      }
    });
  }

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{kRequestBytesMax};
  std::optional<http::request_parser<http::string_body>> parser_;
  Response response_;
  std::set<Connection*>& all_;
  const WebOptions& options_;
  std::shared_ptr<void> server_;  // Owns what the references above name.
};

}  // namespace

void WebServer::Impl::Accept() {
  acceptor.async_accept([self = shared_from_this()](const beast::error_code& error, tcp::socket socket) {
    if (!self->acceptor.is_open()) {
      return;
    }
    if (!error && self->connections.size() < kConnectionsMax) {
      std::make_shared<Connection>(std::move(socket), self->connections, self->options, self)->Read();
    }
    self->Accept();
  });
}

WebServer::WebServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
WebServer::~WebServer() { Stop(); }

absl::StatusOr<std::unique_ptr<WebServer>> WebServer::Start(WebOptions options, asio::io_context& io) {
  if (options.host == "localhost") {
    options.host = "127.0.0.1";
  }
  beast::error_code error;
  const asio::ip::address address = asio::ip::make_address(options.host, error);
  if (error || !address.is_loopback()) {
    return absl::InvalidArgumentError(fmt::format(
        "--dashboard-host {}: this version serves its page on a loopback address only, as 127.0.0.1", options.host));
  }
  auto impl = std::make_shared<Impl>(std::move(options), io);
  const tcp::endpoint endpoint(address, impl->options.port);
  impl->acceptor.open(endpoint.protocol(), error);
  if (!error) {
    impl->acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  }
  if (!error) {
    impl->acceptor.bind(endpoint, error);
  }
  if (!error) {
    impl->acceptor.listen(asio::socket_base::max_listen_connections, error);
  }
  if (error == asio::error::address_in_use) {
    return net::PortTaken(endpoint.port(), kDashboardPortFlag);
  }
  if (error) {
    return absl::UnavailableError(
        fmt::format("listening on {}: {}", net::JoinAddress(impl->options.host, endpoint.port()), error.message()));
  }
  impl->options.port = impl->acceptor.local_endpoint().port();
  impl->Accept();
  return std::unique_ptr<WebServer>(new WebServer(std::move(impl)));
}

std::uint16_t WebServer::port() const { return impl_->options.port; }

std::string WebServer::url() const {
  return fmt::format("http://{}", net::JoinAddress(impl_->options.host, impl_->options.port));
}

void WebServer::Stop() {
  beast::error_code ignored;  // Closed before is closed.
  impl_->acceptor.close(ignored);
  for (Connection* const connection : std::set<Connection*>(impl_->connections)) {
    connection->Close();
  }
}

}  // namespace rayctl::web
