#include "base/whole_files.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace rayctl {
namespace {

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "rayctl-test-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string In(const char* name) const { return path_ + "/" + name; }
  std::ptrdiff_t Files() const {
    return std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator());
  }

 private:
  std::string path_;
};

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST_CASE("files are written together, for their owner alone, over what was there", "[base]") {
  const Folder folder;
  std::ofstream(folder.In("a")) << "something longer than what comes";
  const auto write = GENERATE(WriteWhole, WriteDurably);
  REQUIRE(write({{folder.In("a"), "one"}, {folder.In("b"), ""}}).ok());
  CHECK(Contents(folder.In("a")) == "one");
  CHECK(Contents(folder.In("b")).empty());
  CHECK(folder.Files() == 2);
  for (const char* const name : {"a", "b"}) {
    struct stat info {};
    REQUIRE(::stat(folder.In(name).c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0600);
  }
}

TEST_CASE("where one file cannot be written none is put in place", "[base]") {
  const Folder folder;
  std::ofstream(folder.In("a")) << "old";
  for (const auto write : {WriteWhole, WriteDurably}) {
    CHECK(write({{folder.In("a"), "new"}, {folder.In("none/b"), "new"}}).code() == absl::StatusCode::kNotFound);
    CHECK(Contents(folder.In("a")) == "old");
    CHECK(folder.Files() == 1);
    CHECK(write({}).ok());
  }
}

TEST_CASE("what cannot be put in place leaves nothing behind", "[base]") {
  const Folder folder;
  std::filesystem::create_directory(folder.In("a"));
  for (const auto write : {WriteWhole, WriteDurably}) {
    CHECK_FALSE(write({{folder.In("a"), "new"}}).ok());
    CHECK(folder.Files() == 1);
  }
}

}  // namespace
}  // namespace rayctl
