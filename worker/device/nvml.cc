#include "worker/device/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "worker/device/files.h"
#include "worker/device/nvml_abi.h"

namespace rayctl::device {

using nvml::Handle;
using nvml::Return;

namespace {

constexpr unsigned int kDevicesMax = 256;
constexpr unsigned int kProcessesMax = 1024;
constexpr int kEventsMax = 1000;  // Taken at one look.
// In use with no process to be seen: above what an idle device shows, below a bare CUDA context. Inside a container
// NVML tells of no process outside it, but of its memory.
constexpr unsigned long long kIdleBytesMax = 192ULL << 20;
// Begins the name of the servers that share a device among processes: they hold it and are nobody's job.
constexpr std::string_view kMpsName = "nvidia-cuda-mps";
// What an application does wrong, not the device.
constexpr std::array<unsigned long long, 6> kXidsOfApplications = {13, 31, 43, 45, 68, 109};

std::string Reset(const std::string& pci_address) {
  return fmt::format("reset it by `nvidia-smi --gpu-reset -i {}`", pci_address);
}

}  // namespace

class NvmlDriver::Library {
 public:
  explicit Library(void* loaded) : loaded_(loaded) {
    Find(init, "nvmlInit_v2");
    Find(shutdown, "nvmlShutdown");
    Find(error_string, "nvmlErrorString");
    Find(get_count, "nvmlDeviceGetCount_v2");
    Find(get_handle, "nvmlDeviceGetHandleByIndex_v2");
    Find(get_name, "nvmlDeviceGetName");
    Find(get_uuid, "nvmlDeviceGetUUID");
    Find(get_memory, "nvmlDeviceGetMemoryInfo");
    Find(get_memory_v2, "nvmlDeviceGetMemoryInfo_v2");
    Find(get_pci, "nvmlDeviceGetPciInfo_v3");
    Find(get_mig_mode, "nvmlDeviceGetMigMode");
    Find(get_mig_count, "nvmlDeviceGetMaxMigDeviceCount");
    Find(get_mig_handle, "nvmlDeviceGetMigDeviceHandleByIndex");
    for (const char* const name :
         {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"}) {
      Find(get_compute, get_compute == nullptr ? name : "");
    }
    for (const char* const name :
         {"nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"}) {
      Find(get_graphics, get_graphics == nullptr ? name : "");
    }
    Find(get_ecc, "nvmlDeviceGetTotalEccErrors");
    Find(get_rows, "nvmlDeviceGetRemappedRows");
    Find(event_set_create, "nvmlEventSetCreate");
    Find(event_set_free, "nvmlEventSetFree");
    Find(event_register, "nvmlDeviceRegisterEvents");
    Find(event_wait, "nvmlEventSetWait_v2");
  }
  ~Library() {
    if (initialised) {
      shutdown();
    }
    ::dlclose(loaded_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  // The first that is missing of what nothing can be done without; nullptr: all are there.
  const char* Missing() const {
    const std::array<std::pair<const char*, bool>, 7> needed = {
        {{"nvmlInit_v2", init != nullptr},
         {"nvmlShutdown", shutdown != nullptr},
         {"nvmlErrorString", error_string != nullptr},
         {"nvmlDeviceGetCount_v2", get_count != nullptr},
         {"nvmlDeviceGetHandleByIndex_v2", get_handle != nullptr},
         {"nvmlDeviceGetUUID", get_uuid != nullptr},
         {"a list of processes", get_compute != nullptr}}};
    const auto missing = std::find_if(needed.begin(), needed.end(), [](const auto& each) { return !each.second; });
    return missing == needed.end() ? nullptr : missing->first;
  }

  std::string Text(Return (*get)(Handle, char*, unsigned int), Handle device) const {
    std::array<char, nvml::kTextBytes> text{};
    return get != nullptr && get(device, text.data(), nvml::kTextBytes) == nvml::kSuccess ? std::string(text.data())
                                                                                          : "";
  }

  using GetProcesses = Return (*)(Handle, unsigned int*, nvml::ProcessInfo*);
  Return Processes(GetProcesses get, Handle device, std::vector<nvml::ProcessInfo>& out) const {
    out.clear();
    if (get == nullptr) {
      return nvml::kNotSupported;
    }
    // Others begin while it is counted: ask with room, and once more with what it then says.
    unsigned int count = 64;
    Return result = nvml::kInsufficientSize;
    while (result == nvml::kInsufficientSize && count <= kProcessesMax) {
      out.resize(count);
      result = get(device, &count, out.data());
      if (result == nvml::kInsufficientSize) {
        count = std::max<unsigned int>(count, static_cast<unsigned int>(out.size()) * 2);
      }
    }
    out.resize(result == nvml::kSuccess ? count : 0);
    return result;
  }

  bool initialised = false;
  Return (*init)() = nullptr;
  Return (*shutdown)() = nullptr;
  const char* (*error_string)(Return) = nullptr;
  Return (*get_count)(unsigned int*) = nullptr;
  Return (*get_handle)(unsigned int, Handle*) = nullptr;
  Return (*get_name)(Handle, char*, unsigned int) = nullptr;
  Return (*get_uuid)(Handle, char*, unsigned int) = nullptr;
  Return (*get_memory)(Handle, nvml::Memory*) = nullptr;
  Return (*get_memory_v2)(Handle, nvml::MemoryV2*) = nullptr;
  Return (*get_pci)(Handle, nvml::PciInfo*) = nullptr;
  Return (*get_mig_mode)(Handle, unsigned int*, unsigned int*) = nullptr;
  Return (*get_mig_count)(Handle, unsigned int*) = nullptr;
  Return (*get_mig_handle)(Handle, unsigned int, Handle*) = nullptr;
  GetProcesses get_compute = nullptr;
  GetProcesses get_graphics = nullptr;
  Return (*get_ecc)(Handle, int, int, unsigned long long*) = nullptr;
  Return (*get_rows)(Handle, unsigned int*, unsigned int*, unsigned int*, unsigned int*) = nullptr;
  Return (*event_set_create)(Handle*) = nullptr;
  Return (*event_set_free)(Handle) = nullptr;
  Return (*event_register)(Handle, unsigned long long, Handle) = nullptr;
  Return (*event_wait)(Handle, nvml::EventData*, unsigned int) = nullptr;

 private:
  template <class Function>
  void Find(Function& function, const char* name) {
    if (*name != '\0') {
      function = reinterpret_cast<Function>(::dlsym(loaded_, name));
    }
  }

  void* loaded_;
};

NvmlDriver::NvmlDriver(std::string root, const std::string& library) : root_(std::move(root)) {
  void* const loaded = library.empty() ? nullptr : ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded != nullptr) {
    library_ = std::make_unique<Library>(loaded);
  }
}

NvmlDriver::~NvmlDriver() {
  if (events_ != nullptr) {
    library_->event_set_free(events_);
  }
}

Survey NvmlDriver::Find() {
  Survey survey;
  gpus_.clear();
  if (library_ == nullptr) {
    return survey;
  }
  const auto fails = [&survey](const std::string& why) {
    survey.devices.clear();
    survey.remarks.push_back(
        fmt::format("NVIDIA's library is there and does not work, so none of its devices are "
                    "offered: {}",
                    why));
    return survey;
  };
  if (const char* const missing = library_->Missing()) {
    return fails(fmt::format("it is too old and lacks {}", missing));
  }
  if (!library_->initialised) {
    if (const Return result = library_->init(); result != nvml::kSuccess) {
      return fails(library_->error_string(result));
    }
    library_->initialised = true;
  }
  unsigned int count = 0;
  if (const Return result = library_->get_count(&count); result != nvml::kSuccess) {
    return fails(library_->error_string(result));
  }
  if (events_ == nullptr && library_->event_set_create != nullptr && library_->event_set_free != nullptr &&
      library_->event_register != nullptr && library_->event_wait != nullptr &&
      library_->event_set_create(&events_) != nvml::kSuccess) {
    events_ = nullptr;
  }
  for (unsigned int i = 0; i < std::min(count, kDevicesMax); ++i) {
    Handle whole = nullptr;
    if (const Return result = library_->get_handle(i, &whole); result != nvml::kSuccess) {
      survey.remarks.push_back(fmt::format("NVIDIA device {} is not offered: {}", i, library_->error_string(result)));
      continue;
    }
    if (events_ != nullptr) {
      // Not every device tells of them; then this sign of bad health is missing, and no other.
      library_->event_register(whole, nvml::kEventXidCritical, events_);
    }
    nvml::PciInfo pci{};
    std::string address;
    if (library_->get_pci != nullptr && library_->get_pci(whole, &pci) == nvml::kSuccess) {
      address = fmt::format("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
    }
    const auto add = [&](Handle handle, const std::string& parent) {
      Device device{.vendor = "nvidia", .id = library_->Text(library_->get_uuid, handle)};
      device.name = library_->Text(library_->get_name, handle);
      nvml::Memory memory{};
      if (library_->get_memory != nullptr && library_->get_memory(handle, &memory) == nvml::kSuccess) {
        device.memory_bytes = memory.total;
      }
      device.parent_id = parent;
      device.pci_address = address;
      device.numa_node = NumaNodeOf(root_, address);
      if (device.id.empty()) {
        survey.remarks.push_back(fmt::format("NVIDIA device {} is not offered: it does not tell its UUID", i));
        return;
      }
      survey.devices.push_back(std::move(device));
      gpus_.push_back({handle, whole, address, 0});
    };
    unsigned int mig = 0;
    unsigned int pending = 0;
    const bool is_cut = library_->get_mig_mode != nullptr && library_->get_mig_count != nullptr &&
                        library_->get_mig_handle != nullptr &&
                        library_->get_mig_mode(whole, &mig, &pending) == nvml::kSuccess && mig != 0;
    if (!is_cut) {
      add(whole, "");
      continue;
    }
    const std::string parent = library_->Text(library_->get_uuid, whole);
    unsigned int instances = 0;
    library_->get_mig_count(whole, &instances);
    std::size_t added = 0;
    for (unsigned int instance = 0; instance < std::min(instances, kDevicesMax); ++instance) {
      Handle part = nullptr;
      if (library_->get_mig_handle(whole, instance, &part) == nvml::kSuccess) {
        add(part, parent);
        ++added;
      }
    }
    if (added == 0) {
      survey.remarks.push_back(
          fmt::format("NVIDIA device {} ({}) is in MIG mode and has no instances, so it is not offered; make some by "
                      "`nvidia-smi mig -cgi`",
                      i, parent));
    }
  }
  return survey;
}

std::vector<Condition> NvmlDriver::Look() {
  std::vector<Condition> conditions;
  TakeEvents();
  conditions.reserve(gpus_.size());
  for (const Gpu& gpu : gpus_) {
    conditions.push_back(LookAt(gpu));
  }
  return conditions;
}

void NvmlDriver::TakeEvents() {
  nvml::EventData event{};
  for (int i = 0; events_ != nullptr && i < kEventsMax && library_->event_wait(events_, &event, 0) == nvml::kSuccess;
       ++i) {
    const bool is_fatal = std::find(kXidsOfApplications.begin(), kXidsOfApplications.end(), event.event_data) ==
                          kXidsOfApplications.end();
    for (Gpu& gpu : gpus_) {
      if (is_fatal && event.event_type == nvml::kEventXidCritical && gpu.whole == event.device) {
        gpu.fatal_xid = event.event_data;
      }
    }
  }
}

Condition NvmlDriver::LookAt(const Gpu& gpu) {
  Condition condition;
  std::vector<nvml::ProcessInfo> compute;
  switch (const Return result = library_->Processes(library_->get_compute, gpu.handle, compute)) {
    case nvml::kSuccess:
    case nvml::kNotSupported:
    case nvml::kNoPermission:
      break;
    case nvml::kGpuIsLost:
      condition.problem = "it has fallen off the bus; the machine must be restarted";
      return condition;
    case nvml::kResetRequired:
      condition.problem = "it hangs; " + Reset(gpu.pci_address);
      return condition;
    default:
      condition.problem = fmt::format(
          "its driver does not tell who holds it: {}; start the agent again if the devices "
          "here were changed",
          library_->error_string(result));
      return condition;
  }
  for (const nvml::ProcessInfo& process : compute) {
    const auto pid = static_cast<pid_t>(process.pid);
    std::string name = ProcessName(root_, pid);
    if (!name.starts_with(kMpsName)) {
      condition.holders.push_back({pid, std::move(name)});
    }
  }
  // Displays are shown by processes that hold a device all the time; they only explain the memory in use.
  std::vector<nvml::ProcessInfo> graphics;
  library_->Processes(library_->get_graphics, gpu.handle, graphics);
  nvml::MemoryV2 memory{};
  memory.version = nvml::kMemoryV2;
  if (compute.empty() && graphics.empty() && library_->get_memory_v2 != nullptr &&
      library_->get_memory_v2(gpu.handle, &memory) == nvml::kSuccess && memory.used > kIdleBytesMax) {
    condition.holders.push_back({0, ""});
  }

  unsigned int corrected = 0;
  unsigned int uncorrected = 0;
  unsigned int pending = 0;
  unsigned int failed = 0;
  unsigned long long errors = 0;
  if (gpu.fatal_xid != 0) {
    condition.problem = fmt::format("its driver reported XID {}; {}, then start the agent again", gpu.fatal_xid,
                                    Reset(gpu.pci_address));
  } else if (library_->get_rows != nullptr &&
             library_->get_rows(gpu.whole, &corrected, &uncorrected, &pending, &failed) == nvml::kSuccess &&
             (pending != 0 || failed != 0)) {
    condition.problem = failed != 0 ? "a row of its memory could not be remapped; it must be replaced"
                                    : "rows of its memory wait to be remapped; " + Reset(gpu.pci_address);
  } else if (library_->get_ecc != nullptr &&
             library_->get_ecc(gpu.whole, nvml::kUncorrected, nvml::kVolatile, &errors) == nvml::kSuccess &&
             errors != 0) {
    condition.problem =
        fmt::format("{} uncorrected memory errors since its driver was loaded; {}", errors, Reset(gpu.pci_address));
  }
  return condition;
}

}  // namespace rayctl::device
