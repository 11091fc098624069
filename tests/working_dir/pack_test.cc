#include "working_dir/pack.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status_text.h"
#include "tests/working_dir/temporary_folder.h"
#include "working_dir/digest.h"
#include "working_dir/tree.h"
#include "working_dir/unpack.h"

namespace rayctl::working_dir {
namespace {

namespace fs = std::filesystem;
using test::Read;
using test::TemporaryFolder;

std::vector<std::string> Paths(const Listing& listing) {
  std::vector<std::string> paths;
  for (const Entry& entry : listing.entries) {
    paths.push_back(entry.path);
  }
  return paths;
}

Packed PackAll(const std::string& folder) {
  const absl::StatusOr<Listing> listing = List(folder);
  REQUIRE(listing.ok());
  absl::StatusOr<Packed> packed = Pack(folder, *listing, [](std::uint64_t) {});
  REQUIRE(packed.ok());
  return *std::move(packed);
}

// What the round trip must keep, in a folder of its own.
void FillFolder(const TemporaryFolder& at, const std::string& name) {
  at.Write(name + "/train.py", "print(1)\n");
  at.Write(name + "/run me.sh", "#!/bin/sh\n");
  fs::permissions(at / (name + "/run me.sh"), fs::perms::owner_all);
  at.Write(name + "/données/ünï 文.txt", std::string(300'000, 'x'));
  at.Write(name + "/bytes-\xff\xfe", "not UTF-8");
  at.Write(name + "/" + std::string(200, 'l') + "/" + std::string(200, 'm'), "long");
  at.Write(name + "/empty", "");
  fs::create_directory(at / (name + "/nothing in it"));
  fs::create_symlink("train.py", at / (name + "/link"));
  fs::create_symlink("../train.py", at / (name + "/données/up"));
  fs::create_symlink("not there", at / (name + "/dangling"));
}

TEST_CASE("what was packed comes out the same, read-only, and its copy can be written") {
  const TemporaryFolder at;
  FillFolder(at, "in");
  const Packed packed = PackAll(at / "in");
  CHECK(IsDigest(packed.digest));
  const absl::StatusOr<std::uint64_t> bytes = Unpack(packed.archive.get(), at / "out");
  INFO(rayctl::Text(bytes.status()));
  REQUIRE(bytes.ok());
  CHECK(*bytes == *TreeBytes(at / "in"));
  REQUIRE(CopyTree(at / "out", at / "copy").ok());
  for (const std::string folder : {"out", "copy"}) {
    CHECK(Read(at / (folder + "/train.py")) == "print(1)\n");
    CHECK(Read(at / (folder + "/données/ünï 文.txt")).size() == 300'000);
    CHECK(Read(at / (folder + "/bytes-\xff\xfe")) == "not UTF-8");
    CHECK(Read(at / (folder + "/" + std::string(200, 'l') + "/" + std::string(200, 'm'))) == "long");
    CHECK(fs::is_empty(at / (folder + "/nothing in it")));
    CHECK(fs::file_size(at / (folder + "/empty")) == 0);
    CHECK(fs::read_symlink(at / (folder + "/link")) == "train.py");
    CHECK(Read(at / (folder + "/données/up")) == "print(1)\n");
    CHECK(fs::read_symlink(at / (folder + "/dangling")) == "not there");
  }
  const auto mode = [&](const std::string& path) {
    struct stat info {};
    REQUIRE(::lstat((at / path).c_str(), &info) == 0);
    return info.st_mode & 07777;
  };
  CHECK(mode("out/train.py") == 0444);
  CHECK(mode("out/run me.sh") == 0555);
  CHECK(mode("out/données") == 0555);
  CHECK(mode("out") == 0555);
  CHECK((mode("copy/train.py") & 0700) == 0600);
  CHECK((mode("copy/run me.sh") & 0700) == 0700);
  CHECK((mode("copy/données") & 0700) == 0700);
  // The same again, from the copy: read-only or not, and whenever it was written, is no difference.
  CHECK(PackAll(at / "copy").digest == packed.digest);
  CHECK(PackAll(at / "out").digest == packed.digest);
  REQUIRE(RemoveTree(at / "out").ok());
  CHECK(!fs::exists(at / "out"));
}

TEST_CASE("equal folders have one digest, and every difference that counts another") {
  const TemporaryFolder at;
  FillFolder(at, "a");
  FillFolder(at, "b");
  fs::last_write_time(at / "b/train.py", fs::file_time_type::clock::now() - std::chrono::hours(1000));
  fs::permissions(at / "b/train.py", fs::perms::owner_read | fs::perms::owner_write);
  const std::string digest = PackAll(at / "a").digest;
  CHECK(PackAll(at / "b").digest == digest);
  SECTION("contents") { at.Write("b/train.py", "print(2)\n"); }
  SECTION("a name") { fs::rename(at / "b/train.py", at / "b/train2.py"); }
  SECTION("the executable bit") { fs::permissions(at / "b/train.py", fs::perms::owner_all); }
  SECTION("where a link leads") {
    fs::remove(at / "b/link");
    fs::create_symlink("empty", at / "b/link");
  }
  SECTION("an empty folder") { fs::create_directory(at / "b/another"); }
  CHECK(PackAll(at / "b").digest != digest);
}

TEST_CASE("ignore files are honoured, the first of each folder, and .git never goes along") {
  const TemporaryFolder at;
  at.Write("in/.git/config", "");
  at.Write("in/sub/.git", "gitdir: elsewhere");
  at.Write("in/.gitignore", "train.py\n");
  at.Write("in/.rayignore", "*.log\n!keep.log\n/data/\n");
  at.Write("in/train.py", "");
  at.Write("in/a.log", "");
  at.Write("in/keep.log", "");
  at.Write("in/data/big", "");
  at.Write("in/sub/data/small", "");
  at.Write("in/sub/.gitignore", "!a.log\nsmall\n");
  at.Write("in/sub/a.log", "");
  absl::StatusOr<Listing> listing = List(at / "in");
  REQUIRE(listing.ok());
  CHECK(Paths(*listing) == std::vector<std::string>{".gitignore", ".rayignore", "keep.log", "sub", "sub/.gitignore",
                                                    "sub/a.log", "sub/data", "train.py"});
  at.Write("in/.rayctlignore", "/*\n!/train.py\n");
  listing = List(at / "in");
  REQUIRE(listing.ok());
  CHECK(Paths(*listing) == std::vector<std::string>{"train.py"});
}

TEST_CASE("a folder over the limit is refused with what is largest and what to do") {
  const TemporaryFolder at;
  at.Write("in/small", "x");
  at.Write("in/data/huge", "");
  at.Write("in/model.bin", "");
  fs::resize_file(at / "in/data/huge", std::uint64_t{501} << 20);  // Takes no room on disk.
  fs::resize_file(at / "in/model.bin", std::uint64_t{3} << 20);
  const absl::StatusOr<Listing> listing = List(at / "in");
  CHECK(listing.status().code() == absl::StatusCode::kResourceExhausted);
  const std::string text = rayctl::Text(listing.status());
  INFO(text);
  CHECK(text.find("500 MiB") != std::string::npos);
  CHECK(text.find("data (501 MiB), model.bin (3 MiB), small (1 B)") != std::string::npos);
  CHECK(text.find(".rayctlignore, .rayignore or .gitignore") != std::string::npos);
  at.Write("in/.rayctlignore", "/data/\n");
  CHECK(List(at / "in").ok());
}

TEST_CASE("a link out of the folder is refused by name") {
  const TemporaryFolder at;
  at.Write("in/a", "");
  fs::create_directory(at / "in/sub");
  fs::create_symlink("/etc/passwd", at / "in/sub/out");
  const absl::StatusOr<Listing> listing = List(at / "in");
  CHECK(listing.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(rayctl::Text(listing.status()).find("the link sub/out leads to /etc/passwd") == 0);
}

TEST_CASE("links may lead anywhere inside and nowhere else") {
  struct Row {
    std::string path;
    std::string target;
    bool inside;
  };
  const std::vector<Row> rows{
      {"a", "b", true},
      {"a", "./b/c", true},
      {"d/a", "../b", true},
      {"d/e/a", "../../b", true},
      {"a", "..", false},
      {"a", "../b", false},
      {"d/a", "../../b", false},
      {"a", "/b", false},
      {"a", "", false},
      {"d/a", "..", true},
      {"a", "b/..", false},
      {"a", "b/../../c", false},
      {"d/a", "../b/../c", false},
      {"a", ".", true},
      {"a", "..b", true},
      {"a", "b/...", true},
  };
  for (const Row& row : rows) {
    INFO(row.path << " -> " << row.target);
    CHECK(CheckLink(row.path, row.target).ok() == row.inside);
  }
}

TEST_CASE("a file that grows or shrinks while it is packed is told of") {
  const TemporaryFolder at;
  at.Write("in/a", "12345");
  const absl::StatusOr<Listing> listing = List(at / "in");
  REQUIRE(listing.ok());
  at.Write("in/a", GENERATE("1234", "123456"));
  const absl::StatusOr<Packed> packed = Pack(at / "in", *listing, [](std::uint64_t) {});
  CHECK(packed.status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(rayctl::Text(packed.status()).find("changed while it was packed") != std::string::npos);
}

TEST_CASE("what no archive holds is left out and named") {
  const TemporaryFolder at;
  at.Write("in/a", "");
  REQUIRE(::mkfifo((at / "in/pipe").c_str(), 0600) == 0);
  const absl::StatusOr<Listing> listing = List(at / "in");
  REQUIRE(listing.ok());
  CHECK(Paths(*listing) == std::vector<std::string>{"a"});
  CHECK(listing->left_out == std::vector<std::string>{"pipe"});
}

}  // namespace
}  // namespace rayctl::working_dir
