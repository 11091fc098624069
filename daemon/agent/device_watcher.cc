#include "daemon/agent/device_watcher.h"

#include <algorithm>
#include <future>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"
#include "worker/process/proc.h"

namespace rayctl::agent {
namespace {

std::optional<std::string> ValueOf(const std::vector<std::string>& environment, std::string_view name) {
  for (const std::string& entry : environment) {
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=') {
      return entry.substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

// The variable that says which of a vendor's devices a process sees; the first that is set counts.
std::vector<std::string_view> VariablesOf(std::string_view vendor) {
  if (vendor == "nvidia") {
    return {"CUDA_VISIBLE_DEVICES"};
  }
  if (vendor == "amd") {
    return {"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"};
  }
  return {"TPU_VISIBLE_CHIPS"};
}

// The ranks' own variables say whose a process is, wherever it went; they are set once and for all at exec.
std::optional<link::RankKey> RankOf(pid_t pid, const std::string& run_dir) {
  const std::optional<std::string> socket = process::EnvironmentOf(pid, "RAYCTL_SOCKET");
  if (!socket || !socket->starts_with(run_dir + "/rank-")) {
    return std::nullopt;
  }
  link::RankKey key;
  const auto number = [pid](const char* name, auto* out) {
    const std::optional<std::string> text = process::EnvironmentOf(pid, name);
    return text && absl::SimpleAtoi(*text, out);
  };
  return number("RAYCTL_JOB_ID", &key.job.value) && number("RAYCTL_ATTEMPT", &key.attempt) && number("RANK", &key.rank)
             ? std::optional(key)
             : std::nullopt;
}

std::vector<DeviceFacts> FactsOf(const NodeDevices& devices, const std::string& run_dir) {
  const std::vector<device::Condition> conditions = devices.finder->Look();
  std::vector<DeviceFacts> facts;
  facts.reserve(devices.index.size());
  for (const std::size_t index : devices.index) {
    DeviceFacts one;
    if (index < conditions.size()) {
      one.problem = conditions[index].problem;
      for (const device::Holder& holder : conditions[index].holders) {
        one.holders.push_back({holder.pid, holder.name, holder.pid == 0 ? std::nullopt : RankOf(holder.pid, run_dir)});
      }
    } else {
      one.problem = "its driver knows it no more";
    }
    facts.push_back(std::move(one));
  }
  return facts;
}

}  // namespace

std::vector<std::size_t> VisibleOf(const std::vector<device::Device>& devices,
                                   const std::vector<std::string>& environment) {
  std::vector<std::size_t> visible;
  for (std::size_t begin = 0; begin < devices.size();) {
    std::size_t end = begin;
    while (end < devices.size() && devices[end].vendor == devices[begin].vendor) {
      ++end;
    }
    std::optional<std::string> said;
    for (const std::string_view variable : VariablesOf(devices[begin].vendor)) {
      said = said ? said : ValueOf(environment, variable);
    }
    if (!said) {
      for (std::size_t i = begin; i < end; ++i) {
        visible.push_back(i);
      }
    } else {
      for (const auto& piece : absl::StrSplit(*said, ',')) {
        const std::string word(piece);
        std::size_t at = end;
        std::uint64_t number = 0;
        if (absl::SimpleAtoi(word, &number)) {
          at = number < end - begin ? begin + number : end;
        } else if (!word.empty()) {
          // By a name, which may be cut short as long as it is the only one that begins so.
          const auto named = [&word](const device::Device& device) { return device.id.starts_with(word); };
          const auto first = devices.begin() + static_cast<std::ptrdiff_t>(begin);
          const auto last = devices.begin() + static_cast<std::ptrdiff_t>(end);
          if (std::count_if(first, last, named) == 1) {
            at = begin + static_cast<std::size_t>(std::find_if(first, last, named) - first);
          }
        }
        if (at == end || std::find(visible.begin(), visible.end(), at) != visible.end()) {
          break;  // As the runtimes do: what follows a wrong entry is not seen.
        }
        visible.push_back(at);
      }
    }
    begin = end;
  }
  return visible;
}

NodeDevices FindDevices(const device::Places& places, const std::vector<std::string>& environment, Duration patience) {
  auto finder = std::make_shared<device::Finder>(places);
  std::packaged_task<device::Survey()> task([finder] { return finder->Find(); });
  std::future<device::Survey> answer = task.get_future();
  std::thread(std::move(task)).detach();
  NodeDevices found;
  if (answer.wait_for(patience) != std::future_status::ready) {
    found.remarks.push_back(
        fmt::format("the drivers of this machine's accelerators have not answered within {} s, so none is offered; see "
                    "whether `nvidia-smi` or its like answers, then start the agent again",
                    std::chrono::duration_cast<std::chrono::seconds>(patience).count()));
    return found;
  }
  device::Survey survey = answer.get();
  found.remarks = std::move(survey.remarks);
  found.index = VisibleOf(survey.devices, environment);
  std::vector<device::Device> visible;
  visible.reserve(found.index.size());
  found.offered.reserve(found.index.size());
  for (const std::size_t index : found.index) {
    const device::Device& device = visible.emplace_back(survey.devices[index]);
    found.offered.push_back({.vendor = device.vendor,
                             .id = device.id,
                             .name = device.name,
                             .memory_bytes = device.memory_bytes,
                             .parent_id = device.parent_id,
                             .pci_address = device.pci_address,
                             .numa_node = device.numa_node,
                             .problem = {}});
  }
  found.accelerator_type = device::AcceleratorType(visible);
  if (!found.offered.empty()) {
    found.finder = std::move(finder);
  }
  return found;
}

DeviceWatcher::DeviceWatcher(boost::asio::io_context& loop, NodeDevices devices, std::string run_dir,
                             std::function<void(Event)> deliver)
    : devices_(std::move(devices)),
      run_dir_(std::move(run_dir)),
      deliver_(std::move(deliver)),
      gate_(std::make_shared<LoopGate>(loop)) {}

// A thread that a driver holds stays behind until the process ends; it can only knock at a closed gate.
DeviceWatcher::~DeviceWatcher() { gate_->Close(); }

void DeviceWatcher::Look(const LookAtDevices& look) {
  std::thread([gate = gate_, devices = devices_, run_dir = run_dir_, deliver = deliver_, number = look.look] {
    std::vector<DeviceFacts> facts = FactsOf(devices, run_dir);
    gate->Post([deliver, number, facts = std::move(facts)] { deliver(DevicesLooked{number, facts}); });
  }).detach();
}

}  // namespace rayctl::agent
