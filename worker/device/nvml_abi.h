#pragma once

#include <cstdint>

// The part of NVML's binary interface that is used here. It is NVIDIA's and never changes under a name; the test
// library speaks the same.
namespace rayctl::device::nvml {

using Return = int;
inline constexpr Return kSuccess = 0;
inline constexpr Return kNotSupported = 3;
inline constexpr Return kNoPermission = 4;
inline constexpr Return kNotFound = 6;
inline constexpr Return kInsufficientSize = 7;
inline constexpr Return kDriverNotLoaded = 9;
inline constexpr Return kTimeout = 10;
inline constexpr Return kGpuIsLost = 15;
inline constexpr Return kResetRequired = 16;

using Handle = void*;

struct Memory {  // nvmlMemory_t.
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
struct MemoryV2 {  // nvmlMemory_v2_t: what the driver keeps for itself is not `used`.
  unsigned int version;
  unsigned long long total;
  unsigned long long reserved;
  unsigned long long free;
  unsigned long long used;
};
inline constexpr unsigned int kMemoryV2 = static_cast<unsigned int>(sizeof(MemoryV2)) | 2U << 24U;

struct PciInfo {  // nvmlPciInfo_t.
  char bus_id_legacy[16];
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int pci_device_id;
  unsigned int pci_subsystem_id;
  char bus_id[32];
};
struct ProcessInfo {  // nvmlProcessInfo_t, since _v2.
  unsigned int pid;
  unsigned long long used_gpu_memory;
  unsigned int gpu_instance_id;
  unsigned int compute_instance_id;
};
struct EventData {  // nvmlEventData_t, since _v2.
  Handle device;
  unsigned long long event_type;
  unsigned long long event_data;
  unsigned int gpu_instance_id;
  unsigned int compute_instance_id;
};
inline constexpr unsigned long long kEventXidCritical = 8;
inline constexpr int kUncorrected = 1;
inline constexpr int kVolatile = 0;
inline constexpr unsigned int kTextBytes = 96;

}  // namespace rayctl::device::nvml
