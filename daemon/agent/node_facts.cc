#include "daemon/agent/node_facts.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "absl/strings/str_split.h"
#include "base/addresses.h"
#include "base/json_text.h"
#include "base/status_text.h"
#include "base/unique_fd.h"
#include "client/endpoint.h"
#include "fmt/format.h"
#include "worker/process/cgroups.h"
#include "worker/process/proc.h"

namespace rayctl::agent {
namespace {

constexpr std::uint32_t kPortMin = 20'000;  // Below are the well-known ones of many programs.
constexpr std::uint32_t kPortMax = 29'999;
constexpr PortRange kPortsAboveEphemeral = {61'000, 65'535};  // Linux's default ephemeral range ends at 60999.
constexpr PortRange kEphemeralDefault = {32'768, 60'999};
constexpr char kAcceleratorLabel[] = "accelerator_type";  // What a job's accelerator_type selects.
constexpr std::string_view kLoopbackAddress = "127.0.0.1";

std::int64_t CpusOfThisProcess(const process::CgroupLayout& cgroups) {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::int64_t cpus = std::max<std::int64_t>(1, ::sysconf(_SC_NPROCESSORS_ONLN));
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) {  // Fails with more than 1024 CPUs.
    cpus = CPU_COUNT(&set);
  }
  const std::optional<double> quota = process::CpuQuota(cgroups);
  // Rounded up: half a CPU is still one to place a rank on.
  return quota ? std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil(*quota)), 1, cpus) : cpus;
}

// What --num-gpus makes of what was found: the first so many, or, where there are fewer, so many that are only counted.
absl::Status ApplyGpuCount(double wanted, NodeDevices& devices) {
  const absl::StatusOr<Amount> count = Amount::FromDouble(wanted);
  if (!count.ok() || !count->IsWhole()) {
    return absl::InvalidArgumentError("--num-gpus: expected a whole number of devices");
  }
  const auto number = static_cast<std::size_t>(count->raw / Amount::kUnit);
  if (number <= devices.offered.size()) {
    devices.offered.resize(number);
    devices.index.resize(number);
    return absl::OkStatus();
  }
  if (!devices.offered.empty()) {
    devices.remarks.push_back(
        fmt::format("--num-gpus {} is more than the {} that were found here: they are counted only, and nobody watches "
                    "what holds them",
                    number, devices.offered.size()));
  }
  devices.finder = nullptr;
  devices.accelerator_type.clear();
  devices.index.clear();
  devices.offered.clear();
  for (std::size_t i = 0; i < number; ++i) {
    devices.offered.push_back({.id = std::to_string(i)});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> MemoryBytes() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    std::int64_t kib = 0;
    if (words >> name >> kib && name == "MemTotal:") {
      return kib * 1024;
    }
  }
  return absl::InternalError("/proc/meminfo does not say MemTotal");
}

PortRange EphemeralPorts() {
  std::ifstream file("/proc/sys/net/ipv4/ip_local_port_range");
  PortRange range;
  return file >> range.min >> range.max ? range : kEphemeralDefault;
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

std::string AddressText(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bytes = address->sa_family == AF_INET6
                          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr)
                          : static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr);
  return ::inet_ntop(address->sa_family, bytes, text.data(), text.size()) == nullptr ? "" : text.data();
}

// The local end of a connection to the head. UDP: connecting sends nothing, but chooses the route.
absl::StatusOr<std::string> AddressTowards(const std::string& head_address) {
  const absl::StatusOr<client::HostPort> head = client::SplitAddress(head_address);
  if (!head.ok()) {
    return head.status();
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(head->host.c_str(), std::to_string(head->port).c_str(), &hints, &list);
  if (error != 0) {
    return absl::UnavailableError(
        fmt::format("the head's host {} is not known here: {}", head->host, ::gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, FreeAddresses> owner(list);
  std::string why = "no address";
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    const UniqueFd fd(::socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage local{};
    socklen_t length = sizeof(local);
    if (fd.valid() && ::connect(fd.get(), entry->ai_addr, entry->ai_addrlen) == 0 &&
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &length) == 0) {
      return AddressText(reinterpret_cast<const sockaddr*>(&local));
    }
    why = std::strerror(errno);
  }
  return absl::UnavailableError(fmt::format("no route to the head at {}: {}", head_address, why));
}

absl::StatusOr<net::Interface> FindInterface(const NodeSettings& settings) {
  const std::vector<net::Interface> interfaces = net::Interfaces();
  const auto with_address = [&interfaces](const std::string& address) {
    return std::find_if(interfaces.begin(), interfaces.end(),
                        [&address](const net::Interface& each) { return each.address == address; });
  };
  if (!settings.node_ip_address.empty()) {
    const auto it = with_address(settings.node_ip_address);
    if (it == interfaces.end()) {
      return absl::InvalidArgumentError(
          fmt::format("--node-ip-address {}: no interface of this machine has it", settings.node_ip_address));
    }
    return *it;
  }
  const absl::StatusOr<std::string> local = AddressTowards(settings.head_address);
  if (!local.ok()) {
    return local.status();
  }
  const auto it = with_address(*local);
  if (it != interfaces.end() && !it->loopback) {
    return *it;
  }
  // The head is on this machine: other nodes need an address that they can reach.
  if (std::optional<net::Interface> outside = net::ChooseReachable(interfaces)) {
    return *std::move(outside);
  }
  return net::Interface{"lo", std::string(kLoopbackAddress), true};
}

}  // namespace

PortRange PortsOutside(PortRange ephemeral) {
  if (ephemeral.max < kPortMin || ephemeral.min > kPortMax) {
    return {kPortMin, kPortMax};
  }
  // They overlap: the longer of what is left on its two sides, else what lies above.
  const std::uint32_t below = ephemeral.min > kPortMin ? ephemeral.min - kPortMin : 0;
  const std::uint32_t above = ephemeral.max < kPortMax ? kPortMax - ephemeral.max : 0;
  if (below == 0 && above == 0) {
    const std::uint32_t begin = std::max(kPortsAboveEphemeral.min, ephemeral.max + 1);
    return begin <= kPortsAboveEphemeral.max ? PortRange{begin, kPortsAboveEphemeral.max}
                                             : PortRange{kPortMin, kPortMax};
  }
  return below >= above ? PortRange{kPortMin, ephemeral.min - 1} : PortRange{ephemeral.max + 1, kPortMax};
}

absl::Status AddResourcesJson(const std::string& json, Resources& resources) {
  if (json.empty()) {
    return absl::OkStatus();
  }
  const absl::StatusOr<nlohmann::ordered_json> parsed = ParseJsonText(json);
  if (!parsed.ok() || !parsed->is_object()) {
    return absl::InvalidArgumentError("--resources: expected a JSON object such as {\"license\": 2}");
  }
  for (const auto& [name, value] : parsed->items()) {
    if (!value.is_number()) {
      return absl::InvalidArgumentError(fmt::format("--resources: {}: expected a number", name));
    }
    const absl::StatusOr<Amount> amount = Amount::FromDouble(value.get<double>());
    if (!amount.ok()) {
      return Annotate(amount.status(), fmt::format("--resources: {}", name));
    }
    resources.Set(name, *amount);
  }
  return absl::OkStatus();
}

absl::StatusOr<scheduler::Labels> ParseLabels(const std::string& text) {
  scheduler::Labels labels;
  for (const auto& piece : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::string entry(piece);
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(fmt::format("--labels: {}: expected KEY=VALUE", entry));
    }
    labels[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  return labels;
}

absl::StatusOr<link::Register> DescribeNode(const NodeSettings& settings, const std::string& version,
                                            NodeDevices& devices) {
  link::Register node;
  node.version = version;
  node.is_head_node = settings.is_head_node;
  node.boot_id = process::BootId();
  const process::CgroupLayout cgroups = process::ReadCgroupLayout();
  node.remarks = process::CgroupRemarks(process::FindCgroupParents(cgroups));

  const absl::StatusOr<net::Interface> interface = FindInterface(settings);
  if (!interface.ok()) {
    return interface.status();
  }
  node.address = interface->address;
  node.interface_name = interface->name;

  const absl::StatusOr<std::int64_t> memory = MemoryBytes();
  if (!memory.ok()) {
    return memory.status();
  }
  node.resources.Set(kMemory, Amount::Units(*memory));
  if (settings.num_cpus) {
    const absl::StatusOr<Amount> cpus = Amount::FromDouble(*settings.num_cpus);
    if (!cpus.ok()) {
      return Annotate(cpus.status(), "--num-cpus");
    }
    node.resources.Set(kCpu, *cpus);
  } else {
    node.resources.Set(kCpu, Amount::Units(CpusOfThisProcess(cgroups)));
  }
  if (settings.num_gpus) {
    if (const absl::Status status = ApplyGpuCount(*settings.num_gpus, devices); !status.ok()) {
      return status;
    }
  }
  node.devices = devices.offered;
  node.resources.Set(kGpu, Amount::Units(static_cast<std::int64_t>(node.devices.size())));
  node.remarks.insert(node.remarks.end(), devices.remarks.begin(), devices.remarks.end());
  if (const absl::Status status = AddResourcesJson(settings.resources_json, node.resources); !status.ok()) {
    return status;
  }
  absl::StatusOr<scheduler::Labels> labels = ParseLabels(settings.labels);
  if (!labels.ok()) {
    return labels.status();
  }
  node.labels = *std::move(labels);
  if (!devices.accelerator_type.empty()) {
    node.labels.emplace(kAcceleratorLabel, devices.accelerator_type);  // A label that was given stays.
  }

  const PortRange ports = PortsOutside(EphemeralPorts());
  node.port_min = ports.min;
  node.port_max = ports.max;
  return node;
}

std::uint64_t DefaultPidsMax() {
  constexpr std::uint64_t kShare = 4;  // One job leaves most of what there is to the others.
  std::uint64_t all = std::numeric_limits<std::uint64_t>::max();
  for (const char* const file : {"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"}) {
    all = std::min(all, process::CgroupNumber(file).value_or(all));
  }
  return all == std::numeric_limits<std::uint64_t>::max() ? 0 : all / kShare;
}

std::vector<std::string> InheritedEnvironment() {
  // What a service manager says to its service alone.
  constexpr std::array<std::string_view, 9> kOfTheService = {
      "NOTIFY_SOCKET=", "WATCHDOG_PID=", "WATCHDOG_USEC=",  "LISTEN_PID=",      "LISTEN_FDS=",
      "INVOCATION_ID=", "MAINPID=",      "JOURNAL_STREAM=", "SYSTEMD_EXEC_PID="};
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (std::any_of(kOfTheService.begin(), kOfTheService.end(),
                    [&](std::string_view name) { return text.starts_with(name); })) {
      continue;
    }
    if (!text.starts_with("RAYCTL_") && !text.starts_with("TORCHELASTIC_") && !text.starts_with("GRPC_")) {
      entries.emplace_back(text);
    }
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

}  // namespace rayctl::agent
