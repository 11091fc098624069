#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "absl/status/status.h"
#include "cli/call.h"
#include "cli/command_line.h"
#include "cli/daemon_process.h"
#include "cli/job_request.h"
#include "cli/pairs.h"
#include "cli/places.h"
#include "cli/submit.h"

namespace rayctl::cli {
namespace {

TEST_CASE("a slip of the pen finds the word that was meant", "[cli]") {
  const std::vector<std::string> verbs{"start", "stop", "status", "submit", "wait", "cancel", "logs", "list"};
  CHECK(Nearest("sttaus", verbs) == "status");
  CHECK(Nearest("submti", verbs) == "submit");
  CHECK(Nearest("STOP", verbs) == "stop");
  CHECK_FALSE(Nearest("frobnicate", verbs).has_value());
  CHECK_FALSE(Nearest(std::string(100'000, 's'), verbs).has_value());
  CHECK(DidYouMean("--num-worker", {"--num-workers", "--name"}) == "; did you mean --num-workers?");
}

TEST_CASE("submit has one grammar", "[cli]") {
  const auto is_command = [](const SubmitForm& form) { return std::holds_alternative<CommandForm>(form); };
  const auto is_nothing = [](const SubmitForm& form) { return std::holds_alternative<NoForm>(form); };
  const SubmitForm command = FormOf({}, {"echo", "hi", "--", "x"}, true);
  REQUIRE(is_command(command));
  CHECK(std::get<CommandForm>(command).argv == std::vector<std::string>{"echo", "hi", "--", "x"});
  CHECK(is_nothing(FormOf({}, {}, true)));
  CHECK(is_nothing(FormOf({"job.yaml"}, {"echo"}, true)));
  CHECK(is_nothing(FormOf({}, {}, false)));
  CHECK(is_nothing(FormOf({"echo", "hi"}, {}, false)));
  CHECK(is_nothing(FormOf({"job.yaml", "extra"}, {}, false)));
  CHECK(std::holds_alternative<JobFileForm>(FormOf({"job.yaml"}, {}, false)));
  CHECK(std::holds_alternative<JobFileForm>(FormOf({"job.yml"}, {}, false)));
  const SubmitForm driver = FormOf({"train.py", "--lr", "1"}, {}, false);
  REQUIRE(std::holds_alternative<DriverForm>(driver));
  CHECK(std::get<DriverForm>(driver).script == "train.py");
  CHECK(std::get<DriverForm>(driver).arguments == std::vector<std::string>{"--lr", "1"});

  std::string folder = (std::filesystem::temp_directory_path() / "rayctl-submit-XXXXXX").string();
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  const std::string path = folder + "/cluster.yaml";
  std::ofstream(path) << "provider: {type: aws}\n";
  CHECK(std::holds_alternative<ClusterForm>(FormOf({path, "train.py"}, {}, false)));
  std::filesystem::remove_all(folder);
}

TEST_CASE("the usage of submit has four lines", "[cli]") {
  const std::string usage = SubmitUsage();
  CHECK(std::count(usage.begin(), usage.end(), '\n') == 4);
}

TEST_CASE("exit codes tell who is to blame", "[cli]") {
  CHECK(ExitCodeOf(absl::OkStatus()) == 0);
  CHECK(ExitCodeOf(absl::UnavailableError("")) == 3);
  CHECK(ExitCodeOf(absl::DeadlineExceededError("")) == 3);
  CHECK(ExitCodeOf(absl::InvalidArgumentError("")) == 2);
  for (const absl::Status& refusal :
       {absl::UnauthenticatedError(""), absl::PermissionDeniedError(""), absl::NotFoundError(""),
        absl::FailedPreconditionError(""), absl::AlreadyExistsError(""), absl::ResourceExhaustedError(""),
        absl::InternalError("")}) {
    CHECK(ExitCodeOf(refusal) == 1);
  }
}

TEST_CASE("pairs and amounts are lists or JSON", "[cli]") {
  CHECK(*ParsePairs("rack=r1, zone = z") == std::map<std::string, std::string>{{"rack", "r1"}, {"zone", "z"}});
  CHECK(*ParsePairs(R"({"rack": "r1", "n": 2})") == std::map<std::string, std::string>{{"rack", "r1"}, {"n", "2"}});
  CHECK(ParsePairs("")->empty());
  CHECK_FALSE(ParsePairs("rack").ok());
  CHECK_FALSE(ParsePairs("a=1,a=2").ok());
  CHECK_FALSE(ParsePairs("{").ok());
  CHECK(*ParseAmounts("license=2,memory=1KiB") == std::map<std::string, double>{{"license", 2}, {"memory", 1024}});
  CHECK_FALSE(ParseAmounts("license=-1").ok());
  CHECK_FALSE(ParseAmounts("license=many").ok());
}

TEST_CASE("a daemon's ready line is its word or its error", "[cli]") {
  const absl::StatusOr<Ready> ready = ParseReady(
      R"({"ok":true,"address":"10.0.0.1:6379","port":6379,"dashboard_url":"http://127.0.0.1:8265","node_id":4,)"
      R"("node_name":"a"})");
  REQUIRE(ready.ok());
  CHECK(ready->address == "10.0.0.1:6379");
  CHECK(ready->dashboard_url == "http://127.0.0.1:8265");
  CHECK(ready->node_id == 4);
  CHECK(ready->node_name == "a");
  const absl::Status error = ParseReady(R"({"ok":false,"error":"port 6379 is taken"})").status();
  CHECK(error.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(std::string(error.message()) == "port 6379 is taken");
  CHECK(absl::IsInvalidArgument(ParseReady("").status()));
  CHECK(absl::IsInvalidArgument(ParseReady("{\"ok\":tr").status()));
}

TEST_CASE("folders of a node are its owner's alone and move aside whole", "[cli]") {
  std::string root = (std::filesystem::temp_directory_path() / "rayctl-places-XXXXXX").string();
  REQUIRE(::mkdtemp(root.data()) != nullptr);
  const absl::StatusOr<std::string> state = MakeStateDir(root + "/deep/state/");
  REQUIRE(state.ok());
  CHECK(*state == root + "/deep/state");
  CHECK(std::filesystem::status(*state).permissions() == std::filesystem::perms::owner_all);
  {
    const absl::StatusOr<RunDirLock> run_dir = MakeRunDir(root + "/run", *state);
    REQUIRE(run_dir.ok());
    CHECK(run_dir->path == RunDirOf(root + "/run", *state));
    CHECK(std::filesystem::path(run_dir->path).filename().string().size() == 16);
    CHECK(std::filesystem::status(root + "/run").permissions() == std::filesystem::perms::owner_all);
  }
  const absl::StatusOr<std::string> aside = MoveAside(*state);
  REQUIRE(aside.ok());
  CHECK(aside->starts_with(*state + ".old-"));
  CHECK_FALSE(std::filesystem::exists(*state));
  CHECK(MoveAside(*state)->empty());
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace rayctl::cli
