#include <fcntl.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/unique_fd.h"
#include "client/channel.h"
#include "client/endpoint.h"
#include "client/identity.h"
#include "client/token.h"
#include "fmt/format.h"

namespace rayctl::client {
namespace {

// gRPC servers end a handshake that does not offer HTTP/2.
constexpr std::array<unsigned char, 3> kHttp2{2, 'h', '2'};

struct Free {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

class Deadline {
 public:
  explicit Deadline(std::chrono::milliseconds timeout) : at_(std::chrono::steady_clock::now() + timeout) {}
  // False when it passes first.
  bool WaitFor(int fd, short events) const {
    while (true) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(at_ - std::chrono::steady_clock::now()).count();
      if (left <= 0) {
        return false;
      }
      pollfd poll_fd{.fd = fd, .events = events, .revents = 0};
      const int ready = ::poll(&poll_fd, 1, static_cast<int>(left));
      if (ready > 0) {
        return true;
      }
      if (ready < 0 && errno != EINTR) {
        return false;
      }
    }
  }

 private:
  std::chrono::steady_clock::time_point at_;
};

// What a person can do about a connection that does not come about.
std::string Advice(const HostPort& head, int error) {
  if (head.host == "localhost" || head.host == "::1" || head.host.starts_with("127.")) {
    return "that address means this machine itself; give the one that `rayctl start --head` printed";
  }
  switch (error) {
    case ECONNREFUSED:
      return fmt::format(
          "nothing listens there, or a firewall refuses port {}; is this the address that `rayctl start --head` "
          "printed?",
          head.port);
    case ETIMEDOUT:
      return fmt::format(
          "a firewall on the way may drop port {}, the only one that has to be open, or no machine has "
          "that address",
          head.port);
    case EHOSTUNREACH:
    case ENETUNREACH:
      return "no machine there has that address, or no network leads to it";
    default:
      return "is this the address that `rayctl start --head` printed?";
  }
}

absl::Status Unavailable(const std::string& address, std::string_view why) {
  return absl::UnavailableError(fmt::format("the head at {} does not answer: {}", address, why));
}

absl::StatusOr<UniqueFd> ConnectTo(const std::string& address, const Deadline& deadline) {
  const absl::StatusOr<HostPort> parts = SplitAddress(address);
  if (!parts.ok()) {
    return parts.status();
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(parts->host.c_str(), fmt::format("{}", parts->port).c_str(), &hints, &found);
  if (error != 0) {
    return Unavailable(address, fmt::format("looking up {}: {}", parts->host, ::gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, Free> list(found);
  int why = EADDRNOTAVAIL;
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    UniqueFd socket(::socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.valid()) {
      why = errno;
      continue;
    }
    if (::connect(socket.get(), entry->ai_addr, entry->ai_addrlen) == 0) {
      return socket;
    }
    if (errno != EINPROGRESS) {
      why = errno;
      continue;
    }
    if (!deadline.WaitFor(socket.get(), POLLOUT)) {
      why = ETIMEDOUT;
      continue;
    }
    int result = 0;
    socklen_t length = sizeof(result);
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &result, &length) == 0 && result == 0) {
      return socket;
    }
    why = result;
  }
  return Unavailable(address, fmt::format("{}; {}", std::strerror(why), Advice(*parts, why)));
}

absl::StatusOr<std::string> ToPem(X509* certificate) {
  const std::unique_ptr<BIO, Free> bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || PEM_write_bio_X509(bio.get(), certificate) != 1) {
    return absl::InternalError(fmt::format("writing the CA certificate: {}", OpenSslError()));
  }
  char* data = nullptr;
  const long length = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<std::size_t>(length));
}

}  // namespace

absl::StatusOr<std::string> FetchCa(const std::string& address, std::string_view ca_sha256,
                                    std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  const absl::StatusOr<UniqueFd> socket = ConnectTo(address, deadline);
  if (!socket.ok()) {
    return socket.status();
  }
  const std::unique_ptr<SSL_CTX, Free> context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr) {
    return absl::InternalError(fmt::format("starting TLS: {}", OpenSslError()));
  }
  // Nothing is believed of this connection but a certificate with the right hash, and nothing is said on it.
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  const std::unique_ptr<SSL, Free> ssl(SSL_new(context.get()));
  if (ssl == nullptr || SSL_set_alpn_protos(ssl.get(), kHttp2.data(), kHttp2.size()) != 0 ||
      SSL_set_tlsext_host_name(ssl.get(), kHeadName) != 1 || SSL_set_fd(ssl.get(), socket->get()) != 1) {
    return absl::InternalError(fmt::format("starting TLS: {}", OpenSslError()));
  }
  while (true) {
    const int done = SSL_connect(ssl.get());
    if (done == 1) {
      break;
    }
    const int error = SSL_get_error(ssl.get(), done);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
      if (!deadline.WaitFor(socket->get(), error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT)) {
        return Unavailable(address, "the port is open but the TLS handshake timed out; is it a rayctl head?");
      }
      continue;
    }
    OpenSslError();
    return Unavailable(address,
                       "what listens there does not speak TLS; is it a rayctl head, started without --insecure?");
  }
  STACK_OF(X509)* const chain = SSL_get_peer_cert_chain(ssl.get());
  for (int i = 0; chain != nullptr && i < sk_X509_num(chain); ++i) {
    absl::StatusOr<std::string> pem = ToPem(sk_X509_value(chain, i));
    if (!pem.ok()) {
      return pem.status();
    }
    const absl::StatusOr<std::string> hash = CertificateSha256(*pem);
    if (hash.ok() && *hash == ca_sha256) {
      return pem;
    }
  }
  return absl::UnauthenticatedError(
      fmt::format("the head at {} belongs to another cluster than the token; get a token of that cluster by "
                  "`rayctl token create` on its head's machine, or check the address",
                  address));
}

}  // namespace rayctl::client
