// A shared library with NVML's binary interface for tests: the devices that it tells of, and how they are, stand in the
// file that RAYCTL_TEST_NVML names, and are read anew at every call. A line each:
//   init CODE                          what nvmlInit_v2 returns
//   gpu UUID BUS(hex) BYTES NAME…      a device; what follows is of it
//   mig UUID BYTES NAME…               an instance of it; what follows is of that
//   migmode                            the device is in MIG mode, with or without instances
//   process PID | graphics PID         holds it
//   used BYTES                         memory in use
//   rows PENDING FAILED | ecc COUNT | xid NUMBER
//   code CODE                          what asking for its processes returns
//   hang PATH                          asking for its processes waits until somebody writes to this named pipe
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "worker/device/nvml_abi.h"

namespace nvml = rayctl::device::nvml;

namespace {

struct Unit {
  std::string uuid;
  std::string name;
  unsigned int bus = 0;
  unsigned long long bytes = 0;
  unsigned long long used = 0;
  unsigned long long ecc = 0;
  unsigned int rows_pending = 0;
  unsigned int rows_failed = 0;
  bool mig_mode = false;
  nvml::Return code = nvml::kSuccess;
  std::string hang;
  std::vector<unsigned int> processes;
  std::vector<unsigned int> graphics;
  std::vector<unsigned long long> xids;
  std::vector<Unit> instances;
};

struct World {
  nvml::Return init = nvml::kSuccess;
  std::vector<Unit> gpus;
};

std::string Rest(std::istringstream& words) {
  std::string rest;
  std::getline(words >> std::ws, rest);
  return rest;
}

World Read() {
  World world;
  const char* const path = std::getenv("RAYCTL_TEST_NVML");
  std::ifstream file(path == nullptr ? "" : path);
  Unit* unit = nullptr;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string what;
    words >> what;
    if (what == "init") {
      words >> world.init;
    } else if (what == "gpu") {
      unit = &world.gpus.emplace_back();
      words >> unit->uuid >> std::hex >> unit->bus >> std::dec >> unit->bytes;
      unit->name = Rest(words);
    } else if (what == "mig") {
      world.gpus.back().mig_mode = true;
      unit = &world.gpus.back().instances.emplace_back();
      words >> unit->uuid >> unit->bytes;
      unit->name = Rest(words);
    } else if (what == "migmode") {
      unit->mig_mode = true;
    } else if (what == "process") {
      words >> unit->processes.emplace_back();
    } else if (what == "graphics") {
      words >> unit->graphics.emplace_back();
    } else if (what == "used") {
      words >> unit->used;
    } else if (what == "rows") {
      words >> unit->rows_pending >> unit->rows_failed;
    } else if (what == "ecc") {
      words >> unit->ecc;
    } else if (what == "xid") {
      words >> unit->xids.emplace_back();
    } else if (what == "code") {
      words >> unit->code;
    } else if (what == "hang") {
      unit->hang = Rest(words);
    }
  }
  return world;
}

constexpr std::size_t kInstancesMax = 8;

// Handles are numbers: 1 + gpu * 9 + instance, where 0 is the whole.
nvml::Handle HandleOf(std::size_t gpu, std::size_t part) {
  return reinterpret_cast<nvml::Handle>(1 + gpu * (kInstancesMax + 1) + part);
}

bool Find(nvml::Handle handle, Unit& unit) {
  const std::size_t number = reinterpret_cast<std::size_t>(handle) - 1;
  const World world = Read();
  const std::size_t gpu = number / (kInstancesMax + 1);
  const std::size_t part = number % (kInstancesMax + 1);
  if (gpu >= world.gpus.size() || part > world.gpus[gpu].instances.size()) {
    return false;
  }
  unit = part == 0 ? world.gpus[gpu] : world.gpus[gpu].instances[part - 1];
  return true;
}

nvml::Return CopyText(const std::string& from, char* to, unsigned int length) {
  if (from.size() >= length) {
    return nvml::kInsufficientSize;
  }
  std::memcpy(to, from.c_str(), from.size() + 1);
  return nvml::kSuccess;
}

nvml::Return List(const std::vector<unsigned int>& pids, unsigned int* count, nvml::ProcessInfo* out) {
  const unsigned int room = *count;
  *count = static_cast<unsigned int>(pids.size());
  if (room < pids.size()) {
    return nvml::kInsufficientSize;
  }
  for (std::size_t i = 0; i < pids.size(); ++i) {
    out[i] = {pids[i], 1 << 20, 0, 0};
  }
  return nvml::kSuccess;
}

std::size_t xids_taken = 0;

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

nvml::Return nvmlInit_v2() { return Read().init; }
nvml::Return nvmlShutdown() { return nvml::kSuccess; }
const char* nvmlErrorString(nvml::Return code) {
  switch (code) {
    case nvml::kDriverNotLoaded:
      return "Driver Not Loaded";
    case nvml::kNotFound:
      return "Not Found";
    default:
      return "Unknown Error";
  }
}
nvml::Return nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = static_cast<unsigned int>(Read().gpus.size());
  return nvml::kSuccess;
}
nvml::Return nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvml::Handle* handle) {
  *handle = HandleOf(index, 0);
  return index < Read().gpus.size() ? nvml::kSuccess : nvml::kNotFound;
}
nvml::Return nvmlDeviceGetName(nvml::Handle handle, char* text, unsigned int length) {
  Unit unit;
  return Find(handle, unit) ? CopyText(unit.name, text, length) : nvml::kNotFound;
}
nvml::Return nvmlDeviceGetUUID(nvml::Handle handle, char* text, unsigned int length) {
  Unit unit;
  return Find(handle, unit) ? CopyText(unit.uuid, text, length) : nvml::kNotFound;
}
nvml::Return nvmlDeviceGetMemoryInfo(nvml::Handle handle, nvml::Memory* memory) {
  Unit unit;
  if (!Find(handle, unit)) {
    return nvml::kNotFound;
  }
  *memory = {unit.bytes, unit.bytes - unit.used, unit.used};
  return nvml::kSuccess;
}
nvml::Return nvmlDeviceGetMemoryInfo_v2(nvml::Handle handle, nvml::MemoryV2* memory) {
  constexpr unsigned long long kReserved = 600ULL << 20;
  Unit unit;
  if (!Find(handle, unit) || memory->version != nvml::kMemoryV2) {
    return nvml::kNotFound;
  }
  *memory = {memory->version, unit.bytes, kReserved, unit.bytes - unit.used, unit.used};
  return nvml::kSuccess;
}
nvml::Return nvmlDeviceGetPciInfo_v3(nvml::Handle handle, nvml::PciInfo* pci) {
  Unit unit;
  if (!Find(handle, unit)) {
    return nvml::kNotFound;
  }
  *pci = {};
  pci->bus = unit.bus;
  return nvml::kSuccess;
}
nvml::Return nvmlDeviceGetMigMode(nvml::Handle handle, unsigned int* current, unsigned int* pending) {
  Unit unit;
  if (!Find(handle, unit)) {
    return nvml::kNotFound;
  }
  *current = unit.mig_mode ? 1 : 0;
  *pending = *current;
  return nvml::kSuccess;
}
nvml::Return nvmlDeviceGetMaxMigDeviceCount(nvml::Handle, unsigned int* count) {
  *count = kInstancesMax;
  return nvml::kSuccess;
}
nvml::Return nvmlDeviceGetMigDeviceHandleByIndex(nvml::Handle handle, unsigned int index, nvml::Handle* part) {
  Unit unit;
  if (!Find(handle, unit) || index >= unit.instances.size()) {
    return nvml::kNotFound;
  }
  *part = reinterpret_cast<nvml::Handle>(reinterpret_cast<std::size_t>(handle) + 1 + index);
  return nvml::kSuccess;
}
nvml::Return nvmlDeviceGetComputeRunningProcesses_v3(nvml::Handle handle, unsigned int* count, nvml::ProcessInfo* out) {
  Unit unit;
  if (!Find(handle, unit)) {
    return nvml::kNotFound;
  }
  if (!unit.hang.empty()) {
    std::ifstream pipe(unit.hang);
    pipe.get();
  }
  return unit.code != nvml::kSuccess ? unit.code : List(unit.processes, count, out);
}
nvml::Return nvmlDeviceGetGraphicsRunningProcesses_v3(nvml::Handle handle, unsigned int* count,
                                                      nvml::ProcessInfo* out) {
  Unit unit;
  return Find(handle, unit) ? List(unit.graphics, count, out) : nvml::kNotFound;
}
nvml::Return nvmlDeviceGetTotalEccErrors(nvml::Handle handle, int type, int counter, unsigned long long* count) {
  Unit unit;
  if (!Find(handle, unit) || type != nvml::kUncorrected || counter != nvml::kVolatile) {
    return nvml::kNotFound;
  }
  *count = unit.ecc;
  return nvml::kSuccess;
}
nvml::Return nvmlDeviceGetRemappedRows(nvml::Handle handle, unsigned int* corrected, unsigned int* uncorrected,
                                       unsigned int* pending, unsigned int* failed) {
  Unit unit;
  if (!Find(handle, unit)) {
    return nvml::kNotFound;
  }
  *corrected = 0;
  *uncorrected = 0;
  *pending = unit.rows_pending;
  *failed = unit.rows_failed;
  return nvml::kSuccess;
}
nvml::Return nvmlEventSetCreate(nvml::Handle* set) {
  *set = &xids_taken;
  return nvml::kSuccess;
}
nvml::Return nvmlEventSetFree(nvml::Handle) { return nvml::kSuccess; }
nvml::Return nvmlDeviceRegisterEvents(nvml::Handle, unsigned long long types, nvml::Handle) {
  return types == nvml::kEventXidCritical ? nvml::kSuccess : nvml::kNotSupported;
}
nvml::Return nvmlEventSetWait_v2(nvml::Handle, nvml::EventData* event, unsigned int) {
  std::size_t seen = 0;
  const World world = Read();
  for (std::size_t gpu = 0; gpu < world.gpus.size(); ++gpu) {
    for (const unsigned long long xid : world.gpus[gpu].xids) {
      if (seen++ == xids_taken) {
        ++xids_taken;
        *event = {HandleOf(gpu, 0), nvml::kEventXidCritical, xid, 0, 0};
        return nvml::kSuccess;
      }
    }
  }
  return nvml::kTimeout;
}

}  // extern "C"
#pragma GCC visibility pop
