#pragma once

#include <memory>
#include <string>
#include <vector>

#include "worker/device/device.h"

namespace rayctl::device {

// NVIDIA's devices by NVML, which is loaded when it is there. Where a device is cut into MIG instances, these are the
// devices, and it is none.
class NvmlDriver final : public Driver {
 public:
  NvmlDriver(std::string root, const std::string& library);
  ~NvmlDriver() override;
  Survey Find() override;
  std::vector<Condition> Look() override;

 private:
  class Library;
  struct Gpu {
    void* handle = nullptr;
    void* whole = nullptr;  // Itself, or the device that a MIG instance is a part of: health is told of that one.
    std::string pci_address;
    std::uint64_t fatal_xid = 0;  // The last; it is over when the agent is started again.
  };

  void TakeEvents();
  Condition LookAt(const Gpu& gpu);

  const std::string root_;
  std::unique_ptr<Library> library_;
  std::vector<Gpu> gpus_;
  void* events_ = nullptr;
};

}  // namespace rayctl::device
