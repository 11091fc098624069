#include "daemon/head/ledger.h"

#include <algorithm>
#include <utility>

#include "base/invariant.h"

namespace rayctl::head {

void Ledger::SetNode(NodeId id, const std::string& name, const Resources& total, std::uint32_t gpu_count,
                     const scheduler::Labels& labels) {
  Node& node = nodes_[id];
  node.name = name;
  node.total = total;
  node.gpu_count = gpu_count;
  node.labels = labels;
  if (node.gpu_used.size() < gpu_count) {
    node.gpu_used.resize(gpu_count);
  }
  ++generation_;
  Refresh(id);
}

void Ledger::SetPresence(NodeId id, bool visible, bool placeable) {
  Node& node = nodes_[id];
  if (node.visible == visible && node.placeable == placeable) {
    return;
  }
  node.visible = visible;
  node.placeable = placeable;
  ++generation_;
  Refresh(id);
}

void Ledger::SetFenced(NodeId id, std::set<std::uint32_t> devices) {
  Node& node = nodes_[id];
  if (node.fenced == devices) {
    return;
  }
  node.fenced = std::move(devices);
  ++generation_;
  Refresh(id);
}

bool Ledger::IsFenced(NodeId id, std::uint32_t device) const {
  const auto node = nodes_.find(id);
  return node != nodes_.end() && node->second.fenced.contains(device);
}

void Ledger::Take(NodeId id, const Resources& want, const std::vector<scheduler::DeviceShare>& devices) {
  Node& node = nodes_[id];
  node.used.Add(want);
  for (const scheduler::DeviceShare& device : devices) {
    Invariant(!node.fenced.contains(device.index), "a fenced device is not lent");
    if (node.gpu_used.size() <= device.index) {
      node.gpu_used.resize(device.index + 1);
    }
    node.gpu_used[device.index] += device.share;
    Invariant(node.gpu_used[device.index] <= Amount::Units(1), "a device is lent once");
  }
  Refresh(id);
}

void Ledger::Release(NodeId id, const Resources& want, const std::vector<scheduler::DeviceShare>& devices) {
  Node& node = nodes_[id];
  Invariant(node.used.Contains(want), "what is given back was held");
  node.used.Subtract(want);
  for (const scheduler::DeviceShare& device : devices) {
    Invariant(device.index < node.gpu_used.size() && node.gpu_used[device.index] >= device.share,
              "a device that is given back was held");
    node.gpu_used[device.index] -= device.share;
  }
  ++generation_;
  Refresh(id);
}

void Ledger::Refresh(NodeId id) {
  const Node& node = nodes_[id];
  auto& views = view_.nodes;
  auto at = std::lower_bound(views.begin(), views.end(), id,
                             [](const scheduler::NodeView& view, NodeId wanted) { return view.id < wanted; });
  const bool present = at != views.end() && at->id == id;
  if (!node.visible) {
    if (present) {
      views.erase(at);
    }
    return;
  }
  if (!present) {
    at = views.insert(at, scheduler::NodeView{});
    at->id = id;
  }
  at->name = node.name;
  at->labels = node.labels;
  at->total = node.total;
  at->free = node.total;
  at->free.Subtract(node.used);
  at->gpu_free.resize(node.gpu_count);
  Resources fenced;  // What nobody holds of them: it is neither used nor free.
  for (std::uint32_t i = 0; i < node.gpu_count; ++i) {
    at->gpu_free[i] = Amount::Units(1) - node.gpu_used[i];
    if (node.fenced.contains(i)) {
      fenced.Set(kGpu, fenced.Get(kGpu) + at->gpu_free[i]);
      at->gpu_free[i] = Amount{};
    }
  }
  at->free.Subtract(fenced);
  at->gpus_fenced = static_cast<std::uint32_t>(node.fenced.size());
  at->placeable = node.placeable;
}

}  // namespace rayctl::head
