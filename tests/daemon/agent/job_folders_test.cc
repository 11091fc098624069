#include "daemon/agent/job_folders.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "daemon/agent/identity_store.h"

namespace rayctl::agent {
namespace {

namespace fs = std::filesystem;

const std::string kOne(64, '1');
const std::string kTwo(64, '2');

struct State {
  State() {
    std::string name = (fs::temp_directory_path() / "rayctl-jobs-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~State() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }

  absl::Status Settle(const std::string& cluster) {
    return SettleJobFolders(path, cluster, [this] {
      ++ends;
      jobs_were_there = fs::exists(path + "/jobs");
      return end_result;
    });
  }
  void Put(const std::string& file) const {
    fs::create_directories(fs::path(path + "/" + file).parent_path());
    std::ofstream(path + "/" + file) << "old";
  }
  bool Has(const std::string& file) const { return fs::exists(path + "/" + file); }

  std::string path;
  int ends = 0;
  bool jobs_were_there = false;
  absl::Status end_result;
};

TEST_CASE("a cluster keeps its jobs over restarts", "[job_folders]") {
  State state;
  REQUIRE(state.Settle(kOne).ok());
  state.Put("jobs/1/work/file");
  REQUIRE(state.Settle(kOne).ok());
  CHECK(state.Has("jobs/1/work/file"));
  CHECK(state.ends == 0);
}

TEST_CASE("another cluster sees nothing of the jobs before it, and each finds its own again", "[job_folders]") {
  State state;
  REQUIRE(state.Settle(kOne).ok());
  state.Put("jobs/1/work/of-one");
  REQUIRE(state.Settle(kTwo).ok());
  CHECK(state.ends == 1);
  CHECK(state.jobs_were_there);  // The shims end before their folders move.
  CHECK_FALSE(state.Has("jobs/1"));
  CHECK(state.Has("jobs-1111111111111111/1/work/of-one"));
  state.Put("jobs/1/work/of-two");

  REQUIRE(state.Settle(kOne).ok());
  CHECK(state.ends == 2);
  CHECK(state.Has("jobs/1/work/of-one"));
  CHECK_FALSE(state.Has("jobs/1/work/of-two"));
  CHECK_FALSE(state.Has("jobs-1111111111111111"));
  CHECK(state.Has("jobs-2222222222222222/1/work/of-two"));
}

TEST_CASE("a move that was cut short is finished by the next start", "[job_folders]") {
  State state;
  REQUIRE(state.Settle(kOne).ok());
  state.Put("jobs/1/work/of-one");
  fs::rename(state.path + "/jobs", state.path + "/jobs-1111111111111111");  // And then the machine lost its power.
  REQUIRE(state.Settle(kOne).ok());
  CHECK(state.Has("jobs/1/work/of-one"));
}

TEST_CASE("jobs stay where they are when their shims do not end", "[job_folders]") {
  State state;
  REQUIRE(state.Settle(kOne).ok());
  state.Put("jobs/1/work/of-one");
  state.end_result = absl::UnavailableError("it does not end");
  CHECK_FALSE(state.Settle(kTwo).ok());
  CHECK(state.Has("jobs/1/work/of-one"));
}

TEST_CASE("jobs of nobody knows whom are nobody's", "[job_folders]") {
  State state;
  for (const char* const folder : {"jobs-unknown", "jobs-unknown.2"}) {
    state.Put("jobs/1/work/file");
    fs::remove(state.path + "/jobs/cluster");
    REQUIRE(state.Settle(kOne).ok());
    CHECK_FALSE(state.Has("jobs/1"));
    CHECK(state.Has(std::string(folder) + "/1/work/file"));
  }
}

TEST_CASE("without TLS the head's address tells clusters apart", "[job_folders]") {
  const State state;
  CHECK(ClusterOf({.state_dir = state.path, .address = "127.0.0.1:1", .insecure = true}) !=
        ClusterOf({.state_dir = state.path, .address = "127.0.0.1:2", .insecure = true}));
  CHECK(ClusterOf({.state_dir = state.path, .address = "127.0.0.1:1"}).empty());
}

}  // namespace
}  // namespace rayctl::agent
