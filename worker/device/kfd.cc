#include "worker/device/kfd.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "worker/device/files.h"

namespace rayctl::device {
namespace {

constexpr std::string_view kKfd = "/sys/class/kfd/kfd";
// Kinds of memory banks that lie on the device: seen by the host, and not.
constexpr std::uint64_t kHeapPublic = 1;
constexpr std::uint64_t kHeapPrivate = 2;

// 90402 is gfx942: the last two parts are hexadecimal digits.
std::string TargetName(std::uint64_t version) {
  constexpr std::uint64_t kMajor = 10'000;
  constexpr std::uint64_t kMinor = 100;
  return fmt::format("AMD gfx{}{:x}{:x}", version / kMajor, version / kMinor % kMinor, version % kMinor);
}

std::string PciAddress(std::uint64_t domain, std::uint64_t location) {
  constexpr std::uint64_t kByte = 0xff;
  constexpr std::uint64_t kDeviceMask = 0x1f;
  constexpr std::uint64_t kFunctionMask = 0x7;
  return fmt::format("{:04x}:{:02x}:{:02x}.{}", domain, location >> 8 & kByte, location >> 3 & kDeviceMask,
                     location & kFunctionMask);
}

std::uint64_t BankBytes(const std::string& node) {
  std::uint64_t bytes = 0;
  for (const std::string& bank : NamesIn(node + "/mem_banks")) {
    const std::string text = ReadText(fmt::format("{}/mem_banks/{}/properties", node, bank)).value_or("");
    const std::uint64_t heap = NumberOf(text, "heap_type").value_or(0);
    if (heap == kHeapPublic || heap == kHeapPrivate) {
      bytes += NumberOf(text, "size_in_bytes").value_or(0);
    }
  }
  return bytes;
}

bool Holds(const std::string& process, std::uint64_t gpu_id) {
  if (ReadNumber(fmt::format("{}/vram_{}", process, gpu_id)).value_or(0) > 0) {
    return true;
  }
  const std::vector<std::string> queues = NamesIn(process + "/queues");
  return std::any_of(queues.begin(), queues.end(), [&](const std::string& queue) {
    return ReadNumber(fmt::format("{}/queues/{}/gpuid", process, queue)) == gpu_id;
  });
}

}  // namespace

Survey KfdDriver::Find() {
  Survey survey;
  gpus_.clear();
  std::vector<std::uint64_t> unique;
  std::map<std::uint64_t, int> times;     // That a unique id is there.
  std::map<std::string, int> partitions;  // Of the device at a PCI address.
  const std::string nodes = fmt::format("{}{}/topology/nodes", root_, kKfd);
  for (const std::uint64_t number : NumbersAfter(nodes, "")) {
    const std::string node = fmt::format("{}/{}", nodes, number);
    // CPUs have 0; one that this process may not use cannot be read, and HIP does not count it either.
    const std::uint64_t gpu_id = ReadNumber(node + "/gpu_id").value_or(0);
    const std::optional<std::string> properties = ReadText(node + "/properties");
    if (gpu_id == 0 || !properties) {
      continue;
    }
    const auto property = [&properties](std::string_view name) { return NumberOf(*properties, name).value_or(0); };
    Gpu gpu{gpu_id, fmt::format("{}/sys/class/drm/renderD{}", root_, property("drm_render_minor"))};
    Device device{.vendor = "amd"};
    device.pci_address = PciAddress(property("domain"), property("location_id"));
    device.name = ReadText(gpu.drm + "/device/product_name").value_or("");
    if (device.name.empty()) {
      device.name = TargetName(property("gfx_target_version"));
    }
    device.memory_bytes = BankBytes(node);
    if (device.memory_bytes == 0) {
      device.memory_bytes = ReadNumber(gpu.drm + "/device/mem_info_vram_total").value_or(0);
    }
    device.numa_node = NumaNodeOf(root_, device.pci_address);
    unique.push_back(property("unique_id"));
    ++times[unique.back()];
    ++partitions[device.pci_address];
    gpus_.push_back(std::move(gpu));
    survey.devices.push_back(std::move(device));
  }
  for (std::size_t i = 0; i < survey.devices.size(); ++i) {
    Device& device = survey.devices[i];
    // ROCr takes the unique id, which no order can confuse. Small cards have none, and partitions of one device share
    // it.
    const bool has_own = unique[i] != 0 && times[unique[i]] == 1;
    device.id = has_own ? fmt::format("GPU-{:016x}", unique[i]) : std::to_string(i);
    if (partitions[device.pci_address] > 1) {
      device.parent_id = unique[i] != 0 ? fmt::format("GPU-{:016x}", unique[i]) : device.pci_address;
    }
  }
  return survey;
}

std::vector<Condition> KfdDriver::Look() {
  std::vector<Condition> conditions(gpus_.size());
  const std::string processes = fmt::format("{}{}/proc", root_, kKfd);
  const std::vector<std::uint64_t> pids = gpus_.empty() ? std::vector<std::uint64_t>() : NumbersAfter(processes, "");
  for (std::size_t i = 0; i < gpus_.size(); ++i) {
    const Gpu& gpu = gpus_[i];
    for (const std::uint64_t number : pids) {
      if (Holds(fmt::format("{}/{}", processes, number), gpu.gpu_id)) {
        const auto pid = static_cast<pid_t>(number);
        conditions[i].holders.push_back({pid, ProcessName(root_, pid)});
      }
    }
    const std::string errors = ReadText(gpu.drm + "/device/ras/umc_err_count").value_or("");
    if (const std::uint64_t count = NumberOf(errors, "ue:").value_or(0); count > 0) {
      conditions[i].problem = fmt::format(
          "{} uncorrected memory errors since its driver was loaded; reset it by `amd-smi reset --gpureset`", count);
    }
  }
  return conditions;
}

}  // namespace rayctl::device
