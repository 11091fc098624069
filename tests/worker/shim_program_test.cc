#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>

#include "tests/worker/shim_fixture.h"
#include "worker/process/output_reader.h"
#include "worker/process/proc.h"
#include "worker/shim/state_file.h"

namespace rayctl::shim {
namespace {

using namespace std::chrono_literals;
using Agent = local::ShimToAgent;

int CodeOf(const process::ExitStatus& status) {
  const auto* exited = std::get_if<process::Exited>(&status);
  return exited != nullptr ? exited->code : -1;
}

TEST_CASE("a job's life: hello, start, output, end, release, nothing left", "[shim_program]") {
  ShimProgram shim;
  shim.Hello();
  const local::ShimHello hello = shim.Await(Agent::kHello).hello();
  CHECK(hello.shim_pid() == shim.process().pid());
  CHECK(hello.job_id() == 7);
  CHECK(::getsid(shim.process().pid()) == shim.process().pid());
  for (const std::string& path : {shim.agent_socket(), shim.rank_socket()}) {
    CHECK(std::filesystem::is_socket(path));
  }
  shim.StartShell(0, "echo out; echo \"socket $RAYCTL_SOCKET\"; echo err >&2; exit 3");
  const local::ShimToAgent started = shim.Await(Agent::kStarted);
  CHECK(started.id().sequence() == 1);
  CHECK(started.started().pid() > 0);
  CHECK(started.started().pid_start_ticks() > 0);
  const local::ShimToAgent exited = shim.Await(Agent::kExited);
  CHECK(exited.exited().exit_code() == 3);
  CHECK(exited.exited().signal() == 0);
  CHECK(exited.exited().memory_peak_bytes() > 0);
  process::OutputReader reader(shim.log_path(0));
  std::string out;
  std::string err;
  while (const auto run = reader.Next().value()) {
    (run->stream == OutputStream::kStdout ? out : err) += run->bytes;
  }
  CHECK(out == "out\nsocket " + shim.rank_socket() + "\n");
  CHECK(err == "err\n");
  CHECK(reader.HasAll(exited.exited().log_bytes()));
  CHECK(exited.exited().last_output().size() == exited.exited().log_bytes());
  const ShimState state = ReadShimState(shim.state_path()).value();
  CHECK(ShimLives(state.header));
  REQUIRE(state.ranks.size() == 1);
  CHECK(state.ranks[0].exit().exit_code() == 3);
  shim.Send([](auto& m) { m.mutable_ack()->set_sequence(2); });
  shim.Send([](auto& m) { m.mutable_release(); });
  CHECK(CodeOf(shim.AwaitEnd()) == 0);
  CHECK_FALSE(std::filesystem::exists(shim.agent_socket()));
  CHECK_FALSE(std::filesystem::exists(shim.rank_socket()));
  CHECK_FALSE(std::filesystem::exists(shim.state_path()));
  CHECK(std::filesystem::exists(shim.log_path(0)));
}

TEST_CASE("what cannot be executed ends with the code that a shell gives it", "[shim_program]") {
  ShimProgram shim;
  shim.Hello();
  shim.Start(0, {"no-such-program"});
  const local::RankExited missing = shim.Await(Agent::kExited).exited();
  CHECK(missing.start_failed());
  CHECK(missing.exit_code() == 127);
  CHECK(missing.start_error() == "exec no-such-program: no such file or directory");
  shim.Start(1, {"/"});
  const local::RankExited folder = shim.Await(Agent::kExited).exited();
  CHECK(folder.start_failed());
  CHECK(folder.exit_code() == 126);
  CHECK(folder.start_error() == "exec /: permission denied");
  shim.Start(2, {"true"}, {}, [](local::RankStart& start) { start.set_log_path("/proc/no/log"); });
  const local::RankExited no_log = shim.Await(Agent::kExited).exited();
  CHECK(no_log.start_failed());
  CHECK(no_log.exit_code() == 126);
  shim.Start(3, {});
  CHECK(shim.Await(Agent::kExited).exited().start_failed());
  shim.Start(4, {"no-\xff"});
  CHECK(shim.Await(Agent::kExited).exited().start_error() == "exec no-?: no such file or directory");
}

TEST_CASE("arguments, variables and paths are bytes, not text", "[shim_program]") {
  ShimProgram shim;
  shim.Hello();
  const std::string folder = shim.dir() + "/w\xff";
  shim.Start(0, {"/bin/sh", "-c", "printf '%s|%s|' \"$1\" \"$ODD\"; pwd", "sh", "\xc3\x28"}, {"ODD=caf\xe9 \xff\xfe"},
             [&](local::RankStart& start) { start.set_working_dir(folder); });
  CHECK(shim.Await(Agent::kExited).exited().exit_code() == 0);
  process::OutputReader reader(shim.log_path(0));
  std::string out;
  while (const auto run = reader.Next().value()) {
    out += run->bytes;
  }
  CHECK(out == "\xc3\x28|caf\xe9 \xff\xfe|" + folder + "\n");
}

TEST_CASE("a rank that ignores SIGTERM is killed after its grace", "[shim_program]") {
  ShimProgram shim;
  shim.Hello();
  const UniqueFd fifo = shim.MakeFifo("ready");
  // `wait` is what a trap interrupts; what it waits for ignores the signal, and says so once it does.
  shim.StartShell(0, "trap 'echo term > " + shim.FifoPath("ready") + "' TERM; (trap '' TERM; echo ready > " +
                         shim.FifoPath("ready") + "; exec sleep 1000) & wait; wait");
  REQUIRE(LineFrom(fifo) == "ready");
  shim.Send([](auto& m) { m.mutable_stop()->set_grace_millis(300); });
  CHECK(LineFrom(fifo) == "term");
  const local::RankExited exited = shim.Await(Agent::kExited).exited();
  CHECK(exited.signal() == SIGKILL);
  CHECK(exited.stop_requested());
}

TEST_CASE("what left the group or wiped its environment is gone when its rank has ended", "[shim_program]") {
  ShimProgram shim;
  shim.Hello();
  const UniqueFd fifo = shim.MakeFifo("pids");
  const UniqueFd go = shim.MakeFifo("go");
  const std::string to_fifo = " > " + shim.FifoPath("pids");
  const auto escape = [&](const std::string& how) {
    // Twice forked and in a session of its own; it keeps the rank's output open.
    return "(" + how + " setsid sh -c 'echo $$" + to_fifo + "; exec sleep 1000' &) ; ";
  };
  shim.StartShell(0, escape("") + "exec sleep 1000");
  const UniqueFd marked = PidfdOf(static_cast<pid_t>(std::atol(LineFrom(fifo).c_str())));
  shim.StartShell(1, escape("") + "read line < " + shim.FifoPath("go"));
  const UniqueFd other = PidfdOf(static_cast<pid_t>(std::atol(LineFrom(fifo).c_str())));
  shim.StartShell(2, escape("env -i") + "exec sleep 1000");
  const UniqueFd unmarked = PidfdOf(static_cast<pid_t>(std::atol(LineFrom(fifo).c_str())));
  REQUIRE(marked.valid());
  REQUIRE(other.valid());
  REQUIRE(unmarked.valid());
  shim.Send([](auto& m) { m.mutable_stop()->add_ranks(0); });
  CHECK(shim.Await(Agent::kExited).id().rank() == 0);
  CHECK(Readable(marked.get()));
  // Those of the other ranks live: a signal still reaches them.
  CHECK(::syscall(SYS_pidfd_send_signal, other.get(), 0, nullptr, 0) == 0);
  CHECK(::syscall(SYS_pidfd_send_signal, unmarked.get(), 0, nullptr, 0) == 0);
  shim.Send([](auto& m) { m.mutable_stop(); });
  shim.Await(Agent::kExited);
  shim.Await(Agent::kExited);
  CHECK(Readable(other.get()));
  CHECK(Readable(unmarked.get()));
}

TEST_CASE("ranks die with a shim that is killed, and its state file says which they were", "[shim_program]") {
  ShimProgram shim;
  shim.Hello();
  shim.StartShell(0, "exec sleep 1000");
  const local::RankStarted started = shim.Await(Agent::kStarted).started();
  const UniqueFd rank = PidfdOf(static_cast<pid_t>(started.pid()));
  REQUIRE(rank.valid());
  ::kill(shim.process().pid(), SIGKILL);
  CHECK(Readable(rank.get()));
  shim.AwaitEnd();
  const ShimState state = ReadShimState(shim.state_path()).value();
  CHECK_FALSE(ShimLives(state.header));
  REQUIRE(state.ranks.size() == 1);
  CHECK(state.ranks[0].phase() == local::RANK_PHASE_RUNNING);
  CHECK(state.ranks[0].pid() == started.pid());
}

TEST_CASE("ranks live through a lost agent and are told again to the next one", "[shim_program]") {
  ShimProgram shim;
  shim.Hello();
  const UniqueFd go = shim.MakeFifo("go");
  shim.StartShell(0, "read line < " + shim.FifoPath("go") + "; exit 9");
  shim.Await(Agent::kStarted);
  shim.agent().Close();
  REQUIRE(::write(go.get(), "on\n", 3) == 3);
  shim.Reconnect();
  shim.Hello();
  const local::ShimHello hello = shim.Await(Agent::kHello).hello();
  REQUIRE(hello.ranks_size() == 1);
  CHECK(shim.Await(Agent::kStarted).id().sequence() == 1);
  const local::ShimToAgent exited = shim.Await(Agent::kExited);
  CHECK(exited.id().sequence() == 2);
  CHECK(exited.exited().exit_code() == 9);
  // A newer connection replaces the older.
  AgentPeer older(ConnectTo(shim.agent_socket()));
  shim.Reconnect();
  CHECK_FALSE(older.Next().has_value());
  shim.Hello(2);
  CHECK(shim.Await(Agent::kHello).hello().last_sequence() == 2);
}

TEST_CASE("no agent for agent_grace: every process is gone and the state stays", "[shim_program]") {
  ShimProgram shim(200ms);
  shim.Hello();
  const UniqueFd fifo = shim.MakeFifo("pids");
  shim.StartShell(0, "setsid sh -c 'echo $$ > " + shim.FifoPath("pids") + "; exec sleep 1000' & trap '' TERM; wait");
  const UniqueFd rank = PidfdOf(static_cast<pid_t>(shim.Await(Agent::kStarted).started().pid()));
  const UniqueFd daemon = PidfdOf(static_cast<pid_t>(std::atol(LineFrom(fifo).c_str())));
  shim.agent().Close();
  CHECK(CodeOf(shim.AwaitEnd()) == 0);
  CHECK(Readable(rank.get()));
  CHECK(Readable(daemon.get()));
  CHECK_FALSE(std::filesystem::exists(shim.agent_socket()));
  const ShimState state = ReadShimState(shim.state_path()).value();
  REQUIRE(state.ranks.size() == 1);
  CHECK(state.ranks[0].exit().signal() == SIGKILL);
  CHECK(state.ranks[0].exit().stop_requested());
}

TEST_CASE("a shim that no agent ever finds leaves by itself", "[shim_program]") {
  ShimProgram shim(200ms, false);
  CHECK(CodeOf(shim.AwaitEnd()) == 0);
}

TEST_CASE("SIGTERM ends the ranks and the shim, SIGINT and SIGHUP do not", "[shim_program]") {
  ShimProgram shim;
  shim.Hello();
  shim.StartShell(0, "trap '' TERM; sleep 1000");
  const UniqueFd rank = PidfdOf(static_cast<pid_t>(shim.Await(Agent::kStarted).started().pid()));
  ::kill(shim.process().pid(), SIGINT);
  ::kill(shim.process().pid(), SIGHUP);
  shim.Hello();
  shim.Await(Agent::kHello);
  ::kill(shim.process().pid(), SIGTERM);
  CHECK(CodeOf(shim.AwaitEnd()) == 0);
  CHECK(Readable(rank.get()));
  CHECK(ReadShimState(shim.state_path()).value().ranks.at(0).exit().signal() == SIGKILL);
}

TEST_CASE("one living shim a job; a dead one's place is free", "[shim_program]") {
  ShimProgram shim;
  shim.Hello();
  shim.Await(Agent::kHello);
  process::SpawnOptions options;
  options.argv = shim.Arguments();
  process::WorkerProcess second = process::WorkerProcess::Spawn(options).value();
  REQUIRE(Readable(second.pidfd()));
  CHECK(CodeOf(*second.Poll()) == 1);
  shim.Hello();
  CHECK(shim.Await(Agent::kHello).hello().shim_pid() == shim.process().pid());
  ::kill(shim.process().pid(), SIGKILL);
  shim.AwaitEnd();
  options.argv.push_back("--bad");
  process::WorkerProcess wrong = process::WorkerProcess::Spawn(options).value();
  REQUIRE(Readable(wrong.pidfd()));
  CHECK(CodeOf(*wrong.Poll()) == 2);
  ::chmod(shim.run_dir().c_str(), 0755);
  options.argv.pop_back();
  process::WorkerProcess open_dir = process::WorkerProcess::Spawn(options).value();
  REQUIRE(Readable(open_dir.pidfd()));
  CHECK(CodeOf(*open_dir.Poll()) == 1);
}

// Spawned as an agent does it, with the first frame on its way before it reads any.
class SecondShim {
 public:
  explicit SecondShim(const ShimProgram& shim) {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
    agent_.emplace(UniqueFd(ends[0]));
    theirs_.Reset(ends[1]);
    local::AgentToShim message;
    message.mutable_id()->set_job_id(7);
    message.mutable_hello()->set_protocol(1);
    agent_->Send(message);
    options_.argv = shim.Arguments();
    options_.argv.insert(options_.argv.end(), {"--agent-fd", std::to_string(theirs_.get())});
    options_.keep_fds = {theirs_.get()};
  }
  process::WorkerProcess Spawn() {
    process::WorkerProcess spawned = process::WorkerProcess::Spawn(options_).value();
    theirs_.Reset();
    return spawned;
  }
  AgentPeer& agent() { return *agent_; }

 private:
  std::optional<AgentPeer> agent_;
  UniqueFd theirs_;
  process::SpawnOptions options_;
};

TEST_CASE("a shim whose agent was gone before it listened ends without a trace", "[shim_program]") {
  ShimProgram shim;
  shim.Hello();
  shim.Await(Agent::kHello);
  SecondShim second(shim);
  second.agent().Close();
  process::WorkerProcess late = second.Spawn();
  REQUIRE(Readable(late.pidfd()));
  CHECK(CodeOf(*late.Poll()) == 1);
  shim.Reconnect();  // The socket is still the living one's.
  shim.Hello();
  CHECK(shim.Await(Agent::kHello).hello().shim_pid() == shim.process().pid());
  ::kill(shim.process().pid(), SIGKILL);
  shim.AwaitEnd();
  SecondShim third(shim);
  third.agent().Close();
  process::WorkerProcess later = third.Spawn();
  REQUIRE(Readable(later.pidfd()));
  CHECK(CodeOf(*later.Poll()) == 1);
  CHECK(ReadShimState(shim.state_path()).value().header.shim_pid() == shim.process().pid());
}

TEST_CASE("a shim waits until the one before it is gone, and then serves its agent", "[shim_program]") {
  ShimProgram shim;
  shim.Hello();
  shim.Await(Agent::kHello);
  SecondShim second(shim);
  process::WorkerProcess next = second.Spawn();
  ::kill(shim.process().pid(), SIGKILL);
  shim.AwaitEnd();
  const std::optional<local::ShimToAgent> hello = second.agent().Next();
  REQUIRE(hello);
  CHECK(hello->hello().shim_pid() == next.pid());
  ::kill(next.pid(), SIGTERM);
  REQUIRE(Readable(next.pidfd()));
  CHECK(CodeOf(*next.Poll()) == 0);
}

TEST_CASE("much output on both streams is kept whole through rotations", "[shim_program]") {
  ShimProgram shim;
  shim.Hello();
  shim.Start(0, {"/bin/sh", "-c", "seq 1 60000 & seq 1 60000 >&2; wait"}, {}, [](local::RankStart& start) {
    start.set_log_bytes_max(100'000);
    start.set_log_files_max(50);
  });
  const local::RankExited exited = shim.Await(Agent::kExited).exited();
  std::ostringstream expected;
  for (int i = 1; i <= 60'000; ++i) {
    expected << i << '\n';
  }
  CHECK(exited.log_bytes() == 2 * expected.str().size());
  process::OutputReader reader(shim.log_path(0));
  std::string out;
  std::string err;
  while (const auto run = reader.Next().value()) {
    (run->stream == OutputStream::kStdout ? out : err) += run->bytes;
  }
  CHECK(reader.HasAll(exited.log_bytes()));
  CHECK(out == expected.str());
  CHECK(err == expected.str());
  CHECK(exited.last_output().size() <= process::kLastOutputBytes);
  CHECK(std::filesystem::exists(shim.log_path(0) + ".3.idx"));
}

TEST_CASE("a shim with a rank fits into 3 MiB", "[shim_program]") {
  ShimProgram shim;
  shim.Hello();
  shim.StartShell(0, "seq 1 100000; exec sleep 1000");
  shim.Await(Agent::kStarted);
  shim.Hello();
  shim.Await(Agent::kHello);
  std::ifstream status("/proc/" + std::to_string(shim.process().pid()) + "/status");
  std::string line;
  long kib = 0;
  while (std::getline(status, line)) {
    if (line.rfind("VmRSS:", 0) == 0) {
      kib = std::atol(line.c_str() + 6);
    }
  }
  std::cout << "rayctl-shim with one rank: " << kib << " KiB resident\n";
  CHECK(kib > 0);
  // The bar is for what users run; without optimisation the code alone is larger, with a sanitizer so is everything.
#if defined(__OPTIMIZE__) && !defined(RAYCTL_SANITIZED)
  CHECK(kib <= 3 * 1024);
#elif !defined(RAYCTL_SANITIZED)
  CHECK(kib <= 5 * 1024);
#endif
}

}  // namespace
}  // namespace rayctl::shim
