// Placement by first fit: nodes in id order, bundles in bundle order. Exact for gangs of equal bundles, which is what
// jobs ask for; a gang of unequal ones may be told to wait although a cleverer packing exists.
#include <fmt/format.h>

#include <algorithm>

#include "scheduler/node_room.h"
#include "scheduler/place.h"

namespace rayctl::scheduler {
namespace {

std::vector<NodeRoom> Rooms(const ClusterView& cluster, NodeRoom::Of of) {
  std::vector<NodeRoom> rooms;
  rooms.reserve(cluster.nodes.size());
  for (const NodeView& node : cluster.nodes) {
    if (of == NodeRoom::Of::kTotal || node.placeable) {
      rooms.emplace_back(node, of);
    }
  }
  return rooms;
}

std::optional<Placed> AllOn(NodeRoom room, const PlacementGroup& group) {
  Placed placed;
  placed.bundles.reserve(group.bundles.size());
  for (const Bundle& bundle : group.bundles) {
    auto devices = room.Take(bundle);
    if (!devices) {
      return std::nullopt;
    }
    placed.bundles.push_back({room.node().id, std::move(*devices)});
  }
  return placed;
}

std::optional<Placed> StrictPack(const std::vector<NodeRoom>& rooms, const PlacementGroup& group) {
  for (const NodeRoom& room : rooms) {
    if (!room.Fits(group.bundles.front())) {
      continue;
    }
    if (auto placed = AllOn(room, group)) {
      return placed;
    }
  }
  return std::nullopt;
}

// One node if any holds all; else always the node that holds most of what is left, so that few nodes are used.
std::optional<Placed> Pack(std::vector<NodeRoom>& rooms, const PlacementGroup& group) {
  if (auto placed = StrictPack(rooms, group)) {
    return placed;
  }
  Placed placed;
  std::size_t next = 0;
  while (next < group.bundles.size()) {
    NodeRoom* best = nullptr;
    std::size_t best_count = 0;
    for (NodeRoom& room : rooms) {
      const std::size_t count = room.Count(group.bundles[next], group.bundles.size() - next);
      if (count > best_count) {
        best = &room;
        best_count = count;
      }
    }
    if (best == nullptr) {
      return std::nullopt;
    }
    for (; next < group.bundles.size(); ++next) {
      auto devices = best->Take(group.bundles[next]);
      if (!devices) {
        break;
      }
      placed.bundles.push_back({best->node().id, std::move(*devices)});
    }
  }
  return placed;
}

// Each bundle on the node that has fewest of this group, at most `per_node_max` on one.
std::optional<Placed> Spread(std::vector<NodeRoom>& rooms, const PlacementGroup& group, std::size_t per_node_max) {
  std::vector<std::size_t> used(rooms.size(), 0);
  Placed placed;
  for (const Bundle& bundle : group.bundles) {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < rooms.size(); ++i) {
      if (used[i] < per_node_max && (!best || used[i] < used[*best]) && rooms[i].Fits(bundle)) {
        best = i;
        if (used[i] == 0) {
          break;
        }
      }
    }
    if (!best) {
      return std::nullopt;
    }
    placed.bundles.push_back({rooms[*best].node().id, *rooms[*best].Take(bundle)});
    ++used[*best];
  }
  return placed;
}

std::optional<Placed> Try(const ClusterView& cluster, const PlacementGroup& group, NodeRoom::Of of) {
  std::vector<NodeRoom> rooms = Rooms(cluster, of);
  switch (group.strategy) {
    case PlacementStrategy::kPack:
      return Pack(rooms, group);
    case PlacementStrategy::kSpread:
      return Spread(rooms, group, group.bundles.size());
    case PlacementStrategy::kStrictPack:
      return StrictPack(rooms, group);
    case PlacementStrategy::kStrictSpread:
      return Spread(rooms, group, 1);
  }
  return std::nullopt;
}

std::string NameOf(const NodeView& node) {
  return node.name.empty() ? fmt::format("node {}", node.id.value) : fmt::format("node {}", node.name);
}

std::string FormatLabels(const Labels& labels) {
  std::string text;
  for (const auto& [key, value] : labels) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", key, value);
  }
  return text;
}

// "GPU: 2" alone, in the units that people read.
std::string FormatOne(std::string_view name, Amount amount) {
  if (amount.raw == 0) {
    return fmt::format("{}: 0", name);
  }
  Resources one;
  one.Set(name, amount);
  return one.ToString();
}

// The amount alone: "4", "2 GiB".
std::string FormatAmount(std::string_view name, Amount amount) {
  const std::string text = FormatOne(name, amount);
  return text.substr(name.size() + 2);
}

// " for each of 4 workers on one node": what the gang asks beyond one bundle.
std::string Gang(const PlacementGroup& group) {
  const std::size_t count = group.bundles.size();
  if (count == 1) {
    return "";
  }
  switch (group.strategy) {
    case PlacementStrategy::kStrictPack:
      return fmt::format(" for each of {} workers on one node", count);
    case PlacementStrategy::kStrictSpread:
      return fmt::format(" for each of {} workers on as many nodes", count);
    default:
      return fmt::format(" for each of {} workers", count);
  }
}

// The first resource of `want`, in name order, that `have` lacks.
std::optional<std::string> Lacking(const Resources& want, const Resources& have) {
  for (const auto& [name, amount] : want.amounts()) {
    if (have.Get(name) < amount) {
      return name;
    }
  }
  return std::nullopt;
}

std::string WhyInfeasible(const ClusterView& cluster, const PlacementGroup& group) {
  const Bundle& bundle = group.bundles.front();
  const std::string needs = fmt::format("needs {}{}", bundle.want.ToString(), Gang(group));
  if (cluster.nodes.empty()) {
    return fmt::format("{}; the cluster has no nodes", needs);
  }
  std::size_t matching = 0;
  const NodeView* closest = nullptr;
  std::string lacking;
  std::size_t capacity = 0;
  for (const NodeView& node : cluster.nodes) {
    if (!LabelsMatch(node.labels, bundle.label_selector)) {
      continue;
    }
    ++matching;
    capacity += NodeRoom(node, NodeRoom::Of::kTotal).Count(bundle, group.bundles.size());
    if (const auto lack = Lacking(bundle.want, node.total)) {
      if (closest == nullptr || node.total.Get(*lack) > closest->total.Get(lacking)) {
        closest = &node;
        lacking = *lack;
      }
    }
  }
  if (matching == 0) {
    return fmt::format("{}; no node has the labels {}", needs, FormatLabels(bundle.label_selector));
  }
  if (capacity == 0 && closest != nullptr) {
    return fmt::format("needs {}{}; the most that a node has is {} ({})", FormatOne(lacking, bundle.want.Get(lacking)),
                       Gang(group), FormatOne(lacking, closest->total.Get(lacking)), NameOf(*closest));
  }
  return fmt::format("{}; {} {} could hold {} of them when empty", needs, matching, matching == 1 ? "node" : "nodes",
                     capacity);
}

std::string WhyWaiting(const ClusterView& cluster, const PlacementGroup& group) {
  const Bundle& bundle = group.bundles.front();
  const NodeView* closest = nullptr;
  std::string lacking;
  const NodeView* fencing = nullptr;  // The first with fenced devices.
  std::size_t fenced = 0;
  std::size_t away = 0;
  std::size_t fitting = 0;
  for (const NodeView& node : cluster.nodes) {
    if (!LabelsMatch(node.labels, bundle.label_selector) || !node.total.Contains(bundle.want)) {
      continue;
    }
    if (!node.placeable) {
      ++away;
      continue;
    }
    fenced += node.gpus_fenced;
    fencing = fencing == nullptr && node.gpus_fenced > 0 ? &node : fencing;
    fitting += NodeRoom(node, NodeRoom::Of::kFree).Count(bundle, group.bundles.size());
    if (const auto lack = Lacking(bundle.want, node.free)) {
      if (closest == nullptr || (*lack == lacking && node.free.Get(lacking) > closest->free.Get(lacking))) {
        closest = &node;
        lacking = *lack;
      }
    }
  }
  std::string reason;
  if (fitting == 0 && closest != nullptr) {
    reason = fmt::format("needs {}{}; {} has {} free of {}", FormatOne(lacking, bundle.want.Get(lacking)), Gang(group),
                         NameOf(*closest), FormatOne(lacking, closest->free.Get(lacking)),
                         FormatAmount(lacking, closest->total.Get(lacking)));
  } else if (fitting == 0) {
    reason = fmt::format("needs {}{}; no node has it free", bundle.want.ToString(), Gang(group));
  } else {
    reason = fmt::format("needs {}{}; there is room for {} now", bundle.want.ToString(), Gang(group), fitting);
  }
  if (fencing != nullptr && bundle.want.Get(kGpu).raw > 0) {
    reason += fmt::format("; {} {} not lent now, see `rayctl describe --node {}`", fenced,
                          fenced == 1 ? "device is" : "devices are",
                          fencing->name.empty() ? std::to_string(fencing->id.value) : fencing->name);
  }
  if (away > 0) {
    reason += fmt::format("; {} {} not taking work", away, away == 1 ? "node is" : "nodes are");
  }
  return reason;
}

}  // namespace

Decision Place(const ClusterView& cluster, const PlacementGroup& group) {
  if (group.bundles.empty()) {
    return Placed{};
  }
  for (const Bundle& bundle : group.bundles) {
    if (!IsDeviceAmount(bundle.want.Get(kGpu))) {
      return Infeasible{
          fmt::format("needs GPU: {}; a share of GPUs is a whole number or below 1", bundle.want.Get(kGpu).ToString())};
    }
  }
  if (auto placed = Try(cluster, group, NodeRoom::Of::kFree)) {
    return *std::move(placed);
  }
  if (Try(cluster, group, NodeRoom::Of::kTotal)) {
    return Waiting{WhyWaiting(cluster, group)};
  }
  return Infeasible{WhyInfeasible(cluster, group)};
}

}  // namespace rayctl::scheduler
