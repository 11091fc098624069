#include "daemon/web/web_server.h"

#include <unistd.h>

#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>
#include <utility>

#include "base/addresses.h"
#include "daemon/net/peer_user.h"
#include "daemon/net/port_owner.h"
#include "daemon/web/access.h"
#include "fmt/format.h"

namespace rayctl::web {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

// From the first byte of a request, or the answer before it, to its last.
constexpr std::chrono::seconds kRequestTimeMax{30};
constexpr std::uint32_t kHeaderBytesMax = 16 * 1024;
constexpr std::size_t kBodyBytesMax = 64 * 1024;
constexpr std::size_t kConnectionsMax = 256;

using Request = http::request<http::string_body>;
using Response = http::response<http::string_body>;

std::string_view View(beast::string_view text) { return {text.data(), text.size()}; }

std::optional<std::string> Field(const Request& request, http::field name) {
  const auto found = request.find(name);
  return found == request.end() ? std::nullopt : std::optional(std::string(View(found->value())));
}

void Fail(Response& response, http::status status, const std::string& why) {
  response.result(status);
  response.set(http::field::content_type, "application/json");
  response.body() =
      nlohmann::json{{"error", why}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void FailAs(Response& response, const absl::Status& status) {
  const http::status code = absl::IsNotFound(status)           ? http::status::not_found
                            : absl::IsInvalidArgument(status)  ? http::status::bad_request
                            : absl::IsUnauthenticated(status)  ? http::status::unauthorized
                            : absl::IsPermissionDenied(status) ? http::status::forbidden
                                                               : http::status::internal_server_error;
  if (code == http::status::unauthorized) {
    response.set(http::field::www_authenticate, "Bearer");
  }
  Fail(response, code, std::string(status.message()));
}

struct Ends {
  tcp::endpoint peer;
  tcp::endpoint own;
};

class ConnectionBase {
 public:
  virtual ~ConnectionBase() = default;
  virtual void Close() = 0;
};

}  // namespace

class WebServer::Impl : public std::enable_shared_from_this<WebServer::Impl> {
 public:
  Impl(WebOptions web_options, WebSources web_sources, asio::io_context& io)
      : options(std::move(web_options)), sources(std::move(web_sources)), acceptor(io) {}

  absl::Status OpenTls();
  absl::Status Listen();
  void Accept();
  Response Answer(const Request& request, const Ends& ends) const;

  WebOptions options;
  WebSources sources;
  tcp::acceptor acceptor;
  std::optional<asio::ssl::context> tls;
  std::set<ConnectionBase*> connections;

 private:
  absl::Status MayRead(const Request& request, const Ends& ends) const;
  void Fill(const Request& request, const Ends& ends, Response& response) const;
};

namespace {

// One connection: a request, its answer, the next. `Stream` is a tcp_stream, in TLS or not.
template <class Stream>
class Connection final : public ConnectionBase, public std::enable_shared_from_this<Connection<Stream>> {
 public:
  template <class... Parts>
  Connection(std::shared_ptr<WebServer::Impl> server, Parts&&... parts)
      : server_(std::move(server)), stream_(std::forward<Parts>(parts)...) {
    server_->connections.insert(this);
    beast::error_code gone;  // Then the first read says so.
    ends_.peer = Lowest().socket().remote_endpoint(gone);
    ends_.own = Lowest().socket().local_endpoint(gone);
  }
  ~Connection() override { server_->connections.erase(this); }

  void Start() {
    if constexpr (std::is_same_v<Stream, beast::tcp_stream>) {
      Read();
    } else {
      Lowest().expires_after(kRequestTimeMax);
      stream_.async_handshake(asio::ssl::stream_base::server,
                              [self = this->shared_from_this()](const beast::error_code& error) {
                                if (!error) {
                                  self->Read();
                                }
                              });
    }
  }
  void Close() override {
    beast::error_code ignored;  // A connection that is gone already is closed as well.
    Lowest().socket().close(ignored);
  }

 private:
  beast::tcp_stream& Lowest() { return beast::get_lowest_layer(stream_); }

  void Read() {
    parser_.emplace();
    parser_->header_limit(kHeaderBytesMax);
    parser_->body_limit(kBodyBytesMax);
    Lowest().expires_after(kRequestTimeMax);
    http::async_read(stream_, buffer_, *parser_,
                     [self = this->shared_from_this()](const beast::error_code& error, std::size_t) {
                       if (!error) {
                         self->Write(self->server_->Answer(self->parser_->get(), self->ends_));
                       } else if (error.category() == http::make_error_code(http::error::bad_method).category() &&
                                  error != http::error::end_of_stream && error != http::error::partial_message) {
                         self->Refuse(error);
                       }
                     });
  }
  void Refuse(const beast::error_code& error) {
    Response response{error == http::error::header_limit || error == http::error::buffer_overflow
                          ? http::status::request_header_fields_too_large
                      : error == http::error::body_limit ? http::status::payload_too_large
                                                         : http::status::bad_request,
                      11};
    response.keep_alive(false);
    Fail(response, response.result(), fmt::format("not a request that is read here: {}", error.message()));
    response.prepare_payload();
    Write(std::move(response));
  }
  void Write(Response response) {
    response_ = std::move(response);
    http::async_write(stream_, response_,
                      [self = this->shared_from_this()](const beast::error_code& error, std::size_t) {
                        if (!error && self->response_.keep_alive()) {
                          self->Read();
                        } else if (!error) {
                          beast::error_code ignored;  // The peer may have closed it first.
                          self->Lowest().socket().shutdown(tcp::socket::shutdown_send, ignored);
                        }
                      });
  }

  std::shared_ptr<WebServer::Impl> server_;
  Stream stream_;
  Ends ends_;
  beast::flat_buffer buffer_{kHeaderBytesMax + kBodyBytesMax};
  std::optional<http::request_parser<http::string_body>> parser_;
  Response response_;
};

}  // namespace

absl::Status WebServer::Impl::MayRead(const Request& request, const Ends& ends) const {
  AccessFacts facts{.reads = request.method() == http::verb::get || request.method() == http::verb::head,
                    .on_loopback = ends.peer.address().is_loopback() && ends.own.address().is_loopback(),
                    .insecure = options.insecure,
                    .own = ::geteuid(),
                    .host = Field(request, http::field::host).value_or(""),
                    .origin = Field(request, http::field::origin),
                    .authorization = Field(request, http::field::authorization)};
  if (facts.on_loopback && !facts.authorization) {
    facts.peer = net::PeerUser(ends.peer, ends.own);
  }
  const Access access = Decide(facts);
  if (access.refused) {
    return access.refused->token_helps ? absl::UnauthenticatedError(access.refused->why)
                                       : absl::PermissionDeniedError(access.refused->why);
  }
  return access.token ? sources.check_token(access.token->bearer) : absl::OkStatus();
}

void WebServer::Impl::Fill(const Request& request, const Ends& ends, Response& response) const {
  const std::string_view target = View(request.target());
  const std::string_view path = target.substr(0, target.find('?'));
  const bool is_api = path.starts_with(kApiPrefix);
  if (!is_api && path != "/healthz" && path != "/version") {
    Fail(response, http::status::not_found,
         "there is nothing at this address; see /healthz, /version, /api/v1/status, /api/v1/jobs, /api/v1/nodes");
    return;
  }
  if (is_api) {
    if (const absl::Status may = MayRead(request, ends); !may.ok()) {
      FailAs(response, may);
      return;
    }
  }
  if (request.method() != http::verb::get && request.method() != http::verb::head) {
    response.set(http::field::allow, "GET, HEAD");
    Fail(response, http::status::method_not_allowed, "only GET and HEAD are known here");
    return;
  }
  if (path == "/healthz") {
    response.set(http::field::content_type, "text/plain");
    response.body() = "ok";
    return;
  }
  response.set(http::field::content_type, "application/json");
  if (path == "/version") {
    response.body() = nlohmann::ordered_json{{"version", options.version}, {"api", options.api}}.dump();
    return;
  }
  // What a browser keeps would be read again by whoever sits there next.
  response.set(http::field::cache_control, "no-store");
  absl::StatusOr<std::string> json = sources.read(path.substr(kApiPrefix.size()));
  if (!json.ok()) {
    FailAs(response, json.status());
    return;
  }
  response.body() = *std::move(json) + "\n";
}

Response WebServer::Impl::Answer(const Request& request, const Ends& ends) const {
  Response response{http::status::ok, request.version()};
  response.set(http::field::server, "rayctl/" + options.version);
  response.keep_alive(request.keep_alive());
  Fill(request, ends, response);
  if (request.method() == http::verb::head) {
    response.content_length(response.body().size());
    response.body().clear();
  } else {
    response.prepare_payload();
  }
  return response;
}

absl::Status WebServer::Impl::OpenTls() {
  beast::error_code error;
  const asio::ip::address address = asio::ip::make_address(options.host, error);
  if (error) {
    return absl::InvalidArgumentError(fmt::format(
        "--dashboard-host {}: expected an address of this machine, such as 127.0.0.1 or 0.0.0.0", options.host));
  }
  if (address.is_loopback()) {
    return absl::OkStatus();
  }
  if (!options.tls) {
    return absl::InvalidArgumentError(fmt::format(
        "--dashboard-host {}: with --insecure the page is served on loopback only, as 127.0.0.1", options.host));
  }
  tls.emplace(asio::ssl::context::tls_server);
  tls->set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1, error);
  if (!error) {
    tls->use_certificate_chain(asio::buffer(options.tls->certificate_chain_pem), error);
  }
  if (!error) {
    tls->use_private_key(asio::buffer(options.tls->key_pem), asio::ssl::context::pem, error);
  }
  return error ? absl::InternalError(fmt::format("the page's certificate: {}", error.message())) : absl::OkStatus();
}

absl::Status WebServer::Impl::Listen() {
  beast::error_code error;
  const tcp::endpoint endpoint(asio::ip::make_address(options.host, error), options.port);
  acceptor.open(endpoint.protocol(), error);
  if (!error) {
    acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  }
  if (!error) {
    acceptor.bind(endpoint, error);
  }
  if (!error) {
    acceptor.listen(asio::socket_base::max_listen_connections, error);
  }
  if (error == asio::error::address_in_use) {
    return net::PortTaken(endpoint.port(), kDashboardPortFlag);
  }
  if (error) {
    return absl::UnavailableError(
        fmt::format("listening on {}: {}", net::JoinAddress(options.host, endpoint.port()), error.message()));
  }
  options.port = acceptor.local_endpoint().port();
  return absl::OkStatus();
}

void WebServer::Impl::Accept() {
  acceptor.async_accept([self = shared_from_this()](const beast::error_code& error, tcp::socket socket) {
    if (!self->acceptor.is_open()) {
      return;
    }
    if (!error && self->connections.size() < kConnectionsMax) {
      if (self->tls) {
        std::make_shared<Connection<beast::ssl_stream<beast::tcp_stream>>>(self, std::move(socket), *self->tls)
            ->Start();
      } else {
        std::make_shared<Connection<beast::tcp_stream>>(self, std::move(socket))->Start();
      }
    }
    self->Accept();
  });
}

WebServer::WebServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
WebServer::~WebServer() { Stop(); }

absl::StatusOr<std::unique_ptr<WebServer>> WebServer::Start(WebOptions options, WebSources sources,
                                                            asio::io_context& io) {
  if (options.host == "localhost") {
    options.host = "127.0.0.1";
  }
  auto impl = std::make_shared<Impl>(std::move(options), std::move(sources), io);
  absl::Status status = impl->OpenTls();
  if (status.ok()) {
    status = impl->Listen();
  }
  if (!status.ok()) {
    return status;
  }
  impl->Accept();
  return std::unique_ptr<WebServer>(new WebServer(std::move(impl)));
}

std::uint16_t WebServer::port() const { return impl_->options.port; }

std::string WebServer::url() const {
  const std::string host = net::IsAnyHost(impl_->options.host) ? net::FirstAddress() : impl_->options.host;
  return fmt::format("{}://{}", impl_->tls ? "https" : "http", net::JoinAddress(host, impl_->options.port));
}

void WebServer::Stop() {
  beast::error_code ignored;  // Closed before is closed.
  impl_->acceptor.close(ignored);
  for (ConnectionBase* const connection : std::set<ConnectionBase*>(impl_->connections)) {
    connection->Close();
  }
}

}  // namespace rayctl::web
