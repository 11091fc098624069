#include <catch2/catch.hpp>

#include "scheduler/place.h"

namespace rayctl::scheduler {
namespace {

struct Shape {
  std::int64_t cpus = 0;
  std::int64_t gpus = 0;
  Labels labels;
};

class Cluster {
 public:
  Cluster& Node(const std::string& name, const Shape& shape) {
    NodeView node;
    node.id = NodeId{view_.nodes.size() + 1};
    node.name = name;
    node.labels = shape.labels;
    node.total.Set(kCpu, Amount::Units(shape.cpus));
    node.total.Set(kGpu, Amount::Units(shape.gpus));
    node.free = node.total;
    node.gpu_free.assign(static_cast<std::size_t>(shape.gpus), Amount::Units(1));
    view_.nodes.push_back(node);
    return *this;
  }
  // Of the node added last.
  Cluster& Used(const Resources& used, const std::vector<Amount>& gpu_free) {
    view_.nodes.back().free.Subtract(used);
    if (!gpu_free.empty()) {
      view_.nodes.back().gpu_free = gpu_free;
    }
    return *this;
  }
  Cluster& Away() {
    view_.nodes.back().placeable = false;
    return *this;
  }
  const ClusterView& View() const { return view_; }

 private:
  ClusterView view_;
};

PlacementGroup Group(PlacementStrategy strategy, std::size_t count, const Resources& want, const Labels& labels = {}) {
  PlacementGroup group;
  group.strategy = strategy;
  group.bundles.assign(count, {want, labels});
  return group;
}
Resources Cpus(std::int64_t cpus) { return {{"CPU", Amount::Units(cpus)}}; }
Resources Gpus(double gpus) { return {{"GPU", *Amount::FromDouble(gpus)}}; }

// The node ids of the bundles, or "waiting: …" and "infeasible: …".
std::string Outcome(const ClusterView& view, const PlacementGroup& group) {
  const Decision decision = Place(view, group);
  if (const auto* waiting = std::get_if<Waiting>(&decision)) {
    return "waiting: " + waiting->reason;
  }
  if (const auto* infeasible = std::get_if<Infeasible>(&decision)) {
    return "infeasible: " + infeasible->reason;
  }
  std::string text;
  for (const BundlePlacement& bundle : std::get<Placed>(decision).bundles) {
    text += (text.empty() ? "" : " ") + std::to_string(bundle.node.value);
  }
  return text;
}
std::vector<std::uint32_t> DevicesOf(const Decision& decision, std::size_t bundle) {
  std::vector<std::uint32_t> devices;
  for (const DeviceShare& share : std::get<Placed>(decision).bundles.at(bundle).devices) {
    devices.push_back(share.index);
  }
  return devices;
}

constexpr auto kPack = PlacementStrategy::kPack;
constexpr auto kSpread = PlacementStrategy::kSpread;
constexpr auto kStrictPack = PlacementStrategy::kStrictPack;
constexpr auto kStrictSpread = PlacementStrategy::kStrictSpread;

TEST_CASE("strategies choose nodes", "[scheduler]") {
  const Cluster three = Cluster().Node("a", {.cpus = 2}).Node("b", {.cpus = 4}).Node("c", {.cpus = 3});
  CHECK(Outcome(three.View(), Group(kPack, 2, Cpus(1))) == "1 1");
  CHECK(Outcome(three.View(), Group(kPack, 4, Cpus(1))) == "2 2 2 2");
  CHECK(Outcome(three.View(), Group(kPack, 6, Cpus(1))) == "2 2 2 2 1 1");  // Both hold the rest: id order.
  CHECK(Outcome(three.View(), Group(kPack, 9, Cpus(1))) == "2 2 2 2 3 3 3 1 1");
  CHECK(Outcome(three.View(), Group(kSpread, 2, Cpus(1))) == "1 2");
  CHECK(Outcome(three.View(), Group(kSpread, 5, Cpus(1))) == "1 2 3 1 2");
  CHECK(Outcome(three.View(), Group(kSpread, 9, Cpus(1))) == "1 2 3 1 2 3 2 3 2");
  CHECK(Outcome(three.View(), Group(kStrictPack, 3, Cpus(1))) == "2 2 2");
  CHECK(Outcome(three.View(), Group(kStrictSpread, 3, Cpus(1))) == "1 2 3");
  CHECK(Outcome(three.View(), Group(kStrictSpread, 2, Cpus(3))) == "2 3");
  CHECK(Outcome(three.View(), Group(kPack, 0, Cpus(1))).empty());
}

TEST_CASE("strict spread is infeasible with fewer GPU nodes than bundles", "[scheduler]") {
  const Cluster cluster = Cluster().Node("a", {.gpus = 4}).Node("b", {.cpus = 8});
  CHECK(Outcome(cluster.View(), Group(kStrictSpread, 2, Gpus(1))) ==
        "infeasible: needs GPU: 1 for each of 2 workers on as many nodes; 2 nodes could hold 2 of them when empty");
}

TEST_CASE("whole devices go lowest first, shares to the fullest device with room", "[scheduler]") {
  const Amount none;
  const Amount whole = Amount::Units(1);
  const Amount half{5'000};
  const Cluster cluster = Cluster().Node("a", {.gpus = 5}).Used(Gpus(2), {none, whole, half, whole, half});
  CHECK(DevicesOf(Place(cluster.View(), Group(kPack, 1, Gpus(2))), 0) == std::vector<std::uint32_t>{1, 3});
  CHECK(DevicesOf(Place(cluster.View(), Group(kPack, 1, Gpus(0.5))), 0) == std::vector<std::uint32_t>{2});
  const Decision three = Place(cluster.View(), Group(kPack, 3, Gpus(0.5)));
  CHECK(DevicesOf(three, 0) == std::vector<std::uint32_t>{2});
  CHECK(DevicesOf(three, 1) == std::vector<std::uint32_t>{4});
  CHECK(DevicesOf(three, 2) == std::vector<std::uint32_t>{1});
  CHECK(DevicesOf(Place(cluster.View(), Group(kPack, 1, Gpus(0.6))), 0) == std::vector<std::uint32_t>{1});
  // Three units are free by the sum, but not on three devices.
  CHECK(Outcome(cluster.View(), Group(kPack, 1, Gpus(3))).rfind("waiting: ", 0) == 0);
  CHECK(Outcome(cluster.View(), Group(kPack, 1, Gpus(1.5))) ==
        "infeasible: needs GPU: 1.5; a share of GPUs is a whole number or below 1");
}

TEST_CASE("labels select nodes", "[scheduler]") {
  const Cluster cluster =
      Cluster().Node("a", {.cpus = 4}).Node("b", {.cpus = 4, .labels = {{"rack", "r1"}, {"zone", "z"}}});
  CHECK(Outcome(cluster.View(), Group(kPack, 1, Cpus(1), {{"rack", "r1"}})) == "2");
  CHECK(Outcome(cluster.View(), Group(kPack, 1, Cpus(1), {{"rack", "r2"}})) ==
        "infeasible: needs CPU: 1; no node has the labels rack=r2");
}

TEST_CASE("reasons say what is missing where", "[scheduler]") {
  CHECK(Outcome(Cluster().View(), Group(kPack, 1, Cpus(1))) == "infeasible: needs CPU: 1; the cluster has no nodes");
  const Amount none;
  const Cluster busy = Cluster().Node("a", {.gpus = 4}).Used(Gpus(4), {none, none, none, none});
  CHECK(Outcome(busy.View(), Group(kPack, 1, Gpus(2))) == "waiting: needs GPU: 2; node a has GPU: 0 free of 4");
  CHECK(Outcome(busy.View(), Group(kPack, 1, Gpus(8))) ==
        "infeasible: needs GPU: 8; the most that a node has is GPU: 4 (node a)");
  const Cluster half = Cluster().Node("a", {.cpus = 4}).Used(Cpus(2), {}).Node("b", {.cpus = 4}).Away();
  CHECK(Outcome(half.View(), Group(kPack, 4, Cpus(1))) ==
        "waiting: needs CPU: 1 for each of 4 workers; there is room for 2 now; 1 node is not taking work");
  CHECK(Outcome(half.View(), Group(kPack, 2, Cpus(1))) == "1 1");
}

}  // namespace
}  // namespace rayctl::scheduler
