#pragma once

#include <string>
#include <vector>

#include "worker/device/device.h"

namespace rayctl::device {

// Google's TPUs by their device files: /dev/accel* (up to v5e) or /dev/vfio/* (since), and PCI ids for the type.
class TpuDriver final : public Driver {
 public:
  TpuDriver(std::string root, std::vector<std::string> environment)
      : root_(std::move(root)), environment_(std::move(environment)) {}
  Survey Find() override;
  std::vector<Condition> Look() override;

 private:
  const std::string root_;
  const std::vector<std::string> environment_;
  std::vector<std::string> files_;  // "/dev/accel0", without the root.
};

// Of a device's name: "TPU v5e" is "TPU-V5LITEPOD", as Ray calls it.
std::string TpuType(const std::string& name);

}  // namespace rayctl::device
