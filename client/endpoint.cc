#include "client/endpoint.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "absl/strings/ascii.h"
#include "base/addresses.h"
#include "base/status_text.h"
#include "base/unique_fd.h"
#include "base/whole_files.h"
#include "client/channel.h"
#include "client/identity.h"
#include "client/token.h"
#include "fmt/format.h"

namespace rayctl::client {
namespace {

namespace fs = std::filesystem;

constexpr std::uint16_t kDefaultPort = 6379;
constexpr std::size_t kReadChunkBytes = 4096;

absl::StatusOr<std::string> ReadWholeFile(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) {
    const int error = errno;
    const std::string message = fmt::format("reading {}: {}", path, std::strerror(error));
    return error == ENOENT || error == ENOTDIR ? absl::NotFoundError(message) : absl::PermissionDeniedError(message);
  }
  std::string text;
  std::array<char, kReadChunkBytes> buffer{};
  while (true) {
    const ssize_t got = ::read(file.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return absl::UnavailableError(fmt::format("reading {}: {}", path, std::strerror(errno)));
    }
    if (got == 0) {
      return text;
    }
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

std::optional<RunningDaemon> ReadDaemon(const fs::path& run_dir, bool is_head) {
  const absl::StatusOr<std::string> text = ReadWholeFile(run_dir / (is_head ? "head.json" : "agent.json"));
  if (!text.ok()) {
    return std::nullopt;
  }
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, false);
  if (!json.is_object()) {
    return std::nullopt;
  }
  RunningDaemon daemon;
  daemon.is_head = is_head;
  daemon.run_dir = run_dir;
  const auto text_of = [&](const char* key) {
    const auto it = json.find(key);
    return it != json.end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  const auto number_of = [&](const char* key) -> std::uint64_t {
    const auto it = json.find(key);
    return it != json.end() && it->is_number_unsigned() ? it->get<std::uint64_t>() : 0;
  };
  daemon.pid = static_cast<std::int64_t>(number_of("pid"));
  daemon.start_ticks = number_of("start_ticks");
  daemon.address = text_of("address");
  daemon.local_address = text_of("local_address");
  daemon.dashboard_url = text_of("dashboard_url");
  daemon.state_dir = text_of("state_dir");
  daemon.node_id = number_of("node_id");
  daemon.node_name = text_of("node_name");
  daemon.version = text_of("version");
  const auto truth_of = [&](const char* key) {
    const auto it = json.find(key);
    return it != json.end() && it->is_boolean() && it->get<bool>();
  };
  daemon.insecure = truth_of("insecure");
  daemon.is_private = truth_of("private");
  if (daemon.pid <= 0 || ProcessStartTicks(daemon.pid) != daemon.start_ticks) {
    return std::nullopt;
  }
  return daemon;
}

// Whether the address that a person gave is that head: by its own words, or by any loopback name and its port.
bool Means(const std::string& address, const RunningDaemon& daemon) {
  if (address == daemon.address || address == daemon.local_address) {
    return true;
  }
  const absl::StatusOr<HostPort> given = SplitAddress(address);
  const absl::StatusOr<HostPort> known = SplitAddress(daemon.address);
  return daemon.is_head && given.ok() && known.ok() && given->port == known->port && net::IsLoopbackHost(given->host);
}

std::string CredentialsDir(const std::string& home, const std::string& address) {
  const absl::StatusOr<HostPort> parts = SplitAddress(address);
  return parts.ok() ? fmt::format("{}/.rayctl/{}_{}", home, parts->host, parts->port) : std::string();
}

constexpr std::string_view kHowToGetToken =
    "`rayctl token create --role user` on the head's machine makes one; give it with --token-file, --token or "
    "RAYCTL_TOKEN";

struct Chosen {
  std::string address;
  const RunningDaemon* daemon = nullptr;
};

absl::StatusOr<Chosen> ChooseHead(const EndpointSettings& settings, const Surroundings& around) {
  const std::string& named = !settings.address.empty() ? settings.address : settings.env_address;
  if (!named.empty()) {
    absl::StatusOr<std::string> address = NormaliseAddress(named);
    if (!address.ok()) {
      return absl::InvalidArgumentError(
          fmt::format("{}: {}", settings.address.empty() ? "RAYCTL_ADDRESS" : "--address", Text(address.status())));
    }
    for (const RunningDaemon& daemon : around.daemons) {
      if (Means(*address, daemon)) {
        return Chosen{*address, &daemon};
      }
    }
    return Chosen{*std::move(address), nullptr};
  }
  // Heads come first; an agent counts only for a head that is not on this machine.
  std::vector<const RunningDaemon*> candidates;
  for (const RunningDaemon& daemon : around.daemons) {
    const bool known = std::any_of(candidates.begin(), candidates.end(),
                                   [&](const RunningDaemon* other) { return Means(daemon.address, *other); });
    if (!known && !daemon.is_private) {
      candidates.push_back(&daemon);
    }
  }
  const auto chosen = [](const RunningDaemon& daemon) {
    return Chosen{daemon.local_address.empty() ? daemon.address : daemon.local_address, &daemon};
  };
  if (candidates.size() == 1) {
    return chosen(*candidates.front());
  }
  for (const RunningDaemon* daemon : candidates) {
    if (!around.current.empty() && Means(around.current, *daemon)) {
      return chosen(*daemon);
    }
  }
  if (candidates.size() > 1) {
    std::string list;
    for (const RunningDaemon* daemon : candidates) {
      list += fmt::format("{}{}", list.empty() ? "" : ", ", daemon->address);
    }
    return absl::FailedPreconditionError(
        fmt::format("several clusters have a daemon here ({}); choose one with --address or RAYCTL_ADDRESS", list));
  }
  if (!around.current.empty()) {
    absl::StatusOr<std::string> address = NormaliseAddress(around.current);
    if (!address.ok()) {
      return absl::InvalidArgumentError(fmt::format("~/.rayctl/current: {}", Text(address.status())));
    }
    return Chosen{*std::move(address), nullptr};
  }
  return absl::UnavailableError(
      "no head is running here and none is named; `rayctl start --head` starts one, --address=HOST:PORT or "
      "RAYCTL_ADDRESS names one");
}

}  // namespace

std::optional<std::uint64_t> ProcessStartTicks(std::int64_t pid) {
  const absl::StatusOr<std::string> stat = ReadWholeFile(fmt::format("/proc/{}/stat", pid));
  if (!stat.ok()) {
    return std::nullopt;
  }
  // After the name in parentheses, which may itself hold any character.
  const std::size_t name_end = stat->rfind(')');
  if (name_end == std::string::npos) {
    return std::nullopt;
  }
  // A zombie only waits to be reaped, however long its parent takes.
  if (const char state = stat->size() > name_end + 2 ? (*stat)[name_end + 2] : 'X'; state == 'Z' || state == 'X') {
    return std::nullopt;
  }
  constexpr int kFieldAfterName = 3;
  constexpr int kStartField = 22;
  std::size_t at = name_end + 2;
  for (int field = kFieldAfterName; field < kStartField; ++field) {
    at = stat->find(' ', at);
    if (at == std::string::npos) {
      return std::nullopt;
    }
    ++at;
  }
  std::uint64_t ticks = 0;
  const auto [end, error] = std::from_chars(stat->data() + at, stat->data() + stat->size(), ticks);
  return error == std::errc() ? std::optional(ticks) : std::nullopt;
}

std::string RuntimeRoot(uid_t uid) { return fmt::format("/tmp/rayctl-{}", uid); }

EndpointSettings SettingsFromEnvironment() {
  const auto get = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  EndpointSettings settings;
  settings.env_address = get("RAYCTL_ADDRESS");
  settings.env_token = get("RAYCTL_TOKEN");
  settings.home = get("HOME");
  if (settings.home.empty()) {
    if (const passwd* const entry = ::getpwuid(::getuid())) {
      settings.home = entry->pw_dir;
    }
  }
  settings.runtime_root = RuntimeRoot(::getuid());
  return settings;
}

Surroundings LookAround(const EndpointSettings& settings) {
  Surroundings around;
  around.read_file = ReadWholeFile;
  struct stat info {};
  // The folder is in /tmp, where anybody may have made it first.
  if (::lstat(settings.runtime_root.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::getuid()) {
    std::error_code error;
    std::vector<fs::path> run_dirs;
    for (fs::directory_iterator it(settings.runtime_root, error), end; !error && it != end; it.increment(error)) {
      run_dirs.push_back(it->path());
    }
    std::sort(run_dirs.begin(), run_dirs.end());
    for (const bool is_head : {true, false}) {
      for (const fs::path& run_dir : run_dirs) {
        if (std::optional<RunningDaemon> daemon = ReadDaemon(run_dir, is_head)) {
          around.daemons.push_back(*std::move(daemon));
        }
      }
    }
  }
  const absl::StatusOr<std::string> current = ReadWholeFile(settings.home + "/.rayctl/current");
  if (current.ok()) {
    around.current = std::string(absl::StripAsciiWhitespace(absl::string_view(*current)));
  }
  return around;
}

absl::StatusOr<Endpoint> FindHead(const EndpointSettings& settings, const Surroundings& around) {
  const absl::StatusOr<Chosen> chosen = ChooseHead(settings, around);
  if (!chosen.ok()) {
    return chosen.status();
  }
  Endpoint endpoint;
  endpoint.address = chosen->address;
  const RunningDaemon* const daemon = chosen->daemon;
  if (daemon != nullptr) {
    endpoint.state_dir = daemon->state_dir;
    endpoint.insecure = daemon->insecure;
    if (daemon->insecure) {
      return endpoint;
    }
  }

  std::vector<std::string> ca_paths;
  const auto use_token = [&](const std::string& text, std::string_view source) -> absl::Status {
    const absl::StatusOr<Token> token = ParseToken(text);
    if (!token.ok()) {
      return absl::InvalidArgumentError(fmt::format("{}: {}", source, Text(token.status())));
    }
    endpoint.token = FormatToken(*token);
    return absl::OkStatus();
  };
  if (!settings.token.empty()) {
    if (absl::Status status = use_token(settings.token, "--token"); !status.ok()) {
      return status;
    }
  } else if (!settings.token_file.empty()) {
    absl::StatusOr<std::string> token = ReadTokenFile(settings.token_file);
    if (!token.ok()) {
      return token.status();
    }
    endpoint.token = *std::move(token);
  } else if (!settings.env_token.empty()) {
    if (absl::Status status = use_token(settings.env_token, "RAYCTL_TOKEN"); !status.ok()) {
      return status;
    }
  }
  std::vector<std::string> token_paths;
  if (daemon != nullptr && daemon->is_head) {
    token_paths.push_back(daemon->state_dir + "/head/admin-token");
    ca_paths.push_back(daemon->state_dir + "/head/ca.pem");
  }
  if (daemon != nullptr && !daemon->is_head) {
    ca_paths.push_back(daemon->state_dir + "/agent/ca.pem");
  }
  std::vector<std::string> addresses{endpoint.address};
  if (daemon != nullptr && daemon->address != endpoint.address) {
    addresses.push_back(daemon->address);
  }
  for (const std::string& address : addresses) {
    const std::string folder = CredentialsDir(settings.home, address);
    token_paths.push_back(folder + "/token");
    ca_paths.push_back(folder + "/ca.pem");
  }
  for (const std::string& path : token_paths) {
    if (!endpoint.token.empty()) {
      break;
    }
    const absl::StatusOr<std::string> text = around.read_file(path);
    if (absl::IsNotFound(text.status())) {
      continue;
    }
    if (!text.ok()) {
      return absl::UnauthenticatedError(Text(text.status()));
    }
    if (absl::Status status = use_token(*text, path); !status.ok()) {
      return status;
    }
  }
  if (endpoint.token.empty()) {
    return absl::UnauthenticatedError(
        fmt::format("the head at {} wants a token and there is none here; {}", endpoint.address, kHowToGetToken));
  }
  const absl::StatusOr<Token> token = ParseToken(endpoint.token);
  for (const std::string& path : ca_paths) {
    const absl::StatusOr<std::string> pem = around.read_file(path);
    if (!pem.ok()) {
      continue;  // The token is enough to find the CA.
    }
    const absl::StatusOr<std::string> hash = CertificateSha256(*pem);
    if (token.ok() && hash.ok() && *hash == token->ca_sha256) {
      endpoint.ca_pem = *pem;
      break;
    }
  }
  return endpoint;
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(Endpoint& endpoint) {
  if (!endpoint.insecure && endpoint.ca_pem.empty()) {
    const absl::StatusOr<Token> token = ParseToken(endpoint.token);
    if (!token.ok()) {
      return token.status();
    }
    absl::StatusOr<std::string> pem = FetchCa(endpoint.address, token->ca_sha256);
    if (!pem.ok()) {
      return pem.status();
    }
    endpoint.ca_pem = *std::move(pem);
  }
  return MakeChannel({.address = endpoint.address, .ca_pem = endpoint.ca_pem, .insecure = endpoint.insecure});
}

absl::Status SaveCredentials(const std::string& home, const std::string& address, std::string_view ca_pem,
                             std::string_view token) {
  const std::string root = home + "/.rayctl";
  const std::string folder = CredentialsDir(home, address);
  if (folder.empty()) {
    return absl::InvalidArgumentError(fmt::format("{} is no address", address));
  }
  for (const std::string& path : {root, folder}) {
    if (::mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
      return absl::UnavailableError(fmt::format("making {}: {}", path, std::strerror(errno)));
    }
  }
  const std::string token_line = fmt::format("{}\n", token);
  absl::Status status = WriteWhole({{folder + "/ca.pem", std::string(ca_pem)}, {folder + "/token", token_line}});
  if (status.ok()) {
    status = WriteWhole({{root + "/current", fmt::format("{}\n", address)}});
  }
  return status;
}

absl::StatusOr<HostPort> SplitAddress(std::string_view address) {
  const std::size_t colon = address.rfind(':');
  const auto wrong = [&] {
    return absl::InvalidArgumentError(fmt::format("\"{}\" is no address; expected HOST:PORT", address));
  };
  if (colon == std::string_view::npos || colon == 0) {
    return wrong();
  }
  std::string_view host = address.substr(0, colon);
  const std::string_view digits = address.substr(colon + 1);
  if (host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return wrong();
  }
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (host.empty() || error != std::errc() || end != digits.data() + digits.size() || port == 0) {
    return wrong();
  }
  return HostPort{std::string(host), port};
}

absl::StatusOr<std::string> NormaliseAddress(std::string_view text) {
  const absl::string_view stripped = absl::StripAsciiWhitespace(absl::string_view(text.data(), text.size()));
  text = std::string_view(stripped.data(), stripped.size());
  if (const absl::StatusOr<HostPort> parts = SplitAddress(text); parts.ok()) {
    return std::string(text);
  }
  const bool bracketed = !text.empty() && text.front() == '[' && text.back() == ']';
  const bool plain = text.find_first_of(":/ ") == std::string_view::npos;
  const std::string with_port = fmt::format("{}:{}", text, kDefaultPort);
  if ((plain || bracketed) && SplitAddress(with_port).ok()) {
    return with_port;
  }
  return absl::InvalidArgumentError(fmt::format("\"{}\" is no address; expected HOST:PORT", text));
}

}  // namespace rayctl::client
