#include <algorithm>
#include <iterator>
#include <utility>

#include "worker/process/output_log.h"
#include "worker/shim/shim_impl.h"

namespace rayctl::shim {

namespace {

std::uint64_t SpoolBytes(const local::RankReport& report) { return report.metrics_json().size(); }

}  // namespace

// ---- What ranks say.

void Shim::Impl::Handle(const RankSaid& event) {
  using Body = local::RankMessage;
  const local::RankMessage& message = event.message;
  const local::RankId& id = message.id();
  RankState* rank = FindHome(event.rank);
  if (message.body_case() == Body::kHello) {
    RankHello(rank, event);
    return;
  }
  if (rank == nullptr || !rank->alive()) {
    Refuse(event.rank, id, local::REFUSAL_CODE_UNKNOWN_RANK, "no such rank runs here");
    return;
  }
  if (id.job_id() != config_.job.value || id.group() != rank->current.group) {
    Refuse(rank->home, id, local::REFUSAL_CODE_UNKNOWN_RANK, "this message is of another job or group");
    return;
  }
  if (id.attempt() < Latest(id.group())) {
    Refuse(rank->home, id, local::REFUSAL_CODE_OLD_ATTEMPT,
           "attempt " + std::to_string(id.attempt()) + " is over: attempt " + std::to_string(Latest(id.group())) +
               " has begun");
    return;
  }
  if (message.body_case() == Body::kRejoined) {
    Rejoined(*rank, id);
    return;
  }
  if (id.attempt() != rank->current.attempt || id.rank() != rank->current.rank) {
    Refuse(rank->home, id, local::REFUSAL_CODE_UNKNOWN_RANK, "this connection belongs to another rank");
    return;
  }
  switch (message.body_case()) {
    case Body::kReport:
      return Report(*rank, message.report());
    case Body::kProgress: {
      local::ShimToAgent progress;
      progress.mutable_progress()->set_step(message.progress().step());
      progress.mutable_progress()->set_phase(message.progress().phase());
      return Say(*rank, std::move(progress));
    }
    case Body::kBarrier:
      return Barrier(*rank, message.barrier());
    case Body::kBroadcast:
      return Broadcast(*rank, message.broadcast());
    case Body::kFailure:
      return Failure(*rank, message.failure());
    case Body::kGoodbye:
      rank->connected = false;
      effects_.push_back(CloseRankSocket{rank->home, "goodbye"});
      return;
    default:
      Refuse(rank->home, id, local::REFUSAL_CODE_BAD_MESSAGE, "unknown message of a newer SDK");
  }
}

void Shim::Impl::RankHello(RankState* rank, const RankSaid& event) {
  const local::RankId& id = event.message.id();
  const local::RankHello& hello = event.message.hello();
  const auto refuse = [&](local::RefusalCode code, std::string why) {
    Refuse(event.rank, id, code, why);
    effects_.push_back(CloseRankSocket{event.rank, std::move(why)});
  };
  if (id.job_id() != config_.job.value) {
    return refuse(local::REFUSAL_CODE_UNKNOWN_RANK, "this is the shim of job " + std::to_string(config_.job.value));
  }
  if (id.attempt() < Latest(id.group())) {
    return refuse(local::REFUSAL_CODE_OLD_ATTEMPT, "attempt " + std::to_string(id.attempt()) + " is over: attempt " +
                                                       std::to_string(Latest(id.group())) + " has begun");
  }
  if (rank == nullptr || !rank->alive() || rank->current != RankRef{id.group(), id.attempt(), id.rank()}) {
    return refuse(local::REFUSAL_CODE_UNKNOWN_RANK, "the process that says hello is not this rank");
  }
  if (hello.protocol() == 0) {
    return refuse(local::REFUSAL_CODE_BAD_MESSAGE, "the hello names no protocol");
  }
  if (rank->connected) {
    return refuse(local::REFUSAL_CODE_DUPLICATE_CONNECTION, "this rank already has a connection");
  }
  rank->connected = true;
  rank->sdk = hello.sdk();
  rank->can_rejoin = hello.can_rejoin();
  local::ShimReply reply;
  reply.mutable_welcome()->set_protocol(std::min(kProtocol, hello.protocol()));
  *reply.mutable_welcome()->mutable_context() = rank->context;
  Reply(*rank, std::move(reply));
  local::ShimToAgent attached;
  attached.mutable_attached()->set_sdk(rank->sdk);
  attached.mutable_attached()->set_can_rejoin(rank->can_rejoin);
  Say(*rank, std::move(attached));
  if (rank->offer) {
    local::RankNotice notice;
    *notice.mutable_next_attempt() = *rank->offer;
    Notice(*rank, notice);
  }
}

void Shim::Impl::Handle(const RankSocketClosed& event) {
  RankState* rank = FindHome(event.rank);
  if (rank == nullptr) {
    return;
  }
  rank->connected = false;
  rank->waiting.reset();  // It says it again when it is back.
  rank->owed.reset();
  rank->barrier_entered = 0;
  rank->broadcast_waiting = 0;
}

void Shim::Impl::Rejoined(RankState& rank, const local::RankId& id) {
  const RankRef next{id.group(), id.attempt(), id.rank()};
  if (rank.current == next) {
    return;  // Said before.
  }
  if (!rank.offer || rank.offer->attempt() != id.attempt() || rank.offer->rank() != id.rank()) {
    Refuse(rank.home, id, local::REFUSAL_CODE_BAD_MESSAGE,
           "attempt " + std::to_string(id.attempt()) + " was not offered to this rank");
    return;
  }
  const RankRef before = rank.current;
  latest_[id.group()] = std::max(Latest(id.group()), id.attempt());
  attempts_.try_emplace({next.group, next.attempt});
  rank.current = next;
  rank.context = rank.offer->context();
  rank.offer.reset();
  rank.failed = false;
  rank.peer_lost = false;
  rank.last_passed = 0;
  rank.last_spooled = 0;
  rank.last_had_checkpoint = false;
  rank.waiting.reset();
  rank.owed.reset();
  if (rank.copying) {
    rank.copying.reset();
    ++rank.stale_copies;
  }
  rank.spool.clear();
  rank.spool_bytes = 0;
  rank.spool_checkpoints = 0;
  rank.barrier_entered = 0;
  rank.broadcast_waiting = 0;
  rank.broadcast_taken = 0;
  rank.broadcast_given.reset();
  ForgetBroadcasts({before.group, before.attempt});
  local::ShimToAgent started;
  started.mutable_started()->set_pid(rank.pid);
  started.mutable_started()->set_pid_start_ticks(rank.start_ticks);
  started.mutable_started()->set_unix_nanos(WallNanos());
  Emit(rank, std::move(started));
}

// ---- Reports.

void Shim::Impl::Report(RankState& rank, const local::RankReport& report) {
  const std::uint64_t number = report.number();
  local::RankId id;
  id.set_job_id(config_.job.value);
  id.set_group(rank.current.group);
  id.set_attempt(rank.current.attempt);
  id.set_rank(rank.current.rank);
  if (number == 0 || number > rank.last_passed + 1) {
    return Refuse(
        rank.home, id, local::REFUSAL_CODE_BAD_MESSAGE,
        "report " + std::to_string(number) + " where " + std::to_string(rank.last_passed + 1) + " was expected");
  }
  if (number <= rank.last_spooled) {  // A repeat: the first answer again, or as soon as there is one.
    if (MayAnswer(rank, number)) {
      Answer(rank, number);
    } else {
      rank.owed = number;
    }
    return;
  }
  if (rank.copying) {
    return;  // A repeat of what is being copied; the answer follows the copy.
  }
  if (report.metrics_json().size() > kMetricsBytesMax) {
    return Refuse(rank.home, id, local::REFUSAL_CODE_TOO_LARGE,
                  "metrics of " + std::to_string(report.metrics_json().size()) + " bytes; at most " +
                      std::to_string(kMetricsBytesMax) + " are taken");
  }
  rank.waiting = report;
  TryPass(rank);
}

bool Shim::Impl::GateOpen(const RankState& rank, const local::RankReport& report) const {
  const AttemptState& attempt = AttemptOf(rank);
  if (attempt.holding && (attempt.boundary == 0 || report.number() > attempt.boundary)) {
    return false;
  }
  if (head_reachable_) {
    return report.number() <= attempt.complete + config_.report_window;
  }
  return rank.spool_bytes < config_.spool_bytes_max &&
         (!report.has_checkpoint() || rank.spool_checkpoints < config_.spool_checkpoints_max);
}

void Shim::Impl::TryPass(RankState& rank) {
  if (!rank.waiting || rank.copying || !GateOpen(rank, *rank.waiting)) {
    return;
  }
  local::RankReport report = std::move(*rank.waiting);
  rank.waiting.reset();
  rank.last_passed = report.number();
  if (report.has_checkpoint()) {
    effects_.push_back(CopyCheckpoint{rank.home, report.number(), report.checkpoint_dir()});
    rank.copying = std::move(report);
    return;
  }
  Spool(rank, report, nullptr);
}

void Shim::Impl::Handle(const CheckpointCopied& event) {
  RankState* rank = FindHome(event.rank);
  if (rank == nullptr) {
    return;
  }
  if (rank->stale_copies > 0) {
    --rank->stale_copies;
    return;
  }
  if (!rank->copying || rank->copying->number() != event.number) {
    return;
  }
  const local::RankReport report = std::move(*rank->copying);
  rank->copying.reset();
  if (!rank->alive()) {
    return;  // Its end has been told; a report after it would break the order.
  }
  if (!event.error.empty()) {
    rank->last_passed = rank->last_spooled;  // It may try the same number again.
    local::RankId id;
    id.set_job_id(config_.job.value);
    id.set_group(rank->current.group);
    id.set_attempt(rank->current.attempt);
    id.set_rank(rank->current.rank);
    Refuse(rank->home, id, event.no_space ? local::REFUSAL_CODE_NO_SPACE : local::REFUSAL_CODE_BAD_MESSAGE,
           "report " + std::to_string(event.number) + ": " + event.error);
    return;
  }
  Spool(*rank, report, &event);
}

void Shim::Impl::Spool(RankState& rank, const local::RankReport& report, const CheckpointCopied* copy) {
  rank.last_spooled = report.number();
  rank.last_had_checkpoint = report.has_checkpoint();
  rank.spool.push_back({report.number(), SpoolBytes(report), report.has_checkpoint()});
  rank.spool_bytes += SpoolBytes(report);
  rank.spool_checkpoints += report.has_checkpoint() ? 1 : 0;
  local::ShimToAgent message;
  local::ReportSpooled* spooled = message.mutable_report();
  spooled->set_number(report.number());
  spooled->set_metrics_json(report.metrics_json());
  spooled->set_has_checkpoint(report.has_checkpoint());
  spooled->set_unix_nanos(report.unix_nanos() != 0 ? report.unix_nanos() : WallNanos());
  if (copy != nullptr) {
    spooled->set_checkpoint_store_dir(copy->store_dir);
    for (const local::CheckpointFile& file : copy->files) {
      *spooled->add_files() = file;
    }
  }
  Emit(rank, std::move(message));
  const AttemptState& attempt = AttemptOf(rank);
  if (attempt.holding && attempt.boundary == report.number()) {
    SayReached(rank);
  }
  if (MayAnswer(rank, report.number())) {
    Answer(rank, report.number());
  } else {
    rank.owed = report.number();
  }
}

bool Shim::Impl::MayAnswer(const RankState& rank, std::uint64_t number) const {
  const AttemptState& attempt = AttemptOf(rank);
  if (attempt.holding && attempt.boundary == number && !attempt.passed) {
    return false;
  }
  return rank.current.group == 0 || attempt.decisions.contains(number);
}

void Shim::Impl::Answer(RankState& rank, std::uint64_t number) {
  const AttemptState& attempt = AttemptOf(rank);
  local::ShimReply reply;
  local::ReportDone* done = reply.mutable_report_done();
  done->set_number(number);
  if (const auto decision = attempt.decisions.find(number); decision != attempt.decisions.end()) {
    done->set_decision(decision->second);
  }
  // The rank asks should_checkpoint() before the report that is the boundary, so the answer before it says so too.
  done->set_should_checkpoint(attempt.holding && attempt.boundary != 0 &&
                              (number == attempt.boundary || number + 1 == attempt.boundary));
  if (rank.owed == number) {
    rank.owed.reset();
  }
  Reply(rank, std::move(reply));
}

void Shim::Impl::TryAll(std::uint32_t group, AttemptNumber attempt) {
  for (RankState* rank : LiveRanks(group, attempt)) {
    if (rank->owed && MayAnswer(*rank, *rank->owed)) {
      Answer(*rank, *rank->owed);
    }
    TryPass(*rank);
  }
}

void Shim::Impl::TryEverybody() {
  for (const auto& [key, state] : attempts_) {
    TryAll(key.first, key.second);
  }
}

// ---- What the agent says about reports.

void Shim::Impl::Hold(const local::RankId& id, const local::HoldReports& hold) {
  AttemptState& attempt = attempts_[{id.group(), id.attempt()}];
  if (hold.hold() < attempt.hold) {
    return;  // A newer one has been asked for.
  }
  if (hold.hold() > attempt.hold) {
    attempt.hold = hold.hold();
    attempt.holding = true;
    attempt.boundary = 0;
    attempt.passed = false;
    TryAll(id.group(), id.attempt());  // Answers that an older hold's boundary kept back.
  }
  for (const RankState* rank : LiveRanks(id.group(), id.attempt())) {
    SayHeld(*rank);
  }
}

void Shim::Impl::Boundary(const local::RankId& id, const local::BoundaryAt& boundary) {
  AttemptState& attempt = attempts_[{id.group(), id.attempt()}];
  if (!attempt.holding || boundary.hold() != attempt.hold) {
    return;
  }
  attempt.boundary = boundary.number();
  for (RankState* rank : LiveRanks(id.group(), id.attempt())) {
    if (rank->last_spooled >= boundary.number()) {
      SayReached(*rank);
      continue;
    }
    local::RankNotice notice;
    notice.mutable_should_checkpoint()->set_boundary(boundary.number());
    notice.mutable_should_checkpoint()->set_deadline_unix_nanos(boundary.deadline_unix_nanos());
    Notice(*rank, notice);
  }
  TryAll(id.group(), id.attempt());
}

void Shim::Impl::Pass(const local::RankId& id, const local::PassBoundary& pass) {
  AttemptState& attempt = attempts_[{id.group(), id.attempt()}];
  if (!attempt.holding || pass.hold() != attempt.hold || pass.number() != attempt.boundary || attempt.passed) {
    return;
  }
  attempt.passed = true;
  // The notice goes first: a rank whose report returns finds out at once that it must leave.
  for (RankState* rank : LiveRanks(id.group(), id.attempt())) {
    local::RankNotice notice;
    notice.mutable_leave()->set_why(pass.action());
    Notice(*rank, notice);
  }
  TryAll(id.group(), id.attempt());
}

void Shim::Impl::Cancel(const local::RankId& id, const local::CancelBoundary& cancel) {
  AttemptState& attempt = attempts_[{id.group(), id.attempt()}];
  if (cancel.hold() != attempt.hold) {
    return;
  }
  attempt.holding = false;
  attempt.boundary = 0;
  attempt.passed = false;
  TryAll(id.group(), id.attempt());
}

void Shim::Impl::Complete(const local::RankId& id, const local::ReportsComplete& complete) {
  AttemptState& attempt = attempts_[{id.group(), id.attempt()}];
  attempt.complete = std::max(attempt.complete, complete.number());
  for (RankState* rank : LiveRanks(id.group(), id.attempt())) {
    while (!rank->spool.empty() && rank->spool.front().number <= attempt.complete) {
      rank->spool_bytes -= rank->spool.front().bytes;
      rank->spool_checkpoints -= rank->spool.front().has_checkpoint ? 1 : 0;
      rank->spool.pop_front();
    }
  }
  TryAll(id.group(), id.attempt());
}

void Shim::Impl::Decide(const local::RankId& id, const local::DecideTrial& decide) {
  AttemptState& attempt = attempts_[{id.group(), id.attempt()}];
  attempt.decisions.emplace(decide.number(), decide.decision());  // The first stands: every rank must get the same.
  while (attempt.decisions.size() > kDecisionsKept) {
    attempt.decisions.erase(attempt.decisions.begin());
  }
  TryAll(id.group(), id.attempt());
}

void Shim::Impl::SayHeld(const RankState& rank) {
  local::ShimToAgent message;
  message.mutable_held()->set_hold(AttemptOf(rank).hold);
  message.mutable_held()->set_last_passed(rank.last_passed);
  Say(rank, std::move(message));
}

void Shim::Impl::SayReached(const RankState& rank) {
  const AttemptState& attempt = AttemptOf(rank);
  local::ShimToAgent message;
  message.mutable_boundary_reached()->set_hold(attempt.hold);
  message.mutable_boundary_reached()->set_number(attempt.boundary);
  message.mutable_boundary_reached()->set_has_checkpoint(rank.last_spooled == attempt.boundary &&
                                                         rank.last_had_checkpoint);
  Say(rank, std::move(message));
}

void Shim::Impl::RepeatUnnumbered() {
  for (const auto& [home, rank] : ranks_) {
    if (!rank.alive()) {
      continue;
    }
    const AttemptState& attempt = AttemptOf(rank);
    if (rank.connected) {
      local::ShimToAgent attached;
      attached.mutable_attached()->set_sdk(rank.sdk);
      attached.mutable_attached()->set_can_rejoin(rank.can_rejoin);
      Say(rank, std::move(attached));
    }
    if (attempt.holding && attempt.boundary == 0) {
      SayHeld(rank);
    } else if (attempt.holding && rank.last_spooled >= attempt.boundary) {
      SayReached(rank);
    }
    if (rank.barrier_entered != 0) {
      local::ShimToAgent entered;
      entered.mutable_barrier_entered()->set_number(rank.barrier_entered);
      Say(rank, std::move(entered));
    }
    if (rank.broadcast_given) {
      local::ShimToAgent given;
      given.mutable_broadcast_given()->set_number(rank.broadcast_given->number());
      given.mutable_broadcast_given()->set_payload(rank.broadcast_given->payload());
      Say(rank, std::move(given));
    }
  }
}

// ---- Saying it.

void Shim::Impl::Reply(RankState& rank, local::ShimReply reply) {
  if (!rank.connected) {
    return;
  }
  local::RankId* id = reply.mutable_id();
  id->set_job_id(config_.job.value);
  id->set_group(rank.current.group);
  id->set_attempt(rank.current.attempt);
  id->set_rank(rank.current.rank);
  id->set_sequence(++rank.reply_sequence);
  effects_.push_back(SendRank{rank.home, std::move(reply)});
}

void Shim::Impl::Refuse(const RankRef& home, const local::RankId& id, local::RefusalCode code, const std::string& why) {
  local::ShimReply reply;
  *reply.mutable_id() = id;
  reply.mutable_id()->set_sequence(0);
  reply.mutable_refused()->set_code(code);
  reply.mutable_refused()->set_message(process::ToUtf8(why));  // It may quote a path.
  if (RankState* rank = FindHome(home); rank != nullptr && rank->connected) {
    reply.mutable_id()->set_sequence(++rank->reply_sequence);
  }
  effects_.push_back(SendRank{home, std::move(reply)});
}

void Shim::Impl::Notice(RankState& rank, const local::RankNotice& notice) {
  local::ShimReply reply;
  *reply.mutable_notice() = notice;
  Reply(rank, std::move(reply));
}

}  // namespace rayctl::shim
