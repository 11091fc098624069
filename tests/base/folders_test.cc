#include "base/folders.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace rayctl {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string path = (fs::temp_directory_path() / "rayctl-folders-XXXXXX").string();
    REQUIRE(::mkdtemp(path.data()) != nullptr);
    path_ = path;
  }
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }
  void Put(const std::string& name) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << "x";
  }

 private:
  fs::path path_;
};

TEST_CASE("a tree goes with its read-only folders, and what its links lead to stays", "[folders]") {
  const Folder folder;
  folder.Put("outside/kept");
  folder.Put("tree/a/b/file");
  fs::create_directory_symlink(folder.path() / "outside", folder.path() / "tree/a/link");
  fs::create_symlink("nowhere", folder.path() / "tree/dangling");
  for (const char* const closed : {"tree/a/b", "tree/a", "tree"}) {
    REQUIRE(::chmod((folder.path() / closed).c_str(), 0500) == 0);
  }
  REQUIRE(RemoveTree(folder.path() / "tree").ok());
  CHECK_FALSE(fs::exists(folder.path() / "tree"));
  CHECK(fs::exists(folder.path() / "outside/kept"));
}

TEST_CASE("a file, a link to a folder and nothing at all are trees too", "[folders]") {
  const Folder folder;
  folder.Put("outside/kept");
  folder.Put("file");
  fs::create_directory_symlink(folder.path() / "outside", folder.path() / "link");
  for (const char* const name : {"file", "link", "missing"}) {
    CHECK(RemoveTree(folder.path() / name).ok());
    CHECK_FALSE(fs::is_symlink(folder.path() / name));
    CHECK_FALSE(fs::exists(folder.path() / name));
  }
  CHECK(fs::exists(folder.path() / "outside/kept"));
}

TEST_CASE("the names in a folder", "[folders]") {
  const Folder folder;
  folder.Put("b");
  folder.Put(".hidden");
  folder.Put("a/below");
  const UniqueFd open = OpenFolderAt(AT_FDCWD, folder.path());
  for (int again = 0; again < 2; ++again) {  // The descriptor's own place is not moved.
    auto names = NamesIn(open.get(), "folder");
    REQUIRE(names.ok());
    std::sort(names->begin(), names->end());
    CHECK(*names == std::vector<std::string>{".hidden", "a", "b"});
  }
  fs::create_directory_symlink(folder.path(), folder.path() / "link");
  CHECK_FALSE(OpenFolderAt(AT_FDCWD, folder.path() / "link").valid());
  CHECK(absl::IsInternal(NamesIn(-1, "nothing").status()));
}

}  // namespace
}  // namespace rayctl
