#include "daemon/agent/job_folders.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "client/identity.h"
#include "client/token.h"
#include "daemon/agent/identity_store.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace rayctl::agent {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kHashDigits = 64;
constexpr std::size_t kNameDigits = 16;  // Of a hash, in the name of a folder.
constexpr std::string_view kInsecure = "insecure-";
constexpr std::string_view kUnknown = "unknown";  // Its ca.pem is gone or damaged.

// By the CA that an earlier Join left; "" where there is none that can be read.
std::string ClusterOfIdentity(const std::string& state_dir) {
  const absl::StatusOr<std::string> ca = ReadWholeFile(state_dir + "/agent/ca.pem");
  const absl::StatusOr<std::string> hash = ca.ok() ? client::CertificateSha256(*ca) : ca.status();
  return hash.ok() ? *hash : std::string();
}

std::string FolderOf(const std::string& state_dir, const std::string& cluster) {
  const bool is_hash = cluster.size() == kHashDigits;
  return fmt::format("{}/jobs-{}", state_dir, is_hash ? cluster.substr(0, kNameDigits) : cluster);
}

absl::Status Move(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  return error ? absl::UnavailableError(fmt::format("moving {} to {}: {}", from, to, error.message()))
               : absl::OkStatus();
}

// Beside the folder, under a name that is free.
std::string FreeName(const std::string& wanted) {
  std::string name = wanted;
  for (int number = 2; fs::exists(name); ++number) {
    name = fmt::format("{}.{}", wanted, number);
  }
  return name;
}

}  // namespace

std::string ClusterOf(const ClusterHints& hints) {
  if (hints.insecure) {
    return fmt::format("{}{}", kInsecure, hints.address);
  }
  if (!hints.token_file.empty()) {
    const absl::StatusOr<std::string> text = client::ReadTokenFile(hints.token_file);
    const absl::StatusOr<client::Token> token = text.ok() ? client::ParseToken(*text) : text.status();
    if (token.ok()) {
      return token->ca_sha256;
    }
  }
  return ClusterOfIdentity(hints.state_dir);
}

absl::Status SettleJobFolders(const std::string& state_dir, const std::string& cluster,
                              const std::function<absl::Status()>& end_shims) {
  const std::string jobs = state_dir + "/jobs";
  const std::string mark = jobs + "/cluster";
  std::error_code error;
  const bool any = !fs::is_empty(jobs, error) && !error;
  if (any) {
    const absl::StatusOr<std::string> marked = ReadWholeFile(mark);
    // Not marked: made before folders were, by the cluster that was joined last.
    std::string owner = marked.ok() ? std::string(absl::StripAsciiWhitespace(*marked)) : ClusterOfIdentity(state_dir);
    if (owner.empty()) {
      owner = kUnknown;
    }
    if (owner == cluster && marked.ok()) {
      return absl::OkStatus();
    }
    if (owner != cluster) {
      if (absl::Status ended = end_shims(); !ended.ok()) {
        return ended;
      }
      const std::string aside = FreeName(FolderOf(state_dir, owner));
      if (absl::Status moved = Move(jobs, aside); !moved.ok()) {
        return moved;
      }
      spdlog::warn("the jobs of another cluster were moved aside from={} to={}", jobs, aside);
    }
  }
  if (const std::string before = FolderOf(state_dir, cluster); !fs::exists(jobs, error) && fs::exists(before, error)) {
    if (absl::Status moved = Move(before, jobs); !moved.ok()) {
      return moved;
    }
    spdlog::info("the jobs of this cluster were here before folder={}", before);
  }
  return WriteFileWhole(mark, cluster + "\n");
}

}  // namespace rayctl::agent
