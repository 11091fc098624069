#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <netdb.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "base/addresses.h"
#include "base/unique_fd.h"
#include "cli/doctor.h"
#include "cli/places.h"
#include "worker/process/cgroups.h"

namespace rayctl::cli::doctor {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kPermissionBits = 07777;

std::vector<std::string> OwnAddresses() {
  std::vector<std::string> found;
  for (const net::Interface& each : net::Interfaces()) {
    if (!each.loopback && !net::IsLinkLocal(each)) {
      found.push_back(fmt::format("{} ({})", each.address, each.name));
    }
  }
  return found;
}

// The second and third field of a line of /proc/self/mounts.
struct Mount {
  std::string place;
  std::string type;
};

std::vector<Mount> Mounts() {
  std::ifstream table("/proc/self/mounts");
  std::vector<Mount> mounts;
  std::string line;
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string source;
    Mount mount;
    if (words >> source >> mount.place >> mount.type) {
      mounts.push_back(std::move(mount));
    }
  }
  return mounts;
}

void ProbeCgroups(MachineFacts& facts) {
  const process::CgroupLayout layout = process::ReadCgroupLayout();
  facts.cgroup_v1 = !layout.memory.empty() || !layout.pids.empty() || !layout.freezer.empty();
  facts.cgroup_v2 = !layout.unified.empty();
  facts.cgroup_remarks = process::CgroupRemarks(process::FindCgroupParents(layout));
}

// The nearest folder that exists on the way to `path`.
fs::path Existing(fs::path path) {
  std::error_code error;
  while (!fs::exists(path, error) && path.has_parent_path() && path != path.parent_path()) {
    path = path.parent_path();
  }
  return path;
}

// The type of the mount that holds the path: the longest place that is a prefix, the newest of equals.
std::string FileSystemOf(const std::string& path) {
  std::string type;
  std::size_t longest = 0;
  for (const Mount& mount : Mounts()) {
    const std::string prefix = mount.place == "/" ? "/" : mount.place + "/";
    if ((path + "/").starts_with(prefix) && prefix.size() >= longest) {
      longest = prefix.size();
      type = mount.type;
    }
  }
  return type;
}

}  // namespace

std::vector<std::string> LookUp(const std::string& host, std::string& error) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &list); code != 0) {
    error = ::gai_strerror(code);
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  std::vector<std::string> found;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    const std::string address = net::AddressText(entry->ai_addr);
    if (!address.empty() && std::find(found.begin(), found.end(), address) == found.end()) {
      found.push_back(address);
    }
  }
  return found;
}

MachineFacts ProbeMachine() {
  MachineFacts facts;
  facts.host_name = HostName();
  facts.host_addresses = LookUp(facts.host_name, facts.host_lookup_error);
  facts.addresses = OwnAddresses();
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    facts.descriptors_soft = limit.rlim_cur;
    facts.descriptors_hard = limit.rlim_max;
  }
  ProbeCgroups(facts);
  return facts;
}

FolderFacts ProbeFolders(const std::string& state_dir, const std::string& runtime_root) {
  FolderFacts facts;
  facts.own_uid = ::geteuid();
  facts.state_dir = fs::absolute(state_dir).lexically_normal().string();
  std::error_code failed;
  const fs::path real = fs::canonical(Existing(facts.state_dir), failed);
  const std::string path = failed ? Existing(facts.state_dir).string() : real.string();
  facts.file_system = FileSystemOf(path);
  facts.network_file_system = IsOnNetworkFileSystem(path);
  struct statvfs space {};
  if (::statvfs(path.c_str(), &space) != 0) {
    facts.error = std::strerror(errno);
  } else {
    facts.free_bytes = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
    if (::access(path.c_str(), W_OK | X_OK) != 0) {
      facts.error = fmt::format("{} is not writable: {}", path, std::strerror(errno));
    }
  }

  facts.runtime_root = runtime_root;
  struct stat info {};
  if (::lstat(runtime_root.c_str(), &info) == 0) {
    facts.runtime_exists = true;
    facts.runtime_is_folder = S_ISDIR(info.st_mode);
    facts.runtime_owner = info.st_uid;
    facts.runtime_mode = info.st_mode & kPermissionBits;
  }
  return facts;
}

}  // namespace rayctl::cli::doctor
