#include <algorithm>
#include <utility>

#include "worker/shim/shim_impl.h"

namespace rayctl::shim {

void Shim::Impl::Barrier(RankState& rank, const local::RankBarrier& barrier) {
  if (barrier.number() <= AttemptOf(rank).barrier_released) {
    local::ShimReply reply;
    reply.mutable_barrier_done()->set_number(barrier.number());
    return Reply(rank, std::move(reply));
  }
  rank.barrier_entered = barrier.number();
  local::ShimToAgent entered;
  entered.mutable_barrier_entered()->set_number(barrier.number());
  Say(rank, std::move(entered));
}

void Shim::Impl::ReleaseBarrier(const local::RankId& id, const local::ReleaseBarrier& release) {
  AttemptState& attempt = attempts_[{id.group(), id.attempt()}];
  attempt.barrier_released = std::max(attempt.barrier_released, release.number());
  for (RankState* rank : LiveRanks(id.group(), id.attempt())) {
    if (rank->barrier_entered != 0 && rank->barrier_entered <= attempt.barrier_released) {
      local::ShimReply reply;
      reply.mutable_barrier_done()->set_number(std::exchange(rank->barrier_entered, 0));
      Reply(*rank, std::move(reply));
    }
  }
}

void Shim::Impl::Broadcast(RankState& rank, const local::RankBroadcast& broadcast) {
  const AttemptState& attempt = AttemptOf(rank);
  local::RankId id;
  id.set_job_id(config_.job.value);
  id.set_group(rank.current.group);
  id.set_attempt(rank.current.attempt);
  id.set_rank(rank.current.rank);
  if (broadcast.payload().size() > kBroadcastBytesMax) {
    return Refuse(rank.home, id, local::REFUSAL_CODE_TOO_LARGE,
                  "a broadcast of " + std::to_string(broadcast.payload().size()) + " bytes; at most " +
                      std::to_string(kBroadcastBytesMax) + " are taken");
  }
  if (const auto done = attempt.broadcasts.find(broadcast.number()); done != attempt.broadcasts.end()) {
    local::ShimReply reply;
    reply.mutable_broadcast_done()->set_number(broadcast.number());
    reply.mutable_broadcast_done()->set_payload(done->second);
    rank.broadcast_taken = std::max(rank.broadcast_taken, broadcast.number());
    return Reply(rank, std::move(reply));
  }
  if (!attempt.broadcasts.empty() && broadcast.number() < attempt.broadcasts.begin()->first) {
    return Refuse(rank.home, id, local::REFUSAL_CODE_BAD_MESSAGE,
                  "broadcast " + std::to_string(broadcast.number()) + " is long over");
  }
  rank.broadcast_waiting = broadcast.number();
  if (broadcast.root() == rank.current.rank) {
    rank.broadcast_given = broadcast;
    local::ShimToAgent given;
    given.mutable_broadcast_given()->set_number(broadcast.number());
    given.mutable_broadcast_given()->set_payload(broadcast.payload());
    Say(rank, std::move(given));
  }
}

void Shim::Impl::Deliver(const local::RankId& id, const local::DeliverBroadcast& deliver) {
  AttemptState& attempt = attempts_[{id.group(), id.attempt()}];
  attempt.broadcasts.emplace(deliver.number(), deliver.payload());
  for (RankState* rank : LiveRanks(id.group(), id.attempt())) {
    if (rank->broadcast_given && rank->broadcast_given->number() == deliver.number()) {
      rank->broadcast_given.reset();
    }
    if (rank->broadcast_waiting != deliver.number()) {
      continue;
    }
    rank->broadcast_waiting = 0;
    rank->broadcast_taken = std::max(rank->broadcast_taken, deliver.number());
    local::ShimReply reply;
    reply.mutable_broadcast_done()->set_number(deliver.number());
    reply.mutable_broadcast_done()->set_payload(deliver.payload());
    Reply(*rank, std::move(reply));
  }
  ForgetBroadcasts({id.group(), id.attempt()});
}

void Shim::Impl::ForgetBroadcasts(const AttemptKey& key) {
  const auto found = attempts_.find(key);
  if (found == attempts_.end()) {
    return;
  }
  std::map<std::uint64_t, std::string>& kept = found->second.broadcasts;
  const std::vector<RankState*> live = LiveRanks(key.first, key.second);
  std::uint64_t taken_by_all = 0;
  if (!live.empty()) {
    taken_by_all = (*std::min_element(live.begin(), live.end(), [](const RankState* a, const RankState* b) {
                     return a->broadcast_taken < b->broadcast_taken;
                   }))->broadcast_taken;
  } else if (!kept.empty()) {
    taken_by_all = kept.rbegin()->first;
  }
  // The newest stays for a rank that lost its connection before the answer and asks again.
  while (kept.size() > 1 && (kept.begin()->first <= taken_by_all || kept.size() > kBroadcastsKept)) {
    kept.erase(kept.begin());
  }
}

void Shim::Impl::Failure(RankState& rank, const local::RankFailure& failure) {
  rank.peer_lost = rank.peer_lost || failure.peer_lost();
  if (std::exchange(rank.failed, true)) {
    return;  // The first is the cause; a repeat is harmless.
  }
  local::ShimToAgent message;
  *message.mutable_failed()->mutable_failure() = failure;
  Emit(rank, std::move(message));
}

void Shim::Impl::Notify(const local::RankId& id, const local::NotifyRanks& notify) {
  for (RankState* rank : LiveRanks(id.group(), id.attempt())) {
    const auto& wanted = notify.ranks();
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), rank->current.rank) == wanted.end()) {
      continue;
    }
    if (notify.notice().has_next_attempt()) {
      rank->offer = notify.notice().next_attempt();
    }
    Notice(*rank, notify.notice());
  }
}

}  // namespace rayctl::shim
