#include "worker/device/tpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include "worker/device/files.h"

namespace rayctl::device {
namespace {

constexpr std::uint64_t kGoogle = 0x1ae0;
constexpr std::uint64_t kGiB = 1ULL << 30;
constexpr std::string_view kTypeVariable = "TPU_ACCELERATOR_TYPE=";

struct Kind {
  std::uint64_t pci_device;
  std::string_view name;
  std::string_view type;       // In Ray's words.
  std::string_view variable;   // How TPU_ACCELERATOR_TYPE begins.
  std::uint64_t memory_bytes;  // Of one chip.
};
constexpr std::array<Kind, 4> kKinds = {{
    {0x005e, "TPU v4", "TPU-V4", "v4-", 32 * kGiB},
    {0x0062, "TPU v5p", "TPU-V5P", "v5p-", 95 * kGiB},
    {0x0063, "TPU v5e", "TPU-V5LITEPOD", "v5litepod-", 16 * kGiB},
    {0x006f, "TPU v6e", "TPU-V6E", "v6e-", 32 * kGiB},
}};

const Kind* KindOfPci(std::uint64_t device) {
  const auto found =
      std::find_if(kKinds.begin(), kKinds.end(), [device](const Kind& kind) { return kind.pci_device == device; });
  return found == kKinds.end() ? nullptr : &*found;
}

const Kind* KindOfVariable(const std::vector<std::string>& environment) {
  for (const std::string& entry : environment) {
    if (!entry.starts_with(kTypeVariable)) {
      continue;
    }
    const std::string_view value = std::string_view(entry).substr(kTypeVariable.size());
    for (const Kind& kind : kKinds) {
      if (value.starts_with(kind.variable)) {
        return &kind;
      }
    }
  }
  return nullptr;
}

struct Chip {
  std::string pci_address;
  const Kind* kind = nullptr;
};

}  // namespace

std::string TpuType(const std::string& name) {
  const auto found =
      std::find_if(kKinds.begin(), kKinds.end(), [&name](const Kind& kind) { return kind.name == name; });
  return found == kKinds.end() ? name : std::string(found->type);
}

Survey TpuDriver::Find() {
  Survey survey;
  files_.clear();
  const std::string pci = root_ + "/sys/bus/pci/devices";
  std::map<std::uint64_t, Chip> by_group;  // Of an iommu group: what /dev/vfio calls it.
  std::map<std::string, Chip> by_address;
  for (const std::string& address : NamesIn(pci)) {
    const std::string folder = fmt::format("{}/{}", pci, address);
    if (ReadNumber(folder + "/vendor") != kGoogle) {
      continue;
    }
    // Google sells network cards too: those have other numbers.
    const Chip chip{address, KindOfPci(ReadNumber(folder + "/device").value_or(0))};
    by_address[address] = chip;
    const std::string group = LinkName(folder + "/iommu_group");
    if (chip.kind != nullptr && !group.empty() &&
        std::all_of(group.begin(), group.end(), [](unsigned char c) { return std::isdigit(c) != 0; })) {
      by_group[std::stoull(group)] = chip;
    }
  }
  const Kind* const said = KindOfVariable(environment_);
  const auto add = [&](std::string file, const Chip& chip) {
    const Kind* const kind = chip.kind != nullptr ? chip.kind : said;
    Device device{.vendor = "tpu", .id = std::to_string(files_.size())};
    device.name = kind != nullptr ? std::string(kind->name) : "TPU";
    device.memory_bytes = kind != nullptr ? kind->memory_bytes : 0;
    device.pci_address = chip.pci_address;
    if (!chip.pci_address.empty()) {
      device.numa_node = NumaNodeOf(root_, chip.pci_address);
    }
    files_.push_back(std::move(file));
    survey.devices.push_back(std::move(device));
  };
  for (const std::uint64_t number : NumbersAfter(root_ + "/dev", "accel")) {
    const auto chip = by_address.find(LinkName(fmt::format("{}/sys/class/accel/accel{}/device", root_, number)));
    add(fmt::format("/dev/accel{}", number), chip == by_address.end() ? Chip{} : chip->second);
  }
  if (!files_.empty()) {
    return survey;
  }
  // Anything may be bound to vfio: only groups of TPU chips count.
  for (const std::uint64_t group : NumbersAfter(root_ + "/dev/vfio", "")) {
    if (const auto chip = by_group.find(group); chip != by_group.end()) {
      add(fmt::format("/dev/vfio/{}", group), chip->second);
    }
  }
  return survey;
}

std::vector<Condition> TpuDriver::Look() {
  std::vector<Condition> conditions(files_.size());
  if (files_.empty()) {
    return conditions;
  }
  for (std::size_t i = 0; i < files_.size(); ++i) {
    std::error_code error;
    if (!std::filesystem::exists(root_ + files_[i], error)) {
      conditions[i].problem = fmt::format("{} is gone", files_[i]);
    }
  }
  for (const std::uint64_t number : NumbersAfter(root_ + "/proc", "")) {
    const std::string descriptors = fmt::format("{}/proc/{}/fd", root_, number);
    std::set<std::size_t> held;
    for (const std::string& descriptor : NamesIn(descriptors)) {
      std::error_code error;
      const std::string target =
          std::filesystem::read_symlink(fmt::format("{}/{}", descriptors, descriptor), error).string();
      const auto file = std::find(files_.begin(), files_.end(), target);
      if (!error && file != files_.end()) {
        held.insert(static_cast<std::size_t>(file - files_.begin()));
      }
    }
    const auto pid = static_cast<pid_t>(number);
    for (const std::size_t i : held) {
      conditions[i].holders.push_back({pid, ProcessName(root_, pid)});
    }
  }
  return conditions;
}

}  // namespace rayctl::device
