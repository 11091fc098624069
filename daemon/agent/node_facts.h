#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/agent/device_watcher.h"
#include "daemon/link/messages.h"

namespace rayctl::agent {

// What a person may say of a node instead of what is found.
struct NodeSettings {
  std::string head_address;     // "host:port"; the address of this node is the one that reaches it.
  std::string node_ip_address;  // Empty: found.
  std::optional<double> num_cpus;
  std::optional<double> num_gpus;
  std::string resources_json;  // {"name": amount, …}
  std::string labels;          // k=v,k=v
  bool is_head_node = false;
};

// The node as it registers; `ranks` is empty. INVALID_ARGUMENT: a setting is wrong. Others: the system does not tell.
// `devices`: what was found here; where --num-gpus says how many there are, it is cut to what the node offers.
absl::StatusOr<link::Register> DescribeNode(const NodeSettings& settings, const std::string& version,
                                            NodeDevices& devices);

// Of {"license": 2}, added to `resources`. INVALID_ARGUMENT: not that.
absl::Status AddResourcesJson(const std::string& json, Resources& resources);
// Of "rack=r1,zone=b". INVALID_ARGUMENT: not that.
absl::StatusOr<scheduler::Labels> ParseLabels(const std::string& text);

struct PortRange {
  std::uint32_t min = 0;
  std::uint32_t max = 0;
};
// Ports for MASTER_PORT outside the ephemeral range, from which the kernel takes ports for outgoing connections.
PortRange PortsOutside(PortRange ephemeral);

// How many processes and threads one job may have here when nobody says: a quarter of what the kernel allows.
std::uint64_t DefaultPidsMax();

// What every rank inherits of this process's environment: all but what belongs to rayctl's own daemons.
std::vector<std::string> InheritedEnvironment();

}  // namespace rayctl::agent
