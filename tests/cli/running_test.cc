#include "cli/running.h"

#include <unistd.h>

#include <catch2/catch.hpp>

namespace rayctl::cli {
namespace {

using Words = std::vector<std::string>;

TEST_CASE("a head, an agent and a shim are known by their words", "[cli]") {
  const RunningProgram head = ReadProgram({"/opt/bin/rayctl", "head", "--state-dir", "/s", "--run-dir", "/r/1"});
  CHECK(head.verb == "head");
  CHECK(head.state_dir == "/s");
  CHECK(head.run_dir == "/r/1");
  const RunningProgram agent =
      ReadProgram({"rayctl", "agent", "--node-name", "b", "--run-dir", "/r/2", "--state-dir", "/s"});
  CHECK(agent.verb == "agent");
  CHECK(agent.node_name == "b");
  CHECK(ReadProgram({"/opt/bin/rayctl-shim", "--job", "1", "--state-dir", "/s", "--run-dir", "/r"}).verb == "shim");
}

TEST_CASE("nothing else is taken for one", "[cli]") {
  const auto words = GENERATE(values<Words>({
      {},
      {""},
      {"rayctl"},
      {"rayctl", "head"},
      {"rayctl", "start", "--state-dir", "/s", "--run-dir", "/r"},
      {"rayctl", "head", "--state-dir", "/s", "--run-dir"},
      {"vi", "head", "--state-dir", "/s", "--run-dir", "/r"},
      {"sh", "-c", "rayctl agent --state-dir /s --run-dir /r"},
      {"my-rayctl-shim", "--state-dir", "/s", "--run-dir", "/r"},
  }));
  CHECK(ReadProgram(words).verb.empty());
}

TEST_CASE("this very test is no daemon", "[cli]") {
  for (const RunningProgram& program : FindPrograms()) {
    CHECK(program.pid != ::getpid());
    CHECK(program.start_ticks != 0);
  }
}

}  // namespace
}  // namespace rayctl::cli
