// Jobs come in, and are ended by wish.
#include <fmt/format.h>

#include <algorithm>

#include "base/invariant.h"
#include "base/names.h"
#include "base/units.h"
#include "daemon/head/cause.h"
#include "daemon/head/head_impl.h"

namespace rayctl::head {
namespace {

constexpr std::uint32_t kWorkersMax = 100'000;  // Of one job.
// How long after the ranks' grace period the head waits for nodes that do not answer before it stops anyway.
constexpr Duration kStopMargin = std::chrono::seconds(5);

// "train" of "/opt/bin/train --fast".
std::string ProgramName(const JobSpec& spec) {
  std::string word = spec.argv.empty() ? spec.entrypoint : spec.argv.front();
  if (spec.argv.empty()) {
    const auto begin = word.find_first_not_of(" \t\n");
    word = begin == std::string::npos ? "" : word.substr(begin);
    word = word.substr(0, word.find_first_of(" \t\n"));
  }
  while (!word.empty() && word.back() == '/') {
    word.pop_back();
  }
  word = word.substr(word.find_last_of('/') + 1);
  return word.empty() ? "job" : word;
}

std::string DefaultName(const JobSpec& spec, JobId id) { return fmt::format("{}-{}", ProgramName(spec), id.value); }

std::vector<std::string> Remarks(const JobRecord& job) {
  if (job.reason != Reason::kInfeasible) {
    return {};
  }
  return {fmt::format("job {} waits: {}", job.id.value, job.message)};
}

}  // namespace

absl::Status Head::Impl::CheckSpec(const JobSpec& spec) const {
  if (spec.kind == JobKind::kTune) {
    return absl::UnimplementedError("tune jobs are not run by this version; submit the trials as jobs of their own");
  }
  if (spec.argv.empty() && spec.entrypoint.find_first_not_of(" \t\n") == std::string::npos) {
    return absl::InvalidArgumentError("entrypoint: a command is needed");
  }
  if (!spec.argv.empty() && (spec.argv.front().empty() || !spec.entrypoint.empty())) {
    return absl::InvalidArgumentError("argv: a program is needed, and no entrypoint beside it");
  }
  if (spec.num_workers == 0 || spec.num_workers > kWorkersMax) {
    return absl::InvalidArgumentError(
        fmt::format("num_workers: {} is not between 1 and {}", spec.num_workers, kWorkersMax));
  }
  if (spec.num_workers_max != 0 && spec.num_workers_max < spec.num_workers) {
    return absl::InvalidArgumentError(
        fmt::format("num_workers: the most ({}) is less than the least ({})", spec.num_workers_max, spec.num_workers));
  }
  if (spec.max_failures < -1) {
    return absl::InvalidArgumentError(fmt::format("max_failures: {} is below -1 (for ever)", spec.max_failures));
  }
  if (!IsJobName(spec.name)) {
    return absl::InvalidArgumentError(fmt::format("name: {}", kJobNameRule));
  }
  for (const auto& [name, amount] : spec.resources_per_worker.amounts()) {
    if (amount.raw < 0) {
      return absl::InvalidArgumentError(fmt::format("resources_per_worker: {} is negative", name));
    }
  }
  if (spec.timeout < Duration{0} || spec.agent_grace < Duration{0} || spec.grace_period < Duration{0}) {
    return absl::InvalidArgumentError("timeout, agent_grace and grace_period are not negative");
  }
  return absl::OkStatus();
}

void Head::Impl::AnswerRepeat(const SubmitJob& submit, const JobRecord& job) {
  JobSpec spec = submit.spec;
  if (spec.name.empty()) {
    spec.name = DefaultName(spec, job.id);
  }
  if (spec == job.spec && submit.user == job.user) {
    Answered(submit.call, SubmitAnswer{job.id, Remarks(job)});
    return;
  }
  Fail(submit.call, absl::AlreadyExistsError(fmt::format("request id {} was used for another submission (job {})",
                                                         submit.request_id, job.id.value)));
}

void Head::Impl::Handle(const SubmitJob& submit) {
  if (!submit.request_id.empty()) {
    if (const auto known = by_request_.find(submit.request_id); known != by_request_.end()) {
      AnswerRepeat(submit, jobs_.at(known->second));
      return;
    }
  }
  if (stopping_) {
    Fail(submit.call, absl::UnavailableError("the cluster is being stopped"));
    return;
  }
  if (absl::Status ok = CheckSpec(submit.spec); !ok.ok()) {
    Fail(submit.call, std::move(ok));
    return;
  }
  if (queued_ >= config_.queued_jobs_max) {
    Fail(submit.call, absl::ResourceExhaustedError(fmt::format(
                          "{} jobs wait already (queued_jobs_max); submit again when some have ended", queued_)));
    return;
  }
  if (submit.fail_infeasible) {
    const auto decision = scheduler::Place(ledger_.view(), GroupOf(submit.spec));
    if (const auto* never = std::get_if<scheduler::Infeasible>(&decision)) {
      Fail(submit.call, absl::FailedPreconditionError(fmt::format("infeasible: {}", never->reason)));
      return;
    }
  }
  const JobId id{cluster_.next_job++};
  cluster_touched_ = true;
  JobRecord& job = jobs_[id];
  job.id = id;
  job.spec = submit.spec;
  if (job.spec.name.empty()) {
    job.spec.name = DefaultName(job.spec, id);
  }
  job.user = submit.user;
  job.request_id = submit.request_id;
  job.submitted_at = now_.wall;
  by_name_[job.spec.name].insert(id);
  if (!job.request_id.empty()) {
    by_request_[job.request_id] = id;
  }
  Touch(id);
  Enqueue(job);
  PlaceLine();
  Answered(submit.call, SubmitAnswer{id, Remarks(job)});
}

void Head::Impl::Handle(const CancelJob& cancel) {
  const auto found = jobs_.find(cancel.job);
  if (found == jobs_.end()) {
    Fail(cancel.call, absl::NotFoundError(fmt::format("there is no job {}", cancel.job.value)));
    return;
  }
  JobRecord& job = found->second;
  if (!cancel.any_job && job.user != cancel.user) {
    Fail(cancel.call, absl::PermissionDeniedError(fmt::format(
                          "job {} is of {}; only its user or an admin may cancel it", job.id.value, job.user)));
    return;
  }
  StopJob(job, JobState::kCancelled, Reason::kUser, fmt::format("cancelled by {}", cancel.user));
  Answered(cancel.call, CancelAnswer{job.id, job.state});
}

void Head::Impl::SetState(JobRecord& job, JobState state) {
  if (job.state == state) {
    return;
  }
  Invariant(IsEdge(job.state, state),
            fmt::format("job {} may not go from {} to {}", job.id.value, Name(job.state), Name(state)));
  job.state = state;
  Touch(job.id);
}

void Head::Impl::StopJob(JobRecord& job, JobState state, Reason reason, const std::string& message) {
  if (IsFinal(job.state) || job.state == JobState::kStopping) {
    return;
  }
  job.message = message;
  if (InLine(job.id)) {
    Finish(job, state, reason, ExitCodeOf(reason));
    return;
  }
  StopMoving(job.id);
  job.stop_state = state;
  job.stop_reason = reason;
  job.reason = reason;
  job.attempt.ended = true;
  SetState(job, JobState::kStopping);
  LoseRanksOnDeadNodes(job, /*stop_requested=*/true);
  StopRanks(job, message);
  Evaluate(job.id);
}

void Head::Impl::Finish(JobRecord& job, JobState state, Reason reason, std::int32_t exit_code) {
  LeaveLine(job.id);
  StopMoving(job.id);
  timers_.Clear({TimerKind::kJobTimeout, job.id.value});
  tallies_.erase(job.id);
  job.reason = reason;
  job.exit_code = exit_code;
  job.ended_at = now_.wall;
  job.stop_reason = Reason::kNone;
  job.stop_state = JobState::kCancelled;
  SetState(job, state);
  finished_.push_back(job.id);
  for (const NodeId node : NodesOf(job.attempt)) {
    Forget(node, job.id, std::nullopt);
  }
}

void Head::Impl::EvictFinished() {
  while (finished_.size() > config_.finished_jobs_max) {
    const JobId id = finished_.front();
    finished_.pop_front();
    Drop(jobs_.find(id));
  }
}

void Head::Impl::Drop(std::map<JobId, JobRecord>::iterator job) {
  if (const auto request = by_request_.find(job->second.request_id); request != by_request_.end()) {
    by_request_.erase(request);
  }
  const auto named = by_name_.find(job->second.spec.name);
  named->second.erase(job->first);
  if (named->second.empty()) {
    by_name_.erase(named);
  }
  erased_.push_back({RecordKind::kJob, job->first.value});
  jobs_.erase(job);
}

void Head::Impl::Handle(const WithdrawJob& withdraw) {
  const auto found = jobs_.find(withdraw.job);
  if (found == jobs_.end()) {
    return;
  }
  JobRecord& job = found->second;
  if (IsFinal(job.state)) {  // By a call that came together with its submission.
    finished_.erase(std::find(finished_.begin(), finished_.end(), job.id));
  }
  LeaveLine(job.id);
  StopMoving(job.id);
  timers_.Clear({TimerKind::kJobTimeout, job.id.value});
  for (Rank rank = 0; rank < job.attempt.ranks.size(); ++rank) {
    if (job.attempt.ranks[rank].HoldsLease()) {
      Lose(job, rank, "the job was withdrawn", /*stop_requested=*/true);
    }
  }
  FreePort(job);
  tallies_.erase(job.id);
  Drop(found);
}

void Unsay(std::vector<Effect>& effects, JobId job) {
  for (Effect& effect : effects) {
    auto* const send = std::get_if<Send>(&effect);
    if (send == nullptr) {
      continue;
    }
    const bool is_of_job = std::visit(
        [job](const auto& body) {
          if constexpr (requires { body.job; }) {
            return body.job == job;
          } else {
            return false;
          }
        },
        send->message.body);
    if (is_of_job) {
      send->message.body = link::HeartbeatHeard{};  // That it came is all that it says.
    }
  }
}

void Head::Impl::Handle(const StopCluster& stop) {
  if (stopping_) {
    return;
  }
  stopping_ = true;
  stop_why_ = stop.why;
  Duration grace{0};
  for (auto& [id, job] : jobs_) {
    if (IsFinal(job.state) || job.state == JobState::kQueued) {
      continue;
    }
    grace = std::max(grace, job.spec.grace_period);
    StopJob(job, JobState::kCancelled, Reason::kClusterStopped, "the cluster was stopped");
  }
  timers_.Set({TimerKind::kStopBound, 0}, now_.steady + grace + kStopMargin);
}

// The agents leave once nothing runs on a node that could still answer, or the bound has passed.
void Head::Impl::AdvanceStop() {
  if (!stopping_ || stopped_) {
    return;
  }
  const bool waits = std::any_of(runtimes_.begin(), runtimes_.end(), [&](const auto& node) {
    return StateOf(node.first) != NodeState::kDead && !node.second.leases.empty();
  });
  if (waits && !stop_bound_passed_) {
    return;
  }
  timers_.Clear({TimerKind::kStopBound, 0});
  stopped_ = true;
  for (const auto& [id, runtime] : runtimes_) {
    SendTo(id, link::LeaveCluster{stop_why_});
  }
  out_.push_back(ClusterStopped{});
}

}  // namespace rayctl::head
