#include "worker/device/device.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "worker/device/kfd.h"
#include "worker/device/nvml.h"
#include "worker/device/tpu.h"

namespace rayctl::device {
namespace {

constexpr std::string_view kMigMark = " MIG ";

// "NVIDIA H100 80GB HBM3" and "Tesla V100-SXM2-16GB": the first word with a digit, up to its first dash.
std::string NvidiaType(const std::string& name) {
  std::size_t at = 0;
  while (at < name.size()) {
    const std::size_t end = std::min(name.find(' ', at), name.size());
    const std::string word = name.substr(at, end - at);
    if (word.find_first_of("0123456789") != std::string::npos) {
      const std::size_t mig = name.find(kMigMark);
      const std::string whole = word.substr(0, word.find('-'));
      return mig == std::string::npos ? whole : whole + "-MIG-" + name.substr(mig + kMigMark.size());
    }
    at = end + 1;
  }
  return name;
}

std::string TypeOf(const Device& device) {
  if (device.vendor == "nvidia") {
    return NvidiaType(device.name);
  }
  std::string type = device.vendor == "tpu" ? TpuType(device.name) : device.name;
  std::replace(type.begin(), type.end(), ' ', '-');
  return type;
}

}  // namespace

Finder::Finder(const Places& places) {
  drivers_.push_back(std::make_unique<NvmlDriver>(places.root, places.nvml));
  drivers_.push_back(std::make_unique<KfdDriver>(places.root));
  drivers_.push_back(std::make_unique<TpuDriver>(places.root, places.environment));
}

Finder::~Finder() = default;

Survey Finder::Find() {
  Survey all;
  for (const auto& driver : drivers_) {
    Survey found = driver->Find();
    std::move(found.devices.begin(), found.devices.end(), std::back_inserter(all.devices));
    std::move(found.remarks.begin(), found.remarks.end(), std::back_inserter(all.remarks));
  }
  return all;
}

std::vector<Condition> Finder::Look() {
  std::vector<Condition> all;
  for (const auto& driver : drivers_) {
    std::vector<Condition> some = driver->Look();
    std::move(some.begin(), some.end(), std::back_inserter(all));
  }
  return all;
}

std::string AcceleratorType(const std::vector<Device>& devices) {
  std::string type;
  for (const Device& device : devices) {
    const std::string one = TypeOf(device);
    if (one.empty() || (!type.empty() && type != one)) {
      return "";
    }
    type = one;
  }
  return type;
}

}  // namespace rayctl::device
