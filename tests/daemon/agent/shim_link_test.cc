#include "daemon/agent/shim_link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <variant>

#include "base/unique_fd.h"
#include "fmt/format.h"

namespace rayctl::agent {
namespace {

using namespace std::chrono_literals;

constexpr auto kDeadline = 30s;
constexpr JobId kJob{5};

// A shim that a shell script plays, and what ShimLink says of it.
class ScriptedShim {
 public:
  ScriptedShim(const std::string& script, std::chrono::milliseconds hello_wait) {
    std::string name = (std::filesystem::temp_directory_path() / "rayctl-shim-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    folder = name;
    REQUIRE(::mkfifo((folder + "/said").c_str(), 0600) == 0);
    // Both ends, so that neither side waits for the other to open it.
    said_.Reset(::open((folder + "/said").c_str(), O_RDWR | O_CLOEXEC));
    const std::string program = folder + "/shim";
    std::ofstream(program) << fmt::format("#!/bin/sh\nfolder='{}'\n{}\n", folder, script);
    REQUIRE(::chmod(program.c_str(), 0700) == 0);
    link_.emplace(
        loop_,
        ShimLink::Options{
            .state_dir = folder, .run_dir = folder, .shim_program = program, .spawned_hello_wait = hello_wait},
        [this](const Event& event) {
          if (const auto* const gone = std::get_if<ShimClosed>(&event)) {
            closed = gone->why;
          }
        });
    link_->Spawn({.job = kJob, .agent_grace = 1min});
  }
  ~ScriptedShim() {
    link_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }

  // A line that the script wrote to $folder/said.
  std::string Hear() {
    pollfd ready{said_.get(), POLLIN, 0};
    REQUIRE(::poll(&ready, 1, static_cast<int>(std::chrono::milliseconds(kDeadline).count())) == 1);
    std::string line;
    for (char c = 0; ::read(said_.get(), &c, 1) == 1 && c != '\n';) {
      line += c;
    }
    return line;
  }
  void RunUntilClosed() {
    const auto end = std::chrono::steady_clock::now() + kDeadline;
    while (!closed && std::chrono::steady_clock::now() < end) {
      loop_.run_one_until(end);
    }
    REQUIRE(closed);
  }

  std::string folder;
  std::optional<std::string> closed;

 private:
  UniqueFd said_;
  boost::asio::io_context loop_;
  std::optional<ShimLink> link_;
};

TEST_CASE("a shim that never says hello is given up", "[shim_link]") {
  ScriptedShim shim("exec cat \"$folder/said\"", 50ms);
  shim.RunUntilClosed();
  CHECK(shim.closed->find("it does not answer") != std::string::npos);
}

TEST_CASE("what a killed shim's ranks left in sessions of their own is killed, and nothing else", "[shim_link]") {
  ScriptedShim shim(
      "export RAYCTL_SHIM_MARK=$$.0.0.0\n"
      "export RAYCTL_SOCKET=\"$folder/rank-5.sock\"\n"
      "setsid sh -c 'echo left $$ >$0; exec sleep 300' \"$folder/said\" 3>&- &\n"
      "RAYCTL_SOCKET=/elsewhere/rank-5.sock setsid sh -c 'echo stranger $$ >$0; exec sleep 300' \"$folder/said\" 3>&- "
      "&\n"
      "sh -c 'echo child $$ >$0; exec sleep 300' \"$folder/said\" 3>&- &\n"
      "echo shim $$ >\"$folder/said\"; wait",
      1min);
  // None but the shim has the agent's socket, as no rank has.
  std::map<std::string, pid_t> pids;
  std::map<std::string, UniqueFd> pidfds;
  for (int i = 0; i < 4; ++i) {
    const std::string line = shim.Hear();
    const std::string who = line.substr(0, line.find(' '));
    pids[who] = static_cast<pid_t>(std::stol(line.substr(who.size() + 1)));
    pidfds[who].Reset(static_cast<int>(::syscall(SYS_pidfd_open, pids[who], 0)));
  }
  REQUIRE(pids.size() == 4);
  REQUIRE(::kill(pids["shim"], SIGKILL) == 0);
  shim.RunUntilClosed();
  CHECK(shim.closed->find("signal 9") != std::string::npos);
  for (const auto& [who, pidfd] : pidfds) {
    CAPTURE(who);
    pollfd ended{pidfd.get(), POLLIN, 0};
    if (who == "stranger") {
      CHECK(::poll(&ended, 1, 0) == 0);
      ::kill(pids[who], SIGKILL);
    }
    CHECK(::poll(&ended, 1, static_cast<int>(std::chrono::milliseconds(kDeadline).count())) == 1);
  }
}

}  // namespace
}  // namespace rayctl::agent
