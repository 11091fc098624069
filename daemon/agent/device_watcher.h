#pragma once

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "daemon/agent/agent.h"
#include "daemon/agent/loop_gate.h"
#include "daemon/link/messages.h"
#include "worker/device/device.h"

// Asks the drivers of this node's accelerators, on threads of their own: a driver may take as long as it likes.
namespace rayctl::agent {

// Those that the node offers, and how to ask about them.
struct NodeDevices {
  std::shared_ptr<device::Finder> finder;  // Null: nothing was found, or it is not asked.
  std::vector<link::Device> offered;
  std::vector<std::size_t> index;    // Of each offered one in what the finder gives.
  std::string accelerator_type;      // Empty: none, or of several types.
  std::vector<std::string> remarks;  // What a person should know.
};

// What is there, less what `environment` hides (CUDA_VISIBLE_DEVICES and its like, as the vendors' runtimes read them).
// A driver that has not answered within `patience` is given up.
NodeDevices FindDevices(const device::Places& places, const std::vector<std::string>& environment, Duration patience);

// Which of `devices`, in which order, the variables of `environment` leave. Pure.
std::vector<std::size_t> VisibleOf(const std::vector<device::Device>& devices,
                                   const std::vector<std::string>& environment);

// Loop thread only.
class DeviceWatcher {
 public:
  // `run_dir`: of the agent, by which its ranks' processes are known.
  DeviceWatcher(boost::asio::io_context& loop, NodeDevices devices, std::string run_dir,
                std::function<void(Event)> deliver);
  ~DeviceWatcher();
  DeviceWatcher(const DeviceWatcher&) = delete;
  DeviceWatcher& operator=(const DeviceWatcher&) = delete;

  // DevicesLooked follows, once the drivers have answered.
  void Look(const LookAtDevices& look);

 private:
  const NodeDevices devices_;
  const std::string run_dir_;
  const std::function<void(Event)> deliver_;
  const std::shared_ptr<LoopGate> gate_;
};

}  // namespace rayctl::agent
