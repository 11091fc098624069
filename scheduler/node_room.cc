#include "scheduler/node_room.h"

#include <algorithm>

namespace rayctl::scheduler {

std::optional<std::vector<DeviceShare>> ChooseDevices(const std::vector<Amount>& gpu_free, Amount gpus) {
  std::vector<DeviceShare> shares;
  if (gpus.raw == 0) {
    return shares;
  }
  const Amount whole = Amount::Units(1);
  if (gpus < whole) {
    std::optional<std::uint32_t> best;
    for (std::uint32_t i = 0; i < gpu_free.size(); ++i) {
      if (gpu_free[i] >= gpus && (!best || gpu_free[i] < gpu_free[*best])) {
        best = i;
      }
    }
    if (!best) {
      return std::nullopt;
    }
    shares.push_back({*best, gpus});
    return shares;
  }
  const auto count = static_cast<std::size_t>(gpus.raw / Amount::kUnit);
  for (std::uint32_t i = 0; i < gpu_free.size() && shares.size() < count; ++i) {
    if (gpu_free[i] >= whole) {
      shares.push_back({i, whole});
    }
  }
  if (shares.size() < count) {
    return std::nullopt;
  }
  return shares;
}

bool IsDeviceAmount(Amount gpus) { return gpus.IsWhole() || gpus < Amount::Units(1); }

bool LabelsMatch(const Labels& labels, const Labels& selector) {
  return std::all_of(selector.begin(), selector.end(), [&](const auto& wanted) {
    const auto found = labels.find(wanted.first);
    return found != labels.end() && found->second == wanted.second;
  });
}

NodeRoom::NodeRoom(const NodeView& node, Of of)
    : node_(&node), free_(of == Of::kFree ? &node.free : &node.total), of_(of) {
  if (of == Of::kTotal) {
    whole_devices_.assign(node.gpu_free.size(), Amount::Units(1));
  }
}

const std::vector<Amount>& NodeRoom::gpu_free() const {
  if (taken_) {
    return taken_->gpu_free;
  }
  return of_ == Of::kFree ? node_->gpu_free : whole_devices_;
}

bool NodeRoom::Fits(const Bundle& bundle) const {
  return LabelsMatch(node_->labels, bundle.label_selector) && free().Contains(bundle.want) &&
         ChooseDevices(gpu_free(), bundle.want.Get(kGpu)).has_value();
}

std::optional<std::vector<DeviceShare>> NodeRoom::Take(const Bundle& bundle) {
  if (!LabelsMatch(node_->labels, bundle.label_selector) || !free().Contains(bundle.want)) {
    return std::nullopt;
  }
  auto shares = ChooseDevices(gpu_free(), bundle.want.Get(kGpu));
  if (!shares) {
    return std::nullopt;
  }
  if (!taken_) {
    taken_ = Taken{*free_, gpu_free()};
  }
  taken_->free.Subtract(bundle.want);
  for (const DeviceShare& share : *shares) {
    taken_->gpu_free[share.index] -= share.share;
  }
  return shares;
}

std::size_t NodeRoom::Count(const Bundle& bundle, std::size_t most) const {
  NodeRoom trial = *this;
  std::size_t count = 0;
  while (count < most && trial.Take(bundle)) {
    ++count;
  }
  return count;
}

}  // namespace rayctl::scheduler
