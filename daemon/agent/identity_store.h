#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rayctl::agent {

// What Join gave this node. All but the id and name are empty with a head that runs with --insecure.
struct Identity {
  std::uint64_t node_id = 0;
  std::string node_name;
  std::string ca_pem;
  std::string cert_pem;
  std::string key_pem;
};

// `<state dir>/agent/`. nullopt: this node has not joined yet. Others: files are there, but not as they should be.
absl::StatusOr<std::optional<Identity>> LoadIdentity(const std::string& state_dir);
// 0600, each file whole or not at all; identity.json last.
absl::Status SaveIdentity(const std::string& state_dir, const Identity& identity);

// Writes a file whole or not at all, 0600, which outlasts a power cut; makes its folder, 0700.
absl::Status WriteFileWhole(const std::string& path, const std::string& contents);
absl::StatusOr<std::string> ReadWholeFile(const std::string& path);

}  // namespace rayctl::agent
