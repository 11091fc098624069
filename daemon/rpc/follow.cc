#include "daemon/rpc/follow.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/states.h"
#include "daemon/rpc/follow_request.h"
#include "daemon/rpc/translate.h"
#include "daemon/rpc/views.h"
#include "fmt/format.h"

namespace rayctl::rpc {

namespace v1 = ::rayctl::v1;

// ---- The relay.

// An agent may still be ending a transfer that an earlier head numbered.
OutputRelay::OutputRelay(HeadLoop& loop, Duration transfer_patience)
    : loop_(loop),
      transfer_patience_(transfer_patience),
      last_transfer_(static_cast<std::uint64_t>(loop.clock().Read().wall.time_since_epoch().count())) {}

void OutputRelay::OnNodeConnected(NodeId node) {
  connected_.insert(node);
  for (const std::shared_ptr<FollowSession>& session : Sessions()) {
    session->OnNodeBack(node);
  }
}

void OutputRelay::OnNodeDisconnected(NodeId node) {
  connected_.erase(node);
  for (const std::shared_ptr<FollowSession>& session : Sessions()) {
    session->OnNodeGone(node);
  }
}

absl::Status OutputRelay::Attach(TransferId id, NodeId node, std::shared_ptr<OutputSource> source) {
  const std::shared_ptr<FollowSession> session = Find(id);
  if (session == nullptr) {
    return absl::NotFoundError(fmt::format("nobody waits for transfer {}", id.value));
  }
  const FollowSession::Transfer& transfer = session->transfers_.at(id);
  if (transfer.node != node || transfer.source != nullptr) {
    return absl::NotFoundError(fmt::format("transfer {} is not this node's, or is under way", id.value));
  }
  session->Attach(id, std::move(source));
  return absl::OkStatus();
}

void OutputRelay::OnData(TransferId id, v1::SendOutputRequest message) {
  if (const std::shared_ptr<FollowSession> session = Find(id)) {
    session->OnData(id, std::move(message));
  }
}

void OutputRelay::OnSourceEnd(TransferId id, bool complete) {
  if (const std::shared_ptr<FollowSession> session = Find(id)) {
    session->OnSourceEnd(id, complete);
  }
}

TransferId OutputRelay::OpenTransfer(FollowSession& session, const link::OpenOutput& what, NodeId node) {
  link::OpenOutput open = what;
  open.transfer = TransferId{++last_transfer_};
  transfers_.emplace(open.transfer, session.weak_from_this());
  const TransferId id = open.transfer;
  loop_.Deliver(head::RelayOutput{node, std::move(open)});
  return id;
}

void OutputRelay::CloseTransfer(TransferId id, NodeId node) {
  if (transfers_.erase(id) != 0 && Connected(node)) {
    loop_.Deliver(head::RelayOutput{node, link::CloseOutput{id}});
  }
}

std::vector<std::shared_ptr<FollowSession>> OutputRelay::Sessions() const {
  std::vector<std::shared_ptr<FollowSession>> sessions;
  for (FollowSession* const session : sessions_) {
    sessions.push_back(session->shared_from_this());
  }
  return sessions;
}

std::shared_ptr<FollowSession> OutputRelay::Find(TransferId id) const {
  const auto found = transfers_.find(id);
  return found == transfers_.end() ? nullptr : found->second.lock();
}

// ---- One session.

FollowSession::FollowSession(OutputRelay& relay, FollowOptions options, FollowSink& sink)
    : relay_(relay),
      options_(std::move(options)),
      sink_(&sink),
      positions_(options_.resume),
      patience_(relay.loop_.io()) {}

void FollowSession::Start() {
  relay_.sessions_.insert(this);
  const head::JobRecord* const job = relay_.loop_.head().FindJob(options_.job);
  was_final_ = job != nullptr && IsFinal(job->state);
  if (!options_.follow && !options_.no_output && job != nullptr && job->attempt.ranks.empty()) {
    Remark(fmt::format("job {} has not started, so it has no output", options_.job.value));
  }
  watch_ = relay_.loop_.WatchJob(options_.job, [weak = weak_from_this()] {
    if (const std::shared_ptr<FollowSession> self = weak.lock()) {
      self->OnJobChanged();
    }
  });
  OnJobChanged();
}

void FollowSession::OnJobChanged() {
  if (const head::JobRecord* const job = relay_.loop_.head().FindJob(options_.job)) {
    const std::tuple now{job->state, job->attempt.number, job->reason};
    job_dirty_ = job_dirty_ || seen_ != now;
    seen_ = now;
    if (!options_.no_output) {
      OpenAttempts(*job);
    }
  }
  Pump();
}

void FollowSession::OpenAttempts(const head::JobRecord& job) {
  const AttemptNumber current = job.attempt.number;
  if (!opened_) {
    const AttemptNumber first = std::min(options_.attempt.value_or(current), current);
    const AttemptNumber end = options_.follow ? current : std::min(first + 1, current);
    for (AttemptNumber attempt = first; attempt < end; ++attempt) {
      OpenOlderAttempt(job, attempt);
      opened_ = attempt;
    }
    if (!options_.follow && first < current) {
      return;
    }
  }
  if ((!opened_ || *opened_ < current) && (options_.follow || options_.attempt.value_or(current) >= current) &&
      !job.attempt.ranks.empty()) {
    OpenCurrentAttempt(job);
    opened_ = current;
  }
}

void FollowSession::OpenCurrentAttempt(const head::JobRecord& job) {
  std::map<NodeId, std::vector<Rank>> ranks_of;
  for (Rank rank = 0; rank < job.attempt.ranks.size(); ++rank) {
    const NodeId node = job.attempt.ranks[rank].node;
    if (options_.WantsRank(rank) && options_.WantsNode(node)) {
      ranks_of[node].push_back(rank);
    }
  }
  Asked& asked = asked_[job.attempt.number];
  for (auto& [node, ranks] : ranks_of) {
    asked.wanted.insert(ranks.begin(), ranks.end());
    Open({.node = node, .attempt = job.attempt.number, .ranks = std::move(ranks), .follow = options_.follow});
  }
}

// Where its ranks were is forgotten, so every node is asked; those that had none have nothing to send.
void FollowSession::OpenOlderAttempt(const head::JobRecord& job, AttemptNumber attempt) {
  std::vector<Rank> ranks = options_.ranks;
  if (ranks.empty()) {
    const std::size_t count = std::max<std::size_t>(job.attempt.ranks.size(), job.spec.num_workers_max);
    for (Rank rank = 0; rank < count; ++rank) {
      ranks.push_back(rank);
    }
  }
  Asked& asked = asked_[attempt];
  asked.wanted.insert(ranks.begin(), ranks.end());
  for (const NodeId node : relay_.connected_) {
    if (options_.WantsNode(node)) {
      Open({.node = node, .attempt = attempt, .ranks = ranks, .follow = false});
    }
  }
}

void FollowSession::Open(Transfer transfer) {
  if (!relay_.Connected(transfer.node)) {
    Lose(std::move(transfer));
    return;
  }
  link::OpenOutput open{.job = options_.job,
                        .attempt = transfer.attempt,
                        .ranks = transfer.ranks,
                        .follow = transfer.follow,
                        .by_time = !options_.follow && asked_[transfer.attempt].wanted.size() > 1,
                        .since = options_.since,
                        .grep = options_.grep,
                        .streams = options_.streams};
  for (const Rank rank : transfer.ranks) {
    for (const OutputStream stream : {OutputStream::kStdout, OutputStream::kStderr}) {
      const auto position = positions_.find({transfer.attempt, rank, stream});
      if (position != positions_.end()) {
        open.resume.push_back({rank, stream, position->second});
      }
    }
  }
  const NodeId node = transfer.node;
  transfer.source = nullptr;
  transfer.held.reset();
  transfer.without_log.clear();
  transfer.due = relay_.loop_.clock().Read().steady + relay_.transfer_patience_;
  transfers_.emplace(relay_.OpenTransfer(*this, open, node), std::move(transfer));
  ArmPatience();
}

// The node is connected, and yet what was asked of it did not come, or not whole.
void FollowSession::AskAgain(Transfer transfer) {
  if (transfer.tries == kTransferTriesMax) {
    Remark(fmt::format("node {} does not send its output{}", relay_.loop_.head().NodeName(transfer.node),
                       options_.follow ? "; it is asked again and again" : "; what is missing here may be there"));
    if (!options_.follow) {
      asked_[transfer.attempt].missed = true;
      return;
    }
  }
  ++transfer.tries;
  Open(std::move(transfer));
}

void FollowSession::ArmPatience() {
  std::optional<SteadyTime> next;
  const auto consider = [&next](const std::optional<SteadyTime>& due) {
    next = next && due ? std::min(*next, *due) : (due ? due : next);
  };
  for (const auto& [id, transfer] : transfers_) {
    consider(transfer.due);
  }
  for (const Transfer& transfer : away_) {
    consider(transfer.due);
  }
  if (!next) {
    patience_.cancel();
    return;
  }
  patience_.expires_after(std::max(Duration(0), *next - relay_.loop_.clock().Read().steady));
  patience_.async_wait([weak = weak_from_this()](boost::system::error_code error) {
    const std::shared_ptr<FollowSession> self = weak.lock();
    if (!error && self != nullptr) {
      self->OnPatienceOver();
    }
  });
}

void FollowSession::OnPatienceOver() {
  if (sink_ == nullptr) {
    return;
  }
  const SteadyTime now = relay_.loop_.clock().Read().steady;
  std::vector<Transfer> again;
  for (auto it = transfers_.begin(); it != transfers_.end();) {
    if (it->second.due && *it->second.due <= now) {
      relay_.CloseTransfer(it->first, it->second.node);
      again.push_back(std::move(it->second));
      it = transfers_.erase(it);
    } else {
      ++it;
    }
  }
  for (Transfer& transfer : std::exchange(away_, {})) {
    (transfer.due && *transfer.due <= now ? again : away_).push_back(std::move(transfer));
  }
  for (Transfer& transfer : again) {
    AskAgain(std::move(transfer));
  }
  TellWhatIsGone();
  ReleaseHeld();
  Pump();
  ArmPatience();
}

// The node is not connected. Somebody who follows gets the rest when it is back before the job has ended.
void FollowSession::Lose(Transfer transfer) {
  const head::JobRecord* const job = relay_.loop_.head().FindJob(options_.job);
  const bool waits = options_.follow && job != nullptr && !IsFinal(job->state);
  Remark(fmt::format("node {} is away: its output is missing{}", relay_.loop_.head().NodeName(transfer.node),
                     waits ? " until it is back" : ""));
  asked_[transfer.attempt].missed = true;
  if (waits) {
    transfer.source = nullptr;
    transfer.held.reset();
    transfer.due.reset();
    away_.push_back(std::move(transfer));
  }
}

void FollowSession::Attach(TransferId id, std::shared_ptr<OutputSource> source) {
  Transfer& transfer = transfers_.at(id);
  transfer.source = std::move(source);
  transfer.due.reset();
  ArmPatience();
}

void FollowSession::OnData(TransferId id, v1::SendOutputRequest message) {
  Transfer& transfer = transfers_.at(id);
  transfer.without_log.insert(message.ranks_without_log().begin(), message.ranks_without_log().end());
  Outgoing outgoing{.source = transfer.source};
  if (message.has_output()) {
    transfer.tries = 1;
    v1::JobOutput& output = *message.mutable_output();
    const bool wanted = output.attempt() == transfer.attempt && FromProto(output.stream()).ok() &&
                        !output.data().empty() &&
                        std::find(transfer.ranks.begin(), transfer.ranks.end(), output.rank()) != transfer.ranks.end();
    if (wanted) {
      *outgoing.response.mutable_output() = std::move(output);
    }
  }
  if (!message.remark().empty()) {
    Remark(message.remark());
  }
  if (outgoing.response.has_output()) {
    transfer.held = std::move(outgoing);
    ReleaseHeld();
  } else if (transfer.source != nullptr) {
    transfer.source->Next();
  }
  Pump();
}

// What an attempt wrote comes before what the next one writes, though each travels by a call of its own. Who does not
// follow gets what the nodes of an attempt wrote in order of time, so there the piece of each node is waited for. A
// node that is away holds nobody up: what it has comes late.
void FollowSession::ReleaseHeld() {
  std::optional<AttemptNumber> oldest;
  for (const auto& [id, transfer] : transfers_) {
    oldest = std::min(oldest.value_or(transfer.attempt), transfer.attempt);
  }
  Transfer* first = nullptr;
  const auto earlier = [](const Transfer& a, const Transfer& b) {
    const auto& x = a.held->response.output().at();
    const auto& y = b.held->response.output().at();
    return std::pair(x.seconds(), x.nanos()) < std::pair(y.seconds(), y.nanos());
  };
  for (auto& [id, transfer] : transfers_) {
    if (transfer.attempt != *oldest) {
      continue;
    }
    if (transfer.held && options_.follow) {
      Release(transfer);
    } else if (!transfer.held && !options_.follow) {
      return;  // What it sends next may be the oldest.
    } else if (transfer.held && (first == nullptr || earlier(transfer, *first))) {
      first = &transfer;
    }
  }
  if (first != nullptr) {
    Release(*first);
  }
}

void FollowSession::Release(Transfer& transfer) {
  const v1::JobOutput& output = transfer.held->response.output();
  if (output.next_offset() != 0) {
    positions_[{transfer.attempt, output.rank(), static_cast<OutputStream>(output.stream())}] = output.next_offset();
  }
  queue_.push_back(*std::exchange(transfer.held, std::nullopt));
}

void FollowSession::OnSourceEnd(TransferId id, bool complete) {
  const auto found = transfers_.find(id);
  Transfer transfer = std::move(found->second);
  transfers_.erase(found);
  relay_.transfers_.erase(id);
  if (complete) {
    Asked& asked = asked_[transfer.attempt];
    for (const Rank rank : transfer.ranks) {
      if (!transfer.without_log.contains(rank)) {
        asked.found.insert(rank);
      }
    }
  } else if (!relay_.Connected(transfer.node)) {
    Lose(std::move(transfer));
  } else if (transfer.tries == 1) {
    // The call alone broke. Its node does not come back, for it never went: nobody else would ask again.
    AskAgain(std::move(transfer));
  } else {
    transfer.source = nullptr;
    transfer.held.reset();
    transfer.due = relay_.loop_.clock().Read().steady + relay_.transfer_patience_;
    away_.push_back(std::move(transfer));
    ArmPatience();
  }
  TellWhatIsGone();
  ReleaseHeld();
  Pump();
}

bool FollowSession::AllCame() const {
  return transfers_.empty() &&
         std::none_of(away_.begin(), away_.end(), [](const Transfer& transfer) { return transfer.due.has_value(); });
}

// Once an attempt was heard of from every node: ranks that none of them keeps a log of. Not while the job goes on, for
// then a rank without a log only has not begun.
void FollowSession::TellWhatIsGone() {
  if (!AllCame() || (options_.follow && !was_final_)) {
    return;
  }
  for (const auto& [attempt, asked] : std::exchange(asked_, {})) {
    std::vector<Rank> gone;
    std::set_difference(asked.wanted.begin(), asked.wanted.end(), asked.found.begin(), asked.found.end(),
                        std::back_inserter(gone));
    if (!gone.empty() && !asked.missed) {
      Remark(
          fmt::format("no log is kept of rank{} {} of attempt {} of job {}: it never ran, or its log was removed to "
                      "make room (`rayctl start --logs-max`)",
                      gone.size() == 1 ? "" : "s", RanksText(gone), attempt, options_.job.value));
    }
  }
}

void FollowSession::OnNodeBack(NodeId node) {
  std::vector<Transfer> away = std::exchange(away_, {});
  for (Transfer& transfer : away) {
    if (transfer.node == node) {
      transfer.tries = 1;
      Open(std::move(transfer));
    } else {
      away_.push_back(std::move(transfer));
    }
  }
  Pump();
}

void FollowSession::OnNodeGone(NodeId node) {
  for (auto it = transfers_.begin(); it != transfers_.end();) {
    if (it->second.node != node) {
      ++it;
      continue;
    }
    Transfer transfer = std::move(it->second);
    relay_.transfers_.erase(it->first);
    it = transfers_.erase(it);
    if (transfer.source != nullptr) {
      transfer.source->End(absl::AbortedError("the node's stream ended; what is missing is asked for again"));
    }
    Lose(std::move(transfer));
  }
  ReleaseHeld();
  Pump();
}

void FollowSession::Remark(std::string text) {
  Outgoing outgoing;
  outgoing.response.set_remark(std::move(text));
  queue_.push_back(std::move(outgoing));
}

void FollowSession::Written(bool ok) {
  write_pending_ = false;
  const std::shared_ptr<OutputSource> source = std::move(writing_.source);
  writing_ = {};
  if (!ok) {
    Cancelled();
    return;
  }
  if (source != nullptr && sink_ != nullptr) {
    source->Next();
  }
  Pump();
}

// Writes the next thing, one at a time: changes of the job before output, but its end after everything else.
void FollowSession::Pump() {
  if (sink_ == nullptr || write_pending_) {
    return;
  }
  const head::JobRecord* const job = relay_.loop_.head().FindJob(options_.job);
  if (job == nullptr) {
    End(absl::NotFoundError(fmt::format("job {} is too old and was forgotten", options_.job.value)));
    return;
  }
  const bool ended = IsFinal(job->state);
  const bool is_last = ended && queue_.empty() && AllCame();
  if (job_dirty_ && (!ended || is_last || !first_sent_)) {
    // `first_sent_` is false until the first message: a job that has ended is shown at once, and again at the end.
    writing_ = {};
    *writing_.response.mutable_job() = JobView(relay_.loop_.head(), *job, Detail::kFull);
    job_dirty_ = ended && !is_last;
    first_sent_ = true;
  } else if (!queue_.empty()) {
    writing_ = std::move(queue_.front());
    queue_.pop_front();
  } else if (AllCame() && (ended || !options_.follow)) {
    End(absl::OkStatus());
    return;
  } else {
    return;
  }
  write_pending_ = true;
  sink_->Write(writing_.response);
}

void FollowSession::End(const absl::Status& status) {
  if (sink_ == nullptr) {
    return;
  }
  FollowSink* const sink = std::exchange(sink_, nullptr);
  const std::shared_ptr<FollowSession> self = shared_from_this();  // Until the end of this function.
  watch_ = {};
  patience_.cancel();
  relay_.sessions_.erase(this);
  for (auto& [id, transfer] : std::exchange(transfers_, {})) {
    relay_.CloseTransfer(id, transfer.node);
    if (transfer.source != nullptr) {
      transfer.source->End(absl::CancelledError("nobody reads this output any more"));
    }
  }
  away_.clear();
  queue_.clear();
  sink->Finish(status);
}

}  // namespace rayctl::rpc
