#include "daemon/net/kept_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

namespace rayctl::net {
namespace {

namespace fs = std::filesystem;

std::string Read(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

fs::path TemporaryFolder() {
  std::string pattern = (fs::temp_directory_path() / "rayctl-test-XXXXXX").string();
  return ::mkdtemp(pattern.data());
}

struct Kept {
  Kept() = default;
  ~Kept() { fs::remove_all(root); }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  // Lets the loop see losses until the file was made again, or could not be.
  absl::Status NextLoss() {
    loss.reset();
    while (!loss) {
      REQUIRE(loop.run_one() == 1);  // Otherwise nobody watches any more.
    }
    return *loss;
  }

  fs::path root = TemporaryFolder();
  fs::path folder = root / "user" / "node";
  boost::asio::io_context loop;
  std::optional<absl::Status> loss;
  KeptFile file{loop, folder / "head.json", [this](const absl::Status& made) { loss = made; }};
};

TEST_CASE("a kept file is made again with its folders, whatever was removed", "[net]") {
  Kept kept;
  REQUIRE(kept.file.Keep("here").ok());
  CHECK(Read(kept.folder / "head.json") == "here");
  SECTION("the file") { fs::remove(kept.folder / "head.json"); }
  SECTION("its folder") { fs::remove_all(kept.folder); }
  SECTION("both folders") { fs::remove_all(kept.folder.parent_path()); }
  SECTION("the file, moved") { fs::rename(kept.folder / "head.json", kept.folder / "old"); }
  SECTION("its folder, moved") { fs::rename(kept.folder, kept.root / "old"); }
  SECTION("both folders, moved") { fs::rename(kept.folder.parent_path(), kept.root / "old"); }
  CHECK(kept.NextLoss().ok());
  CHECK(Read(kept.folder / "head.json") == "here");
  CHECK(fs::status(kept.folder).permissions() == fs::perms::owner_all);
  fs::remove_all(kept.folder);  // And it is kept on.
  CHECK(kept.NextLoss().ok());
  CHECK(Read(kept.folder / "head.json") == "here");
}

TEST_CASE("what somebody else put in the folder's place is left alone", "[net]") {
  Kept kept;
  REQUIRE(kept.file.Keep("here").ok());
  fs::remove_all(kept.folder);
  std::ofstream(kept.folder) << "not ours";
  CHECK(absl::IsPermissionDenied(kept.NextLoss()));
  CHECK(Read(kept.folder) == "not ours");
}

TEST_CASE("a file that is let go may be removed", "[net]") {
  Kept kept;
  REQUIRE(kept.file.Keep("here").ok());
  kept.file.LetGo();
  fs::remove_all(kept.folder);
  kept.loop.run();  // Nothing is left to wait for.
  CHECK_FALSE(kept.loss);
  CHECK_FALSE(fs::exists(kept.folder));
}

}  // namespace
}  // namespace rayctl::net
