#include "working_dir/shared_tree.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/working_dir/temporary_folder.h"

namespace rayctl::working_dir {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

TEST_CASE("the last one out removes the folder") {
  const TemporaryFolder at;
  at.Write("shared/a/b", "x");
  fs::permissions(at / "shared/a", fs::perms::owner_read | fs::perms::owner_exec);
  absl::StatusOr<SharedTree> one = SharedTree::Enter(at / "shared");
  absl::StatusOr<SharedTree> two = SharedTree::Enter(at / "shared");
  REQUIRE(one.ok());
  REQUIRE(two.ok());
  CHECK(one->Leave().ok());
  CHECK(fs::exists(at / "shared/a/b"));
  CHECK(one->Leave().ok());  // It is out already.
  CHECK(fs::exists(at / "shared/a/b"));
  CHECK(two->Leave().ok());
  CHECK(!fs::exists(at / "shared"));
  CHECK(SharedTree::Enter(at / "shared").status().code() == absl::StatusCode::kNotFound);
}

TEST_CASE("one that died counts as out, and one of no folder removes nothing") {
  const TemporaryFolder at;
  at.Write("shared/a", "x");
  absl::StatusOr<SharedTree> living = SharedTree::Enter(at / "shared");
  REQUIRE(living.ok());
  {
    const absl::StatusOr<SharedTree> died = SharedTree::Enter(at / "shared");
    REQUIRE(died.ok());
  }
  CHECK(fs::exists(at / "shared/a"));
  CHECK(SharedTree().Leave().ok());
  CHECK(living->Leave().ok());
  CHECK(!fs::exists(at / "shared"));
}

}  // namespace
}  // namespace rayctl::working_dir
