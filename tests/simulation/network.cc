#include "tests/simulation/network.h"

#include <algorithm>
#include <utility>

namespace rayctl::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kBreakAfterLoss = seconds(2);
constexpr Duration kConnectTimeout = seconds(20);
constexpr Duration kDuplicateDelay = milliseconds(500);
constexpr Duration kReorderDelay = milliseconds(50);

}  // namespace

StreamId Network::Connect(std::size_t host) {
  const StreamId id{next_stream_++};
  streams_[id] = {host};
  world_.queue.After(random_.Between(faults_.delay_min, faults_.delay_max), [this, id] { TryAccept(id); });
  return id;
}

void Network::TryAccept(StreamId id) {
  const auto found = streams_.find(id);
  if (found == streams_.end() || !found->second.agent_open) {
    return;
  }
  const std::size_t host = found->second.host;
  if (IsCut(host)) {
    std::vector<StreamId>& connecting = hosts_[host].connecting;
    if (std::find(connecting.begin(), connecting.end(), id) == connecting.end()) {
      connecting.push_back(id);
      world_.queue.After(kConnectTimeout, [this, id, host] {
        std::vector<StreamId>& waiting = hosts_[host].connecting;
        if (std::erase(waiting, id) > 0 && streams_.contains(id) && streams_[id].agent_open) {
          streams_[id].agent_open = false;
          DropIfOver(id);
          hosts_[host].agent->OnHeadClosed(id, absl::UnavailableError("connecting took too long"));
        }
      });
    }
    return;
  }
  if (!head_->Listening()) {
    found->second.agent_open = false;
    DropIfOver(id);
    hosts_[host].agent->OnHeadClosed(id, absl::UnavailableError("connection refused"));
    return;
  }
  found->second.head_open = true;
  Transmit(host, Way::kDown, [this, id] {
    const auto stream = streams_.find(id);
    if (stream != streams_.end() && stream->second.agent_open) {
      hosts_[stream->second.host].agent->OnHeadConnected(id);
    }
  });
}

void Network::Transmit(std::size_t host, Way way, std::function<void()> arrive, bool overtaken) {
  const int w = static_cast<int>(way);
  Host& link = hosts_[host];
  if (link.cut[w]) {
    link.held[w].push_back(std::move(arrive));
    return;
  }
  SimTime at = world_.queue.now() + random_.Between(faults_.delay_min, faults_.delay_max);
  if (overtaken) {
    at = std::max(at, link.last_arrival[w]) + random_.Between(Duration(0), kReorderDelay);
  } else {
    at = std::max(at, link.last_arrival[w]);
    link.last_arrival[w] = at;
  }
  world_.queue.After(at - world_.queue.now(), [this, host, w, arrive = std::move(arrive)]() mutable {
    if (hosts_[host].cut[w]) {
      hosts_[host].held[w].push_back(std::move(arrive));
      return;
    }
    arrive();
  });
}

template <class Deliver>
void Network::SendFaulty(StreamId id, Way way, Deliver deliver) {
  const std::size_t host = streams_[id].host;
  if (random_.Chance(faults_.lose)) {
    world_.Count("message lost");
    world_.queue.After(random_.Between(Duration(0), kBreakAfterLoss), [this, id] { Break(id); });
    return;
  }
  const bool overtaken = random_.Chance(faults_.reorder);
  if (overtaken) {
    world_.Count("message overtaken");
  }
  if (random_.Chance(faults_.duplicate)) {
    world_.Count("message doubled");
    world_.queue.After(random_.Between(Duration(0), kDuplicateDelay),
                       [this, host, way, deliver] { Transmit(host, way, deliver); });
  }
  Transmit(host, way, std::move(deliver), overtaken);
}

void Network::SendUp(StreamId id, NodeId node, link::AgentToHead message) {
  const auto found = streams_.find(id);
  if (found == streams_.end() || !found->second.agent_open) {
    return;
  }
  SendFaulty(id, Way::kUp, [this, id, node, message = std::move(message)] {
    const auto stream = streams_.find(id);
    if (stream != streams_.end() && stream->second.head_open) {
      head_->OnStreamMessage(id, node, message);
    }
  });
}

void Network::SendDown(StreamId id, link::HeadToAgent message) {
  const auto found = streams_.find(id);
  if (found == streams_.end() || !found->second.head_open) {
    return;
  }
  if (found->second.vanished) {
    TellHeadClosed(id);
    return;
  }
  SendFaulty(id, Way::kDown, [this, id, message = std::move(message)] {
    const auto stream = streams_.find(id);
    if (stream != streams_.end() && stream->second.agent_open) {
      hosts_[stream->second.host].agent->OnHeadMessage(id, message);
    }
  });
}

void Network::TellHeadClosed(StreamId id) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) {
    return;
  }
  Transmit(found->second.host, Way::kUp, [this, id] {
    const auto stream = streams_.find(id);
    if (stream != streams_.end() && stream->second.head_open) {
      stream->second.head_open = false;
      DropIfOver(id);
      head_->OnStreamClosed(id);
    }
  });
}

void Network::TellAgentClosed(StreamId id, absl::Status why) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) {
    return;
  }
  Transmit(found->second.host, Way::kDown, [this, id, why = std::move(why)] {
    const auto stream = streams_.find(id);
    if (stream != streams_.end() && stream->second.agent_open) {
      stream->second.agent_open = false;
      const std::size_t host = stream->second.host;
      DropIfOver(id);
      hosts_[host].agent->OnHeadClosed(id, why);
    }
  });
}

void Network::Break(StreamId id) {
  TellHeadClosed(id);
  TellAgentClosed(id, absl::UnavailableError("connection reset"));
}

void Network::CloseFromAgent(StreamId id) {
  const auto found = streams_.find(id);
  if (found == streams_.end() || !found->second.agent_open) {
    return;
  }
  found->second.agent_open = false;
  std::erase(hosts_[found->second.host].connecting, id);
  TellHeadClosed(id);
  DropIfOver(id);
}

void Network::CloseFromHead(StreamId id, const absl::Status& why) {
  const auto found = streams_.find(id);
  if (found == streams_.end() || !found->second.head_open) {
    return;
  }
  found->second.head_open = false;
  TellAgentClosed(id, why);
  DropIfOver(id);
}

void Network::HeadDied() {
  std::vector<StreamId> open;
  for (const auto& [id, stream] : streams_) {
    if (stream.head_open) {
      open.push_back(id);
    }
  }
  for (const StreamId id : open) {
    CloseFromHead(id, absl::UnavailableError("connection reset"));
  }
}

void Network::LosePower(std::size_t host) {
  hosts_[host].connecting.clear();
  hosts_[host].held[static_cast<int>(Way::kUp)].clear();
  std::vector<StreamId> gone;
  for (auto& [id, stream] : streams_) {
    if (stream.host == host && stream.agent_open) {
      stream.agent_open = false;
      stream.vanished = true;
      gone.push_back(id);
    }
  }
  for (const StreamId id : gone) {
    DropIfOver(id);
  }
}

void Network::SetCut(std::size_t host, Way way, bool cut) {
  const int w = static_cast<int>(way);
  Host& link = hosts_[host];
  if (link.cut[w] == cut) {
    return;
  }
  link.cut[w] = cut;
  if (cut) {
    return;
  }
  std::deque<std::function<void()>> held = std::exchange(link.held[w], {});
  for (std::function<void()>& arrive : held) {
    Transmit(host, way, std::move(arrive));
  }
  if (!IsCut(host)) {
    for (const StreamId id : std::exchange(link.connecting, {})) {
      world_.queue.After(random_.Between(faults_.delay_min, faults_.delay_max), [this, id] { TryAccept(id); });
    }
  }
}

void Network::DropIfOver(StreamId id) {
  const auto found = streams_.find(id);
  if (found != streams_.end() && !found->second.agent_open && !found->second.head_open) {
    streams_.erase(found);
  }
}

}  // namespace rayctl::sim
