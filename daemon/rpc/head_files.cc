#include "daemon/rpc/head_files.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "base/status_text.h"
#include "base/unique_fd.h"
#include "base/whole_files.h"
#include "fmt/format.h"

namespace rayctl::rpc {
namespace {

constexpr std::size_t kReadChunkBytes = 4096;
constexpr long kCifsMagic = 0xFF534D42;  // Not in linux/magic.h of every kernel.

absl::Status Errno(std::string_view what, const std::string& path) {
  const int error = errno;
  const std::string message = fmt::format("{} {}: {}", what, path, std::strerror(error));
  if (error == ENOENT) {
    return absl::NotFoundError(message);
  }
  if (error == EACCES || error == EPERM) {
    return absl::PermissionDeniedError(message);
  }
  return error == ENOSPC || error == EDQUOT ? absl::ResourceExhaustedError(message) : absl::UnavailableError(message);
}

std::string ClusterIdPath(const std::string& head_dir) { return head_dir + "/cluster-id"; }

}  // namespace

absl::Status MakePrivateFolder(const std::string& path) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) {
    std::filesystem::create_directories(parent, error);
    if (error) {
      return absl::UnavailableError(fmt::format("making {}: {}", parent.string(), error.message()));
    }
  }
  if (::mkdir(path.c_str(), S_IRWXU) == 0) {
    return absl::OkStatus();
  }
  if (errno != EEXIST) {
    return Errno("making", path);
  }
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    return Errno("looking at", path);
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid()) {
    return absl::PermissionDeniedError(fmt::format("{} is not a folder of this user", path));
  }
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0 && ::chmod(path.c_str(), S_IRWXU) != 0) {
    return Errno("closing to others", path);
  }
  return absl::OkStatus();
}

absl::Status CheckLocalFolder(const std::string& path) {
  struct statfs info {};
  if (::statfs(path.c_str(), &info) != 0) {
    return Errno("looking at", path);
  }
  for (const long network : {static_cast<long>(NFS_SUPER_MAGIC), static_cast<long>(SMB_SUPER_MAGIC), kCifsMagic}) {
    if (static_cast<std::uint32_t>(info.f_type) == static_cast<std::uint32_t>(network)) {
      return absl::FailedPreconditionError(
          fmt::format("the state folder {} is on a network file system, where the journal is not safe; --state-dir or "
                      "RAYCTL_STATE_DIR names one on a local disk",
                      path));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) {
    return Errno("reading", path);
  }
  std::string text;
  std::array<char, kReadChunkBytes> buffer{};
  while (true) {
    const ssize_t got = ::read(file.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return Errno("reading", path);
    }
    if (got == 0) {
      return text;
    }
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

absl::Status CheckJournalIsThatOf(const std::string& head_dir, const std::optional<std::string>& cluster_id) {
  const absl::StatusOr<std::string> noted = ReadFile(ClusterIdPath(head_dir));
  // A power cut may leave the note empty; it is written anew.
  if (absl::IsNotFound(noted.status()) || (noted.ok() && noted->empty())) {
    return absl::OkStatus();
  }
  if (!noted.ok()) {
    return noted.status();
  }
  const std::string known(absl::StripAsciiWhitespace(*noted));
  if (cluster_id == known) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      fmt::format("{0}/journal.db {1}, but cluster {2} has run here; put its journal back, or give up its jobs and "
                  "begin a new cluster with another --state-dir, or with this one after `rm -r {0}`",
                  head_dir, cluster_id ? fmt::format("is of cluster {}", *cluster_id) : "is missing or empty", known));
}

absl::Status NoteCluster(const std::string& head_dir, const std::string& cluster_id) {
  const std::string text = cluster_id + "\n";
  const absl::StatusOr<std::string> noted = ReadFile(ClusterIdPath(head_dir));
  return noted.ok() && *noted == text ? absl::OkStatus() : WriteWhole({{ClusterIdPath(head_dir), text}});
}

absl::StatusOr<Authority> LoadOrCreateAuthority(const std::string& head_dir, WallTime now) {
  const std::string certificate_path = head_dir + "/ca.pem";
  const std::string key_path = head_dir + "/ca.key";
  absl::StatusOr<std::string> certificate = ReadFile(certificate_path);
  absl::StatusOr<std::string> key = ReadFile(key_path);
  if (certificate.ok() && key.ok()) {
    absl::StatusOr<Authority> authority = Authority::Load({*std::move(certificate), *std::move(key)});
    return authority.ok() ? std::move(authority)
                          : absl::StatusOr<Authority>(Annotate(authority.status(), certificate_path));
  }
  // The certificate is written last: without it the CA was never used.
  if (!absl::IsNotFound(certificate.status())) {
    return certificate.ok() ? key.status() : certificate.status();
  }
  absl::StatusOr<Authority> authority = Authority::Create(now);
  if (!authority.ok()) {
    return authority;
  }
  const absl::Status written = WriteDurably(
      {{key_path, authority->identity().key_pem}, {certificate_path, authority->identity().certificate_pem}});
  return written.ok() ? std::move(authority) : absl::StatusOr<Authority>(written);
}

absl::StatusOr<Identity> WriteServerIdentity(const std::string& head_dir, const Authority& authority, WallTime now) {
  absl::StatusOr<Identity> identity = authority.MakeServerIdentity(now);
  if (!identity.ok()) {
    return identity;
  }
  const absl::Status written = WriteWhole(
      {{head_dir + "/server.key", identity->key_pem}, {head_dir + "/server.pem", identity->certificate_pem}});
  return written.ok() ? std::move(identity) : absl::StatusOr<Identity>(written);
}

absl::StatusOr<std::vector<client::Token>> LoadOrCreateTokens(const std::vector<std::string>& paths,
                                                              const std::string& ca_sha256) {
  std::vector<client::Token> tokens;
  std::vector<std::string> texts;
  texts.reserve(paths.size());  // Files below look at them.
  std::vector<WholeFile> files;
  for (const std::string& path : paths) {
    const absl::StatusOr<std::string> text = ReadFile(path);
    if (!text.ok() && !absl::IsNotFound(text.status())) {
      return text.status();
    }
    absl::StatusOr<client::Token> token = text.ok() ? client::ParseToken(*text) : text.status();
    if (!token.ok() || token->ca_sha256 != ca_sha256) {
      token = client::MakeToken(ca_sha256);
      if (!token.ok()) {
        return token.status();
      }
      files.push_back({path, texts.emplace_back(client::FormatToken(*token) + "\n")});
    }
    tokens.push_back(*std::move(token));
  }
  const absl::Status written = WriteDurably(files);
  return written.ok() ? std::move(tokens) : absl::StatusOr<std::vector<client::Token>>(written);
}

}  // namespace rayctl::rpc
