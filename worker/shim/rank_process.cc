#include "worker/shim/rank_process.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace rayctl::shim {

namespace {

constexpr std::size_t kReadBytes = 64U << 10;
constexpr int kLastReadsMax = 16;  // A pipe holds less; more comes only from a writer that cannot be killed.
constexpr Duration kOutputWait = std::chrono::seconds(2);

bool Names(const std::string& variable, std::string_view name) {
  return variable.size() > name.size() && variable[name.size()] == '=' && variable.compare(0, name.size(), name) == 0;
}

}  // namespace

std::unique_ptr<RankProcess> RankProcess::Start(const RankRef& rank, const local::RankStart& start,
                                                const std::string& socket_path, const std::string& mark,
                                                const process::JobCgroup::Place& place, Deps deps) {
  const auto fail = [&](const absl::Status& why) {
    deps.deliver(SpawnFailed{rank, process::kNotExecutable, std::string(why.message())});
    return nullptr;
  };
  absl::StatusOr<process::OutputLog> log =
      process::OutputLog::Open({start.log_path(), start.log_bytes_max(), start.log_files_max()});
  if (!log.ok()) {
    return fail(log.status());
  }
  process::SpawnOptions options;
  options.argv.assign(start.argv().begin(), start.argv().end());
  for (const std::string& variable : start.env()) {
    if (!Names(variable, kSocketVariable) && !Names(variable, kMarkVariable)) {
      options.env.push_back(variable);
    }
  }
  options.env.push_back(std::string(kSocketVariable) + "=" + socket_path);
  options.env.push_back(std::string(kMarkVariable) + "=" + mark);
  options.working_dir = start.working_dir();
  options.cgroup = place.clone_into;
  options.cgroup_procs = place.task_files;
  options.cgroup_procs.insert(options.cgroup_procs.end(), start.cgroup_procs().begin(), start.cgroup_procs().end());
  absl::StatusOr<process::WorkerProcess> process = process::WorkerProcess::Spawn(options);
  if (!process.ok()) {
    return fail(process.status());
  }
  std::unique_ptr<RankProcess> result(
      new RankProcess(rank, mark, *std::move(process), *std::move(log), std::move(deps)));
  if (const absl::Status watched = result->WatchAll(); !watched.ok()) {
    result->deps_.deliver(SpawnFailed{rank, process::kNotExecutable, std::string(watched.message())});
    return nullptr;
  }
  return result;
}

RankProcess::RankProcess(RankRef rank, std::string mark, process::WorkerProcess process, process::OutputLog log,
                         Deps deps)
    : rank_(rank),
      mark_(std::move(mark)),
      deps_(std::move(deps)),
      process_(std::move(process)),
      log_(std::move(log)),
      stdout_(process_.TakeStdout()),
      stderr_(process_.TakeStderr()) {}

RankProcess::~RankProcess() {
  for (const int fd : {stdout_.get(), stderr_.get(), process_.pidfd(), process_.exec_result_fd()}) {
    if (fd >= 0) {
      deps_.loop.Forget(fd);
    }
  }
}

absl::Status RankProcess::WatchAll() {
  absl::Status status = deps_.loop.Watch(stdout_.get(), EPOLLIN, [this] { Pump(stdout_, OutputStream::kStdout); });
  status.Update(deps_.loop.Watch(stderr_.get(), EPOLLIN, [this] { Pump(stderr_, OutputStream::kStderr); }));
  status.Update(deps_.loop.Watch(process_.exec_result_fd(), EPOLLIN, [this] { StartKnown(); }));
  status.Update(deps_.loop.Watch(process_.pidfd(), EPOLLIN, [this] { CheckLeader(); }));
  return status;
}

void RankProcess::StartKnown() {
  if (std::exchange(start_known_, true)) {
    return;
  }
  deps_.loop.Forget(process_.exec_result_fd());
  if (const std::optional<process::StartFailure> failure = process_.FinishStart()) {
    start_failed_ = true;
    deps_.deliver(SpawnFailed{rank_, failure->exit_code, failure->why});
    return;
  }
  deps_.deliver(Spawned{rank_, process_.pid(), process_.start_ticks()});
}

void RankProcess::CheckLeader() {
  if (status_) {
    return;
  }
  status_ = process_.Poll();
  if (!status_) {
    return;
  }
  StartKnown();  // Its end closed that pipe too, and its start is told first.
  deps_.loop.Forget(process_.pidfd());
  output_deadline_ = deps_.clock.Read().steady + kOutputWait;
  deps_.changed(rank_);
}

bool RankProcess::ReadOnce(UniqueFd& pipe, OutputStream stream) {
  std::array<char, kReadBytes> bytes;
  const ssize_t n = ::read(pipe.get(), bytes.data(), bytes.size());
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    return false;
  }
  if (n <= 0) {
    deps_.loop.Forget(pipe.get());
    pipe.Reset();
    return false;
  }
  const absl::Status written =
      log_.Append(stream, {bytes.data(), static_cast<std::size_t>(n)}, deps_.clock.Read().wall);
  if (!written.ok() && !log_failing_) {
    deps_.log("output of rank " + std::to_string(rank_.rank) + " is being lost: " + std::string(written.message()));
  }
  log_failing_ = !written.ok();
  return true;
}

void RankProcess::Pump(UniqueFd& pipe, OutputStream stream) {
  ReadOnce(pipe, stream);  // Once, so that a rank that never stops writing does not keep the others waiting.
  if (!pipe.valid()) {
    deps_.changed(rank_);
  }
}

std::optional<Exited> RankProcess::Finish() {
  for (int i = 0; i < kLastReadsMax && stdout_.valid() && ReadOnce(stdout_, OutputStream::kStdout); ++i) {
  }
  for (int i = 0; i < kLastReadsMax && stderr_.valid() && ReadOnce(stderr_, OutputStream::kStderr); ++i) {
  }
  for (UniqueFd* pipe : {&stdout_, &stderr_}) {
    if (pipe->valid()) {
      deps_.loop.Forget(pipe->get());
      pipe->Reset();
    }
  }
  if (start_failed_ || !status_) {
    return std::nullopt;
  }
  Exited exited;
  exited.rank = rank_;
  if (const auto* signaled = std::get_if<process::Signaled>(&*status_)) {
    exited.signal = signaled->signal;
  } else {
    exited.exit_code = std::get<process::Exited>(*status_).code;
  }
  exited.last_output = log_.LastOutput();
  exited.log_bytes = log_.length();
  exited.memory_peak_bytes = process_.memory_peak_bytes();
  return exited;
}

}  // namespace rayctl::shim
