#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/resources.h"
#include "base/states.h"

namespace rayctl::scheduler {

using Labels = std::map<std::string, std::string>;

struct DeviceShare {
  std::uint32_t index = 0;  // Of the node's GPUs.
  Amount share;             // One unit is the whole device.
  friend bool operator==(const DeviceShare&, const DeviceShare&) = default;
};

// A node as placement sees it. `gpu_free` has one entry a device; a fenced one has none free.
struct NodeView {
  NodeId id;
  Labels labels;
  Resources total;
  Resources free;
  std::vector<Amount> gpu_free;
  bool placeable = true;          // Alive: neither suspect nor draining. Counts for feasibility in either case.
  std::string name;               // For reasons; the id stands in where it is empty.
  std::uint32_t gpus_fenced = 0;  // For reasons.
};

struct ClusterView {
  std::vector<NodeView> nodes;  // In id order; dead nodes left out.
};

// Resources for one rank.
struct Bundle {
  Resources want;
  Labels label_selector;  // Equal on every key.
};

struct PlacementGroup {
  std::vector<Bundle> bundles;
  PlacementStrategy strategy = PlacementStrategy::kPack;
};

struct BundlePlacement {
  NodeId node;
  std::vector<DeviceShare> devices;
};

struct Placed {
  std::vector<BundlePlacement> bundles;
};  // One entry a bundle, in bundle order.
struct Waiting {
  std::string reason;
};  // Would fit once running work ends.
struct Infeasible {
  std::string reason;
};  // Would not fit even on an empty cluster.
using Decision = std::variant<Placed, Waiting, Infeasible>;

// Finds a node and particular devices for every bundle of `group`, or for none. Looks at nothing but its arguments, so
// equal arguments give equal decisions; equally good nodes are taken in id order. A whole number of GPUs gets whole
// devices; a fraction below one gets a share of a single device, the fullest that still has room. Anything else (1.5)
// is infeasible.
Decision Place(const ClusterView& cluster, const PlacementGroup& group);

}  // namespace rayctl::scheduler
