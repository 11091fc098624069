#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "daemon/link/messages.h"
#include "tests/simulation/world.h"

namespace rayctl::sim {

// What the network does to the streams between agents and the head.
struct NetworkFaults {
  double duplicate = 0;  // A message arrives a second time.
  double reorder = 0;    // A message is overtaken by the next ones.
  double lose = 0;       // A message is gone; its stream breaks within kBreakAfterLoss.
  Duration delay_min = std::chrono::microseconds(100);
  Duration delay_max = std::chrono::milliseconds(2);
};

enum class Way { kUp = 0, kDown = 1 };  // Up: from the agent to the head.

// The head's side of the network.
class HeadEnd {
 public:
  virtual ~HeadEnd() = default;
  virtual bool Listening() const = 0;
  virtual void OnStreamMessage(StreamId stream, NodeId node, link::AgentToHead message) = 0;
  virtual void OnStreamClosed(StreamId stream) = 0;
};
// One host's side.
class AgentEnd {
 public:
  virtual ~AgentEnd() = default;
  virtual void OnHeadConnected(StreamId stream) = 0;
  virtual void OnHeadMessage(StreamId stream, link::HeadToAgent message) = 0;
  virtual void OnHeadClosed(StreamId stream, absl::Status why) = 0;
};

// Streams as TCP makes them, and worse. A cut holds everything back until it heals, ends of streams too; a machine that
// loses power says nothing. Duplicates, reordering and loss come on top, since both ends number their messages.
class Network {
 public:
  Network(World& world, NetworkFaults faults) : world_(world), random_(world.random.Fork()), faults_(faults) {}
  void SetHead(HeadEnd* head) { head_ = head; }
  void AddHost(AgentEnd* agent) { hosts_.push_back({agent}); }
  void SetFaults(const NetworkFaults& faults) { faults_ = faults; }

  // Answered by OnHeadConnected or OnHeadClosed.
  StreamId Connect(std::size_t host);
  void SendUp(StreamId stream, NodeId node, link::AgentToHead message);
  void SendDown(StreamId stream, link::HeadToAgent message);
  void CloseFromAgent(StreamId stream);  // Also what the kernel does when the agent dies.
  void CloseFromHead(StreamId stream, const absl::Status& why);
  void HeadDied();
  void LosePower(std::size_t host);  // Its streams end without a word.

  void SetCut(std::size_t host, Way way, bool cut);
  bool IsCut(std::size_t host) const { return hosts_[host].cut[0] || hosts_[host].cut[1]; }

 private:
  struct Host {
    AgentEnd* agent = nullptr;
    bool cut[2] = {false, false};
    std::deque<std::function<void()>> held[2];
    SimTime last_arrival[2] = {SimTime(0), SimTime(0)};
    std::vector<StreamId> connecting;  // Waits for a cut to heal.
  };
  struct Stream {
    std::size_t host = 0;
    bool agent_open = true;
    bool head_open = false;
    bool vanished = false;  // Its host lost power: the head's next message gets a reset.
  };

  void TryAccept(StreamId id);
  // Lets `arrive` happen at the other end: in order unless `overtaken`.
  void Transmit(std::size_t host, Way way, std::function<void()> arrive, bool overtaken = false);
  template <class Deliver>
  void SendFaulty(StreamId id, Way way, Deliver deliver);
  void Break(StreamId id);
  void TellAgentClosed(StreamId id, absl::Status why);
  void TellHeadClosed(StreamId id);
  void DropIfOver(StreamId id);

  World& world_;
  Random random_;
  NetworkFaults faults_;
  HeadEnd* head_ = nullptr;
  std::vector<Host> hosts_;
  std::map<StreamId, Stream> streams_;
  std::uint64_t next_stream_ = 1;
};

}  // namespace rayctl::sim
