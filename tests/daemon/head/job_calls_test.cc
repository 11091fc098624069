#include "tests/daemon/head/head_driver.h"

namespace rayctl::head {
namespace {

using Code = absl::StatusCode;

TEST_CASE("a repeated submission gets the first answer, another one under its id is refused", "[head]") {
  HeadDriver driver;
  driver.AddNode("a");
  const SubmitJob submit{.request_id = "r1", .spec = HeadDriver::Spec(1), .user = "ann"};
  const auto first = driver.Ask<SubmitAnswer>(submit);
  driver.Restart();
  CHECK(driver.Ask<SubmitAnswer>(submit)->job == first->job);
  CHECK(driver.head().jobs().size() == 1);
  SubmitJob other = submit;
  other.spec.priority = 3;
  CHECK(driver.Ask<SubmitAnswer>(other).status().code() == Code::kAlreadyExists);
  other = submit;
  other.user = "bob";
  CHECK(driver.Ask<SubmitAnswer>(other).status().code() == Code::kAlreadyExists);
}

TEST_CASE("wrong specs are refused and leave nothing", "[head]") {
  HeadDriver driver;
  const auto refused = [&](const auto& change) {
    JobSpec spec = HeadDriver::Spec(1);
    change(spec);
    return driver.Ask<SubmitAnswer>(SubmitJob{.spec = spec, .user = "ann"}).status().code();
  };
  CHECK(refused([](JobSpec& spec) { spec.entrypoint = " "; }) == Code::kInvalidArgument);
  CHECK(refused([](JobSpec& spec) { spec.num_workers = 0; }) == Code::kInvalidArgument);
  CHECK(refused([](JobSpec& spec) { spec.max_failures = -2; }) == Code::kInvalidArgument);
  CHECK(refused([](JobSpec& spec) { spec.argv = {"x"}; }) == Code::kInvalidArgument);
  CHECK(refused([](JobSpec& spec) { spec.kind = JobKind::kTune; }) == Code::kUnimplemented);
  CHECK(driver.head().jobs().empty());
  CHECK(driver.head().cluster().next_job == 1);
}

TEST_CASE("an infeasible job waits with a remark, or is refused by wish", "[head]") {
  HeadDriver driver;
  driver.AddNode("a", {.cpus = 2});
  JobSpec spec = HeadDriver::Spec(3);
  const auto refused = driver.Ask<SubmitAnswer>(SubmitJob{.spec = spec, .user = "ann", .fail_infeasible = true});
  CHECK(refused.status().code() == Code::kFailedPrecondition);
  CHECK(driver.head().jobs().empty());
  const auto accepted = driver.Ask<SubmitAnswer>(SubmitJob{.spec = spec, .user = "ann"});
  REQUIRE(accepted.ok());
  CHECK(accepted->remarks.size() == 1);
  CHECK(driver.Job(accepted->job).state == JobState::kQueued);
  CHECK(driver.Job(accepted->job).reason == Reason::kInfeasible);
  driver.AddNode("b", {.cpus = 2});
  CHECK(driver.Job(accepted->job).state == JobState::kStarting);
  CHECK(driver.Job(accepted->job).reason == Reason::kNone);
}

TEST_CASE("the line goes by priority, then age, and lets smaller jobs pass", "[head]") {
  HeadDriver driver;
  driver.AddNode("a", {.cpus = 2});
  const JobId holder = driver.Submit(HeadDriver::Spec(1));
  const JobId big = driver.Submit(HeadDriver::Spec(2));
  const JobId small = driver.Submit(HeadDriver::Spec(1));
  const JobId later = driver.Submit(HeadDriver::Spec(1));
  JobSpec urgent_spec = HeadDriver::Spec(1);
  urgent_spec.priority = 5;
  const JobId urgent = driver.Submit(urgent_spec);
  CHECK(driver.Job(small).state == JobState::kStarting);
  CHECK(driver.Job(later).state == JobState::kQueued);
  // As placement said when it last tried: before the small job took the rest.
  CHECK(driver.head().WaitingReason(big) == "needs CPU: 1 for each of 2 workers; there is room for 1 now");
  driver.RunAll(holder);
  driver.End(holder, 0);
  CHECK(driver.Job(urgent).state == JobState::kStarting);
  CHECK(driver.Job(later).state == JobState::kQueued);
  driver.RunAll(small);
  driver.End(small, 0);
  CHECK(driver.Job(later).state == JobState::kStarting);
  CHECK(driver.Job(big).state == JobState::kQueued);
}

TEST_CASE("cancel ends a queued job at once and a running one when its ranks are gone", "[head]") {
  HeadDriver driver;
  const NodeId a = driver.AddNode("a", {.cpus = 1});
  const JobId running = driver.Submit(HeadDriver::Spec(1));
  const JobId queued = driver.Submit(HeadDriver::Spec(1));
  driver.RunAll(running);
  CHECK(driver.Cancel(queued, "bob").code() == Code::kPermissionDenied);
  CHECK(driver.Cancel(JobId{99}).code() == Code::kNotFound);
  CHECK(driver.Cancel(queued, "root", true).ok());
  CHECK(driver.Job(queued).state == JobState::kCancelled);
  CHECK(driver.Job(queued).exit_code == 130);
  CHECK(driver.Cancel(running).ok());
  CHECK(driver.Job(running).state == JobState::kStopping);
  const auto stops = driver.TakeSent<link::StopGroup>(a);
  REQUIRE(stops.size() == 1);
  CHECK(stops[0].grace == seconds(10));
  driver.End(running, 0, HeadDriver::Stopped());
  CHECK(driver.Job(running).state == JobState::kCancelled);
  CHECK(driver.Job(running).reason == Reason::kUser);
  CHECK(driver.Job(running).exit_code == 130);
  CHECK(driver.Cancel(running).ok());
  CHECK(driver.Job(running).state == JobState::kCancelled);
}

TEST_CASE("a timeout counts from the first start, over attempts and restarts of the head", "[head]") {
  HeadDriver driver;
  const NodeId a = driver.AddNode("a");
  JobSpec spec = HeadDriver::Spec(1);
  spec.timeout = seconds(100);
  spec.max_failures = -1;
  const JobId job = driver.Submit(spec);
  driver.RunAll(job);
  driver.PassWithHeartbeats(seconds(40), {a});
  driver.End(job, 0, HeadDriver::Code(1));
  driver.RunAll(job);
  driver.Restart();
  driver.Connect(a, {driver.Running(job, 0)});
  driver.PassWithHeartbeats(seconds(59), {a});
  CHECK(driver.Job(job).state == JobState::kRunning);
  driver.PassWithHeartbeats(seconds(1), {a});
  CHECK(driver.Job(job).state == JobState::kStopping);
  driver.End(job, 0, HeadDriver::Stopped());
  CHECK(driver.Job(job).state == JobState::kFailed);
  CHECK(driver.Job(job).reason == Reason::kTimeout);
  CHECK(driver.Job(job).exit_code == 124);
}

TEST_CASE("a taken port is another try that counts as no failure", "[head]") {
  HeadDriver driver;
  driver.AddNode("a");
  const JobId job = driver.Submit(HeadDriver::Spec(1));
  const std::uint32_t port = driver.Job(job).attempt.master_port;
  link::RankEnd taken;
  taken.start_failed = true;
  taken.port_in_use = true;
  driver.End(job, 0, taken);
  CHECK(driver.Job(job).state == JobState::kRecovering);
  CHECK(driver.Job(job).attempt.number == 1);
  CHECK(driver.Job(job).attempt.master_port != port);
  CHECK(driver.Job(job).failures == 0);
}

TEST_CASE("what the user sees is the rank that failed first by cause", "[head]") {
  link::RankEnd peer = HeadDriver::Code(1);
  peer.last_output = "RuntimeError: [..] Connection closed by peer [127.0.0.1]:1\n";
  link::RankEnd memory = HeadDriver::Signal(9);
  memory.out_of_memory = true;
  link::RankEnd limited = memory;
  limited.memory_peak_bytes = 2ULL << 30;
  limited.memory_bytes_max = 2ULL << 30;
  link::RankEnd bomb = HeadDriver::Code(2);
  bomb.pids_max_reached = 64;
  link::RankEnd exec;
  exec.start_failed = true;
  exec.exit_code = 127;
  exec.start_error = "exec train: no such file or directory";
  struct Row {
    link::RankEnd first;
    link::RankEnd second;
    Rank rank;
    Reason reason;
    std::int32_t exit_code;
    std::string message;
  };
  const auto row = GENERATE_COPY(values<Row>(
      {{peer, HeadDriver::Signal(9), 1, Reason::kSignaled, 137, "rank 1 on a was killed by signal 9 (SIGKILL)"},
       {peer, HeadDriver::Code(3), 1, Reason::kExited, 3, "rank 1 on a exited with code 3"},
       {HeadDriver::Code(4), HeadDriver::Code(3), 0, Reason::kExited, 4, "rank 0 on a exited with code 4"},
       {peer, peer, 0, Reason::kExited, 1, "rank 0 on a exited with code 1"},
       {HeadDriver::Code(5), HeadDriver::Stopped(), 0, Reason::kExited, 5, "rank 0 on a exited with code 5"},
       {memory, peer, 0, Reason::kOutOfMemory, 137, "rank 0 on a was killed because memory ran out"},
       {peer, limited, 1, Reason::kOutOfMemory, 137, "rank 1 on a ran out of memory: used 2 GiB of 2 GiB"},
       {bomb, peer, 0, Reason::kExited, 2,
        "rank 0 on a exited with code 2; its job had reached the limit of 64 processes and threads there "
        "(start --pids-max)"},
       {exec, HeadDriver::Stopped(), 0, Reason::kStartFailed, 127,
        "rank 0 on a could not be executed: exec train: no such file or directory"}}));
  HeadDriver driver;
  driver.AddNode("a");
  const JobId job = driver.Submit(HeadDriver::Spec(2));
  driver.Run(job, 1);
  driver.End(job, 0, row.first);
  CHECK(driver.Job(job).state == JobState::kStopping);
  driver.End(job, 1, row.second);
  CHECK(driver.Job(job).state == JobState::kFailed);
  CHECK(driver.Job(job).failed_rank == row.rank);
  CHECK(driver.Job(job).reason == row.reason);
  CHECK(driver.Job(job).exit_code == row.exit_code);
  CHECK(driver.Job(job).message == row.message);
}

TEST_CASE("stopping the cluster ends what runs and keeps what waits", "[head]") {
  HeadDriver driver;
  const NodeId a = driver.AddNode("a", {.cpus = 1});
  const JobId running = driver.Submit(HeadDriver::Spec(1));
  const JobId queued = driver.Submit(HeadDriver::Spec(1));
  driver.RunAll(running);
  driver.On(StopCluster{"rayctl stop"});
  CHECK(driver.Job(running).state == JobState::kStopping);
  const auto late = driver.Ask<SubmitAnswer>(SubmitJob{.spec = HeadDriver::Spec(1), .user = "ann"});
  CHECK(late.status().code() == Code::kUnavailable);
  CHECK(driver.cluster_stopped == 0);
  const bool answers = GENERATE(true, false);
  if (answers) {
    driver.End(running, 0, HeadDriver::Stopped());
    CHECK(driver.Job(running).state == JobState::kCancelled);
    CHECK(driver.Job(running).reason == Reason::kClusterStopped);
  } else {
    driver.PassWithHeartbeats(seconds(15), {a});
  }
  CHECK(driver.cluster_stopped == 1);
  CHECK(driver.TakeSent<link::LeaveCluster>(a).size() == 1);
  CHECK(driver.Job(queued).state == JobState::kQueued);
  driver.On(StopCluster{"again"});
  CHECK(driver.cluster_stopped == 1);
}

TEST_CASE("tokens have names of their own while they live", "[head]") {
  HeadDriver driver;
  const std::string hash(32, 'h');
  const auto first = driver.Ask<TokenAnswer>(CreateToken{.name = "ci", .role = Role::kUser, .sha256 = hash});
  REQUIRE(first.ok());
  CHECK(driver.Ask<TokenAnswer>(CreateToken{.name = "ci", .sha256 = hash}).status().code() == Code::kAlreadyExists);
  CHECK(driver.Ask<Done>(RevokeToken{.name = "ci"}).ok());
  CHECK(driver.Ask<Done>(RevokeToken{.name = "ci"}).status().code() == Code::kNotFound);
  driver.Restart();
  CHECK(driver.Ask<TokenAnswer>(CreateToken{.name = "ci", .sha256 = hash}).ok());
  CHECK(driver.Ask<TokenAnswer>(CreateToken{.role = Role::kViewer, .sha256 = hash})->token.name == "viewer-3");
  CHECK(driver.Ask<TokenAnswer>(CreateToken{.name = "x", .sha256 = "short"}).status().code() == Code::kInvalidArgument);
}

TEST_CASE("the oldest ended jobs go when there are too many", "[head]") {
  HeadDriver driver(HeadConfig{.finished_jobs_max = 2});
  driver.AddNode("a");
  for (int i = 0; i < 4; ++i) {
    const JobId job = driver.Submit(HeadDriver::Spec(1));
    driver.RunAll(job);
    driver.End(job, 0);
  }
  CHECK(driver.head().FindJob(JobId{2}) == nullptr);
  CHECK(driver.head().FindJob(JobId{3}) != nullptr);
  CHECK_FALSE(driver.journal().contains({RecordKind::kJob, 2}));
  CHECK(driver.head().FindJobByName("train-4")->id == JobId{4});
  CHECK(driver.head().FindJobByName("train-1") == nullptr);
}

}  // namespace
}  // namespace rayctl::head
