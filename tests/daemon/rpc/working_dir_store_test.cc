#include "daemon/rpc/working_dir_store.h"

#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/status_text.h"

namespace rayctl::rpc {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string name = fs::temp_directory_path() / "rayctl-store-XXXXXX";
    path = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::size_t Files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(path), fs::directory_iterator()));
  }
  std::string path;
};

std::string DigestOf(const std::string& bytes) {
  working_dir::Sha256 hash;
  hash.Add(bytes);
  return hash.Hex();
}

std::string Put(WorkingDirStore& store, const std::string& bytes) {
  const std::string digest = DigestOf(bytes);
  const auto upload = store.Begin(digest);
  REQUIRE(upload.ok());
  REQUIRE((*upload)->Add(std::string_view(bytes).substr(0, 1)).ok());
  REQUIRE((*upload)->Add(std::string_view(bytes).substr(1)).ok());
  REQUIRE((*upload)->Finish().ok());
  return digest;
}

TEST_CASE("what was put is there whole, also for the next head", "[working_dir]") {
  const Folder folder;
  std::string digest;
  {
    const auto store = WorkingDirStore::Open(folder.path);
    REQUIRE(store.ok());
    digest = Put(**store, "the archive");
    CHECK((*store)->Has(digest));
    CHECK(!(*store)->Has(DigestOf("another")));
    CHECK((*store)->Read(DigestOf("another")).status().code() == absl::StatusCode::kNotFound);
  }
  std::ofstream(folder.path + "/" + DigestOf("cut") + "-1.part") << "cu";
  const auto store = WorkingDirStore::Open(folder.path);
  REQUIRE(store.ok());
  CHECK((*store)->Has(digest));
  CHECK(folder.Files() == 1);
  const auto file = (*store)->Read(digest);
  REQUIRE(file.ok());
  std::array<char, 32> bytes{};
  CHECK(::read(file->get(), bytes.data(), bytes.size()) == 11);
  CHECK(std::string(bytes.data()) == "the archive");
}

TEST_CASE("an upload that is wrong or given up leaves nothing", "[working_dir]") {
  const Folder folder;
  const auto store = WorkingDirStore::Open(folder.path);
  REQUIRE(store.ok());
  {
    const auto upload = (*store)->Begin(DigestOf("right"));
    REQUIRE(upload.ok());
    REQUIRE((*upload)->Add("wrong").ok());
    CHECK((*upload)->Finish().code() == absl::StatusCode::kInvalidArgument);
  }
  {
    const auto upload = (*store)->Begin(DigestOf("right"));
    REQUIRE(upload.ok());
    REQUIRE((*upload)->Add("rig").ok());
  }
  CHECK(!(*store)->Has(DigestOf("right")));
  CHECK(folder.Files() == 0);
  for (const std::string name : {"", "../x", "ABC"}) {
    CHECK((*store)->Begin(name).status().code() == absl::StatusCode::kInvalidArgument);
  }
}

TEST_CASE("so many uploads at once and no more", "[working_dir]") {
  const Folder folder;
  const auto store = WorkingDirStore::Open(folder.path);
  REQUIRE(store.ok());
  std::vector<std::unique_ptr<WorkingDirStore::Upload>> uploads;
  for (std::size_t i = 0; i < kUploadsMax; ++i) {
    auto upload = (*store)->Begin(DigestOf("same"));
    REQUIRE(upload.ok());
    uploads.push_back(*std::move(upload));
  }
  CHECK((*store)->Begin(DigestOf("same")).status().code() == absl::StatusCode::kResourceExhausted);
  uploads.pop_back();
  CHECK((*store)->Begin(DigestOf("same")).ok());
}

TEST_CASE("what was not used for the longest goes, what a job needs stays", "[working_dir]") {
  const Folder folder;
  const auto opened = WorkingDirStore::Open(folder.path, 30);
  REQUIRE(opened.ok());
  WorkingDirStore& store = **opened;
  const std::string a = Put(store, std::string(10, 'a'));
  const std::string b = Put(store, std::string(10, 'b'));
  const std::string c = Put(store, std::string(10, 'c'));
  CHECK(store.MakeRoom({}, c).ok());
  CHECK(store.Has(a));  // Used now: b is the oldest.
  const std::string d = Put(store, std::string(10, 'd'));
  CHECK(store.MakeRoom({}, d).ok());
  CHECK(!store.Has(b));
  CHECK(folder.Files() == 3);
  const std::string e = Put(store, std::string(20, 'e'));
  CHECK(store.MakeRoom({a}, e).ok());
  CHECK(store.Has(a));
  CHECK(!store.Has(c));
  CHECK(!store.Has(d));
  CHECK(store.Has(e));
  SECTION("no room beside what jobs need") {
    const std::string f = Put(store, std::string(15, 'f'));
    const absl::Status full = store.MakeRoom({a, e}, f);
    CHECK(full.code() == absl::StatusCode::kResourceExhausted);
    CHECK(rayctl::Text(full).find("working_dirs_bytes_max") != std::string::npos);
    CHECK(!store.Has(f));
    CHECK(store.Has(a));
    CHECK(store.Has(e));
    CHECK(folder.Files() == 2);
  }
}

}  // namespace
}  // namespace rayctl::rpc
