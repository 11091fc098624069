#pragma once

#include <optional>
#include <vector>

#include "scheduler/place.h"

namespace rayctl::scheduler {

// Which of a node's devices `gpus` would take, given what is free of each: whole devices for a whole number, lowest
// index first; for a fraction below one a share of the fullest device that still has room. nullopt: no room.
std::optional<std::vector<DeviceShare>> ChooseDevices(const std::vector<Amount>& gpu_free, Amount gpus);

// Whether `gpus` is an amount that devices can give at all: whole, or below one.
bool IsDeviceAmount(Amount gpus);

bool LabelsMatch(const Labels& labels, const Labels& selector);

// What is left of a node while one placement is being tried. Refers to the view, which must outlive it; copies only
// once something is taken.
class NodeRoom {
 public:
  enum class Of { kFree, kTotal };

  NodeRoom(const NodeView& node, Of of);

  const NodeView& node() const { return *node_; }
  bool Fits(const Bundle& bundle) const;
  // Takes the bundle and says which devices; nullopt: it does not fit, and nothing was taken.
  std::optional<std::vector<DeviceShare>> Take(const Bundle& bundle);
  // How many bundles like this one fit beside what was taken, at most `most`.
  std::size_t Count(const Bundle& bundle, std::size_t most) const;

 private:
  const Resources& free() const { return taken_ ? taken_->free : *free_; }
  const std::vector<Amount>& gpu_free() const;

  struct Taken {
    Resources free;
    std::vector<Amount> gpu_free;
  };
  const NodeView* node_;
  const Resources* free_;
  Of of_;
  std::vector<Amount> whole_devices_;  // Of::kTotal only.
  std::optional<Taken> taken_;
};

}  // namespace rayctl::scheduler
