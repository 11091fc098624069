#include "client/token.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "base/status_text.h"
#include "base/unique_fd.h"
#include "fmt/format.h"

namespace rayctl::client {
namespace {

constexpr std::string_view kPrefix = "rct_";
constexpr std::size_t kHexDigits = 2 * kSecretBytes;
constexpr std::size_t kTokenChars = kPrefix.size() + kHexDigits + 1 + kHexDigits;
constexpr std::size_t kTokenFileBytesMax = 4096;

bool IsLowerHex(std::string_view text) { return text.find_first_not_of("0123456789abcdef") == std::string_view::npos; }

}  // namespace

absl::StatusOr<Token> MakeToken(std::string_view ca_sha256) {
  if (ca_sha256.size() != kHexDigits || !IsLowerHex(ca_sha256)) {
    return absl::InvalidArgumentError("a token needs the SHA-256 of the CA certificate as 64 hex digits");
  }
  std::array<unsigned char, kSecretBytes> secret{};
  if (RAND_bytes(secret.data(), static_cast<int>(secret.size())) != 1) {
    return absl::InternalError("the system gave no random bytes for a token");
  }
  return Token{std::string(secret.begin(), secret.end()), std::string(ca_sha256)};
}

std::string FormatToken(const Token& token) {
  return fmt::format("{}{}_{}", kPrefix, ToHex(token.secret), token.ca_sha256);
}

absl::StatusOr<Token> ParseToken(std::string_view text) {
  const absl::string_view stripped = absl::StripAsciiWhitespace(absl::string_view(text.data(), text.size()));
  text = std::string_view(stripped.data(), stripped.size());
  const auto wrong = [](std::string_view why) {
    return absl::InvalidArgumentError(
        fmt::format("this is not a rayctl token ({}); `rayctl token create` on the head's machine prints one", why));
  };
  if (text.empty()) {
    return wrong("it is empty");
  }
  if (text.substr(0, kPrefix.size()) != kPrefix) {
    return wrong("a token begins with rct_");
  }
  if (text.size() != kTokenChars) {
    return wrong(fmt::format("a token has {} characters, this has {}", kTokenChars, text.size()));
  }
  const std::string_view secret_hex = text.substr(kPrefix.size(), kHexDigits);
  const std::string_view ca_sha256 = text.substr(kPrefix.size() + kHexDigits + 1);
  if (text[kPrefix.size() + kHexDigits] != '_' || !IsLowerHex(secret_hex) || !IsLowerHex(ca_sha256)) {
    return wrong("after rct_ come 64 hex digits, _ and 64 hex digits");
  }
  return Token{absl::HexStringToBytes(std::string(secret_hex)), std::string(ca_sha256)};
}

std::string HashSecret(std::string_view secret) { return Sha256(secret); }

absl::StatusOr<std::string> ReadTokenFile(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) {
    const int error = errno;
    const std::string message = fmt::format("reading the token file {}: {}", path, std::strerror(error));
    if (error == ENOENT) {
      return absl::NotFoundError(message);
    }
    if (error == EACCES || error == EPERM) {
      return absl::PermissionDeniedError(message);
    }
    return absl::UnavailableError(message);
  }
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) {
    return absl::UnavailableError(fmt::format("reading the token file {}: {}", path, std::strerror(errno)));
  }
  if (S_ISREG(info.st_mode) && (info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::PermissionDeniedError(fmt::format(
        "the token file {0} is open to others (mode {1:04o}); whoever reads it is you on the cluster: chmod 600 {0}",
        path, info.st_mode & 07777U));
  }
  std::string text;
  std::array<char, kTokenFileBytesMax> buffer{};
  while (true) {
    const ssize_t got = ::read(file.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return absl::UnavailableError(fmt::format("reading the token file {}: {}", path, std::strerror(errno)));
    }
    if (got == 0) {
      break;
    }
    text.append(buffer.data(), static_cast<std::size_t>(got));
    if (text.size() > kTokenFileBytesMax) {
      return absl::InvalidArgumentError(fmt::format("{} is too long for a token file", path));
    }
  }
  const absl::StatusOr<Token> token = ParseToken(text);
  if (!token.ok()) {
    return Annotate(token.status(), fmt::format("token file {}", path));
  }
  return FormatToken(*token);
}

std::string Sha256(std::string_view bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, EVP_sha256(), nullptr) != 1) {
    return {};
  }
  return std::string(reinterpret_cast<const char*>(digest.data()), length);
}

std::string ToHex(std::string_view bytes) {
  return absl::BytesToHexString(absl::string_view(bytes.data(), bytes.size()));
}

absl::StatusOr<std::string> FromHex(std::string_view hex) {
  const std::string lower = absl::AsciiStrToLower(absl::string_view(hex.data(), hex.size()));
  if (lower.size() % 2 != 0 || !IsLowerHex(lower)) {
    return absl::InvalidArgumentError("not an even number of hex digits");
  }
  return absl::HexStringToBytes(lower);
}

}  // namespace rayctl::client
