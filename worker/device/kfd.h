#pragma once

#include <string>
#include <vector>

#include "worker/device/device.h"

namespace rayctl::device {

// AMD's devices by the kernel alone. They come in the order of the kfd topology, which is HIP's; the order of PCI
// addresses, in which tools list them, is another one.
class KfdDriver final : public Driver {
 public:
  explicit KfdDriver(std::string root) : root_(std::move(root)) {}
  Survey Find() override;
  std::vector<Condition> Look() override;

 private:
  struct Gpu {
    std::uint64_t gpu_id = 0;  // The kernel's name of it in /sys/class/kfd/kfd/proc.
    std::string drm;           // Its folder below /sys/class/drm; may be missing.
  };

  const std::string root_;
  std::vector<Gpu> gpus_;
};

}  // namespace rayctl::device
