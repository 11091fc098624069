#include "daemon/agent/device_table.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"

namespace rayctl::agent {
namespace {

// Whether a living rank of ours is known to use the device, so that a process of it is where it belongs.
bool MayHold(const DeviceTable::Lease& lease, std::uint32_t index) {
  return !lease.known || std::any_of(lease.devices.begin(), lease.devices.end(),
                                     [index](const scheduler::DeviceShare& share) { return share.index == index; });
}

std::string WhoHolds(const DeviceHolder& holder) {
  if (holder.pid == 0) {
    return "its memory is in use by a process that cannot be seen from here";
  }
  std::string who = fmt::format("held by process {}", holder.pid);
  if (!holder.name.empty()) {
    who += fmt::format(" ({})", holder.name);
  }
  if (holder.rank) {
    who += fmt::format(", left over from rank {} of job {}", holder.rank->rank, holder.rank->job.value);
  }
  return who;
}

}  // namespace

DeviceTable::DeviceTable(std::vector<link::Device> devices, DeviceTimes times)
    : times_(times), devices_(std::move(devices)), states_(devices_.size()) {
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    states_[i].watched = !devices_[i].vendor.empty();
    states_[i].settled_by = states_[i].watched ? 1 : 0;
  }
  Describe();
}

void DeviceTable::Begin(Now now) { Want(now); }

void DeviceTable::Want(Now now) {
  if (std::none_of(states_.begin(), states_.end(), [](const State& state) { return state.watched; })) {
    return;
  }
  wanted_ = true;
  if (!looking_) {
    deadline_ = now.steady;
  }
}

void DeviceTable::RankEnded(const std::optional<std::vector<scheduler::DeviceShare>>& devices, Now now) {
  bool any = false;
  const auto unsettle = [&](std::uint32_t index) {
    if (index < states_.size() && states_[index].watched) {
      states_[index].settled_by = looks_ + 1;  // One on its way may have looked too early.
      any = true;
    }
  };
  if (devices) {
    for (const scheduler::DeviceShare& share : *devices) {
      unsettle(share.index);
    }
  } else {
    for (std::uint32_t i = 0; i < states_.size(); ++i) {
      unsettle(i);
    }
  }
  if (any) {
    Want(now);
    Describe();
  }
}

void DeviceTable::Looked(std::uint64_t look, const std::vector<DeviceFacts>& facts, const std::vector<Lease>& leases,
                         Now now) {
  if (!looking_ || look != looks_ || facts.size() != states_.size()) {
    return;
  }
  looking_ = false;
  late_ = false;
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    State& state = states_[i];
    if (!state.watched) {
      continue;
    }
    if (state.settled_by <= look) {
      state.settled_by = 0;
    }
    Amount lent;
    for (const Lease& lease : leases) {
      for (const scheduler::DeviceShare& share : lease.devices) {
        lent += share.index == i ? share.share : Amount{};
      }
    }
    state.problem = facts[i].problem;
    for (const DeviceHolder& holder : facts[i].holders) {
      const auto lease = std::find_if(leases.begin(), leases.end(), [&holder, i](const Lease& each) {
        return holder.rank == each.rank && MayHold(each, i);
      });
      // A whole lease is its rank's own, whatever runs on it; nobody else gets it before it ends. Memory in use says
      // nothing while there is a rank that may use it.
      const bool belongs = lease != leases.end() || lent >= Amount::Units(1) ||
                           (holder.pid == 0 && std::any_of(leases.begin(), leases.end(),
                                                           [i](const Lease& each) { return MayHold(each, i); }));
      if (!belongs && state.problem.empty()) {
        state.problem = WhoHolds(holder);
      }
    }
  }
  Describe();
  const bool fenced =
      std::any_of(devices_.begin(), devices_.end(), [](const link::Device& device) { return !device.problem.empty(); });
  deadline_ = now.steady + (fenced ? times_.fenced_interval : times_.idle_interval);
  if (wanted_) {
    deadline_ = now.steady;
  }
}

void DeviceTable::Tick(Now now) {
  if (!deadline_ || now.steady < *deadline_) {
    return;
  }
  if (looking_) {
    late_ = true;
    deadline_.reset();  // Only its answer goes on.
    Describe();
    return;
  }
  wanted_ = true;
}

std::optional<SteadyTime> DeviceTable::NextDeadline() const { return deadline_; }

std::optional<std::uint64_t> DeviceTable::TakeLook(Now now) {
  if (!wanted_ || looking_) {
    return std::nullopt;
  }
  wanted_ = false;
  looking_ = true;
  deadline_ = now.steady + times_.answer_limit;
  return ++looks_;
}

void DeviceTable::Describe() {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const State& state = states_[i];
    if (state.settled_by == 0 || !state.problem.empty()) {
      devices_[i].problem = state.problem;
    } else {
      devices_[i].problem = late_ ? "its driver does not answer, so nobody knows what holds it"
                                  : "it is being looked for what still holds it";
    }
  }
}

}  // namespace rayctl::agent
