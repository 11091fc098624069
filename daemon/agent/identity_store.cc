#include "daemon/agent/identity_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/unique_fd.h"
#include "base/whole_files.h"
#include "fmt/format.h"

namespace rayctl::agent {
namespace {

std::string In(const std::string& state_dir, const char* name) { return fmt::format("{}/agent/{}", state_dir, name); }

absl::Status Errno(const char* what, const std::string& path) {
  return absl::InternalError(fmt::format("{} {}: {}", what, path, std::strerror(errno)));
}

}  // namespace

absl::Status WriteFileWhole(const std::string& path, const std::string& contents) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (std::filesystem::create_directories(folder, error)) {
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all, error);
  }
  if (error) {
    return absl::InternalError(fmt::format("making {}: {}", folder.string(), error.message()));
  }
  const std::string temporary = path + ".new";
  {
    const UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!fd.valid()) {
      return Errno("opening", temporary);
    }
    std::size_t written = 0;
    while (written < contents.size()) {
      const ssize_t count = ::write(fd.get(), contents.data() + written, contents.size() - written);
      if (count < 0) {
        if (errno == EINTR) {
          continue;
        }
        return Errno("writing", temporary);
      }
      written += static_cast<std::size_t>(count);
    }
    if (::fsync(fd.get()) != 0) {
      return Errno("syncing", temporary);
    }
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    return Errno("renaming", temporary);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(fmt::format("opening {}: {}", path, std::strerror(errno)));
  }
  std::string contents{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) {
    return Errno("reading", path);
  }
  return contents;
}

absl::StatusOr<std::optional<Identity>> LoadIdentity(const std::string& state_dir) {
  const absl::StatusOr<std::string> text = ReadWholeFile(In(state_dir, "identity.json"));
  if (!text.ok()) {
    return std::optional<Identity>();
  }
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("node_id") || !json["node_id"].is_number_unsigned() ||
      !json.contains("node_name") || !json["node_name"].is_string()) {
    return absl::DataLossError(fmt::format("{} is damaged: remove it to join anew", In(state_dir, "identity.json")));
  }
  Identity identity;
  identity.node_id = json["node_id"].get<std::uint64_t>();
  identity.node_name = json["node_name"].get<std::string>();
  for (const auto& [name, field] :
       {std::pair{"ca.pem", &identity.ca_pem}, {"node.pem", &identity.cert_pem}, {"node.key", &identity.key_pem}}) {
    absl::StatusOr<std::string> contents = ReadWholeFile(In(state_dir, name));
    if (contents.ok()) {
      *field = *std::move(contents);
    }
  }
  return std::optional<Identity>(std::move(identity));
}

absl::Status SaveIdentity(const std::string& state_dir, const Identity& identity) {
  const nlohmann::ordered_json json = {{"node_id", identity.node_id}, {"node_name", identity.node_name}};
  const std::string about = json.dump() + "\n";
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(In(state_dir, "")), error);
  if (error) {
    return absl::InternalError(fmt::format("making {}: {}", In(state_dir, ""), error.message()));
  }
  return WriteDurably({{In(state_dir, "ca.pem"), identity.ca_pem},
                       {In(state_dir, "node.pem"), identity.cert_pem},
                       {In(state_dir, "node.key"), identity.key_pem},
                       {In(state_dir, "identity.json"), about}});
}

}  // namespace rayctl::agent
