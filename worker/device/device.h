#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

// The accelerators of this machine, by what their drivers say: NVIDIA by NVML, AMD by the kernel's kfd topology, TPUs
// by their device files. What is not there is no error; what is there and fails is a remark.
namespace rayctl::device {

struct Device {
  std::string vendor;  // "nvidia", "amd", "tpu".
  std::string id;      // What the vendor's variable of visible devices takes.
  std::string name;    // "NVIDIA H100 80GB HBM3".
  std::uint64_t memory_bytes = 0;
  std::string parent_id;    // Of a partition: the whole device.
  std::string pci_address;  // "0000:c1:00.0".
  std::optional<std::int32_t> numa_node;
};

struct Survey {
  std::vector<Device> devices;       // Those of one vendor in the order in which its runtime counts them.
  std::vector<std::string> remarks;  // What a person should know, a sentence each.
};

struct Holder {
  pid_t pid = 0;     // 0: somebody whom this process cannot see, known by the memory in use.
  std::string name;  // May be empty.
};

// How one device is now.
struct Condition {
  std::string problem;  // Of its health, with what mends it; empty: none.
  std::vector<Holder> holders;
};

struct Places {
  std::string root;                           // Before /sys, /proc and /dev; empty: those of this machine.
  std::string nvml = "libnvidia-ml.so.1";     // Empty: not asked.
  std::vector<std::string> environment = {};  // KEY=VALUE, for what only a variable tells.
};

// One vendor's driver. Calls may take as long as the driver takes.
class Driver {
 public:
  virtual ~Driver() = default;
  virtual Survey Find() = 0;
  // Of what Find() gave, in its order.
  virtual std::vector<Condition> Look() = 0;
};

// All of them. One thread at a time.
class Finder {
 public:
  explicit Finder(const Places& places);
  ~Finder();

  Survey Find();
  // Of what Find() gave, in its order.
  std::vector<Condition> Look();

 private:
  std::vector<std::unique_ptr<Driver>> drivers_;
};

// What a job file's accelerator_type selects, in Ray's words ("H100", "AMD-Instinct-MI300X-OAM", "TPU-V5LITEPOD");
// empty where the devices are not all of one type. Pure.
std::string AcceleratorType(const std::vector<Device>& devices);

}  // namespace rayctl::device
