#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/ids.h"

namespace rayctl::rpc {

struct Identity {
  std::string certificate_pem;
  std::string key_pem;
};

// The cluster's certificate authority: made once, kept in the head's state folder. Only the head has it.
// Thread-safe once made.
class Authority {
 public:
  static absl::StatusOr<Authority> Create(WallTime now);
  // DATA_LOSS: these are not a certificate and its key.
  static absl::StatusOr<Authority> Load(const Identity& identity);
  Authority(Authority&&) noexcept;
  Authority& operator=(Authority&&) noexcept;
  ~Authority();

  const Identity& identity() const { return identity_; }
  // Hex SHA-256 of the certificate's DER: what tokens carry.
  const std::string& sha256() const { return sha256_; }

  // CN=rayctl-head.
  absl::StatusOr<Identity> MakeServerIdentity(WallTime now) const;
  // CN=agent:<id>, for the key of the request. INVALID_ARGUMENT: not a request, or not signed by its own key.
  absl::StatusOr<std::string> SignAgent(std::string_view request_pem, NodeId node, WallTime now) const;

 private:
  struct Parsed;
  Authority(Identity identity, std::string sha256, std::unique_ptr<Parsed> parsed);

  Identity identity_;
  std::string sha256_;
  std::unique_ptr<Parsed> parsed_;
};

}  // namespace rayctl::rpc
