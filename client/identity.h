#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rayctl::client {

// The name that every head's certificate has, whatever its address.
inline constexpr char kHeadName[] = "rayctl-head";
// An agent's certificate is named this and its node id.
inline constexpr char kAgentNamePrefix[] = "agent:";

struct KeyAndRequest {
  std::string key_pem;      // EC P-256, PKCS 8, not encrypted.
  std::string request_pem;  // Asks for a certificate of that key.
};

// For an agent that joins. The head puts its own name into the certificate; `common_name` is only a hint for people.
absl::StatusOr<KeyAndRequest> MakeKeyAndRequest(std::string_view common_name);

// SHA-256 of a certificate's DER, as 64 lower-case hex digits. INVALID_ARGUMENT: not a PEM certificate.
absl::StatusOr<std::string> CertificateSha256(std::string_view certificate_pem);

// The certificate's CN. INVALID_ARGUMENT: not a PEM certificate, or it has none.
absl::StatusOr<std::string> CertificateName(std::string_view certificate_pem);

// Whether the key is that of the certificate and the certificate is the CA's, whatever the clock says.
// INVALID_ARGUMENT: no, and why.
absl::Status CheckIdentity(std::string_view ca_pem, std::string_view certificate_pem, std::string_view key_pem);

// The newest error that OpenSSL noted on this thread, in words; clears them.
std::string OpenSslError();

}  // namespace rayctl::client
