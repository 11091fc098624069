#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/resources.h"
#include "scheduler/place.h"

namespace rayctl::head {

// Who holds what: the only authority on resources. Keeps the view that placement sees. Nodes that are dead are left out
// of the view but keep their leases until these are released. Head loop only.
class Ledger {
 public:
  struct Node {
    std::string name;
    Resources total;
    std::uint32_t gpu_count = 0;
    scheduler::Labels labels;
    bool visible = false;    // In the view: not dead.
    bool placeable = false;  // May take new work.
    Resources used;
    std::set<std::uint32_t> fenced;  // Devices that are not to be lent now, whoever holds them.
    std::vector<Amount> gpu_used;    // At least gpu_count entries; more when devices went away under a lease.
  };

  // What the node has now; its leases stay.
  void SetNode(NodeId id, const std::string& name, const Resources& total, std::uint32_t gpu_count,
               const scheduler::Labels& labels);
  void SetPresence(NodeId id, bool visible, bool placeable);

  void SetFenced(NodeId id, std::set<std::uint32_t> devices);
  bool IsFenced(NodeId id, std::uint32_t device) const;

  void Take(NodeId id, const Resources& want, const std::vector<scheduler::DeviceShare>& devices);
  void Release(NodeId id, const Resources& want, const std::vector<scheduler::DeviceShare>& devices);

  const scheduler::ClusterView& view() const { return view_; }
  const std::map<NodeId, Node>& nodes() const { return nodes_; }
  // Grows whenever something could fit that did not before.
  std::uint64_t generation() const { return generation_; }

 private:
  void Refresh(NodeId id);

  std::map<NodeId, Node> nodes_;
  scheduler::ClusterView view_;
  std::uint64_t generation_ = 1;
};

}  // namespace rayctl::head
