#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "daemon/agent/agent.h"
#include "daemon/link/messages.h"

namespace rayctl::agent {

// Which devices of this node may be lent, and why others may not. A device is looked at after the end of every rank
// that held it, before it may be lent again; all are looked at from time to time. Part of Agent. Agent loop only.
class DeviceTable {
 public:
  // Which living ranks hold a device, and with what share. A rank with no entry may hold any.
  struct Lease {
    link::RankKey rank;
    std::vector<scheduler::DeviceShare> devices;
    bool known = true;
  };

  DeviceTable(std::vector<link::Device> devices, DeviceTimes times);

  // Nobody looks before this.
  void Begin(Now now);
  // A rank that held these has ended; nullopt: it is not known which it held.
  void RankEnded(const std::optional<std::vector<scheduler::DeviceShare>>& devices, Now now);
  // The answer to look number `look`.
  void Looked(std::uint64_t look, const std::vector<DeviceFacts>& facts, const std::vector<Lease>& leases, Now now);
  void Tick(Now now);
  std::optional<SteadyTime> NextDeadline() const;
  // A look that is to be made now; its answer ends it, and until then there is no other.
  std::optional<std::uint64_t> TakeLook(Now now);

  // As they stand, problems included.
  const std::vector<link::Device>& devices() const { return devices_; }

 private:
  struct State {
    bool watched = false;          // Found, not only counted.
    std::uint64_t settled_by = 1;  // The first look that says whether it may be lent; 0: it is settled.
    std::string problem;           // As the last look said.
  };

  void Want(Now now);
  void Describe();

  const DeviceTimes times_;
  std::vector<link::Device> devices_;
  std::vector<State> states_;
  std::uint64_t looks_ = 0;             // Begun so far.
  bool looking_ = false;                // The last of them has no answer.
  bool wanted_ = false;                 // Now.
  bool late_ = false;                   // It has had none for answer_limit.
  std::optional<SteadyTime> deadline_;  // Of the next look, or of the answer.
};

}  // namespace rayctl::agent
