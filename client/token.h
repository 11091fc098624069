#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace rayctl::client {

inline constexpr std::size_t kSecretBytes = 32;

// What a token says: `rct_<64 hex digits: the secret>_<64 hex digits: SHA-256 of the CA certificate's DER>`. A head
// that runs with --insecure has no CA; the second part of its tokens is 64 zeros.
struct Token {
  std::string secret;     // 32 bytes.
  std::string ca_sha256;  // 64 lower-case hex digits.
};

// A new token of the cluster whose CA has that hash, with a secret from the system's random source.
absl::StatusOr<Token> MakeToken(std::string_view ca_sha256);
std::string FormatToken(const Token& token);
// INVALID_ARGUMENT: not a token. White space around it is ignored. The message never repeats the text.
absl::StatusOr<Token> ParseToken(std::string_view text);

// SHA-256 of a token's secret, 32 bytes: all that the head keeps.
std::string HashSecret(std::string_view secret);

// The token in a file, as text. NOT_FOUND: no such file. PERMISSION_DENIED: others than its owner may read it.
absl::StatusOr<std::string> ReadTokenFile(const std::string& path);

// SHA-256, 32 bytes; hex digits of bytes and back. INVALID_ARGUMENT: not hex.
std::string Sha256(std::string_view bytes);
std::string ToHex(std::string_view bytes);
absl::StatusOr<std::string> FromHex(std::string_view hex);

}  // namespace rayctl::client
