#include "working_dir/unpack.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status_text.h"
#include "base/unique_fd.h"
#include "tests/working_dir/temporary_folder.h"

namespace rayctl::working_dir {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

struct Item {
  std::string path;
  unsigned type = AE_IFREG;
  mode_t mode = 0644;
  std::string contents;
  std::string link;       // Of AE_IFLNK.
  std::string hard_link;  // Not empty: it is one.
};

UniqueFd Archive(const TemporaryFolder& at, const std::vector<Item>& items) {
  const std::string path = at / "archive";
  archive* const writer = ::archive_write_new();
  ::archive_write_set_format_gnutar(writer);
  REQUIRE(::archive_write_open_filename(writer, path.c_str()) == ARCHIVE_OK);
  for (const Item& item : items) {
    archive_entry* const entry = ::archive_entry_new();
    ::archive_entry_copy_pathname(entry, item.path.c_str());
    ::archive_entry_set_filetype(entry, item.type);
    ::archive_entry_set_perm(entry, item.mode);
    if (!item.hard_link.empty()) {
      ::archive_entry_copy_hardlink(entry, item.hard_link.c_str());
    } else if (item.type == AE_IFLNK) {
      ::archive_entry_copy_symlink(entry, item.link.c_str());
    } else if (item.type == AE_IFREG) {
      ::archive_entry_set_size(entry, static_cast<la_int64_t>(item.contents.size()));
    } else if (item.type == AE_IFCHR) {
      ::archive_entry_set_rdevmajor(entry, 1);
      ::archive_entry_set_rdevminor(entry, 3);
    }
    ::archive_write_header(writer, entry);
    if (item.type == AE_IFREG && item.hard_link.empty()) {
      ::archive_write_data(writer, item.contents.data(), item.contents.size());
    }
    ::archive_entry_free(entry);
  }
  ::archive_write_close(writer);
  ::archive_write_free(writer);
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

struct Hostile {
  std::string what;
  std::vector<Item> items;
  std::string message;
};

TEST_CASE("no archive writes, links or makes anything outside of its folder") {
  const std::vector<Hostile> table{
      {"an absolute path", {{.path = "/tmp/x"}}, "no relative path"},
      {"a path up", {{.path = "../outside/victim", .contents = "owned"}}, "leads out"},
      {"a path up from within",
       {{.path = "a", .type = AE_IFDIR}, {.path = "a/../../outside/victim", .contents = "owned"}},
       "leads out"},
      {"a path that is only up", {{.path = "..", .type = AE_IFDIR}}, "leads out"},
      {"a path that is the folder itself", {{.path = ".", .type = AE_IFDIR}}, "leads out"},
      {"an absolute link", {{.path = "a", .type = AE_IFLNK, .link = "/etc/passwd"}}, "out of the working directory"},
      {"a link up", {{.path = "a", .type = AE_IFLNK, .link = "../outside"}}, "out of the working directory"},
      {"a link up behind a link",
       {{.path = "here", .type = AE_IFLNK, .link = "."}, {.path = "a", .type = AE_IFLNK, .link = "here/../outside"}},
       "out of the working directory"},
      {"a file through a link",
       {{.path = "d", .type = AE_IFDIR},
        {.path = "l", .type = AE_IFLNK, .link = "d"},
        {.path = "l/f", .contents = "x"}},
       "opening the folder l"},
      {"a file over a link", {{.path = "d", .type = AE_IFLNK, .link = "f"}, {.path = "d", .contents = "x"}}, "twice"},
      {"the same file twice", {{.path = "f", .contents = "1"}, {.path = "f", .contents = "2"}}, "twice"},
      {"a folder over a file", {{.path = "f"}, {.path = "f", .type = AE_IFDIR}}, "twice"},
      {"a hard link to a file outside",
       {{.path = "a", .mode = 0644, .contents = "", .link = "", .hard_link = "../outside/victim"}},
       "hard link"},
      {"a hard link inside", {{.path = "f"}, {.path = "a", .hard_link = "f"}}, "hard link"},
      {"a device", {{.path = "null", .type = AE_IFCHR}}, "no file, folder or symbolic link"},
      {"a pipe", {{.path = "pipe", .type = AE_IFIFO}}, "no file, folder or symbolic link"},
      {"setuid", {{.path = "su", .mode = 04755}}, "setuid"},
      {"setgid", {{.path = "sg", .mode = 02755}}, "setuid"},
      {"sticky", {{.path = "st", .type = AE_IFDIR, .mode = 01777}}, "setuid"},
      {"a file without its folder", {{.path = "a/b"}}, "opening the folder a"},
      {"folders without end",
       {{.path =
             [] {
               std::string path = "a";
               for (int i = 0; i < 300; ++i) {
                 path += "/a";
               }
               return path;
             }()}},
       "deeper than 256"},
  };
  for (const Hostile& hostile : table) {
    INFO(hostile.what);
    const TemporaryFolder at;
    at.Write("outside/victim", "mine");
    const UniqueFd archive = Archive(at, hostile.items);
    const absl::StatusOr<std::uint64_t> unpacked = Unpack(archive.get(), at / "out");
    INFO(rayctl::Text(unpacked.status()));
    CHECK(unpacked.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(rayctl::Text(unpacked.status()).find(hostile.message) != std::string::npos);
    CHECK(!fs::exists(at / "out"));
    CHECK(test::Read(at / "outside/victim") == "mine");
    CHECK(std::distance(fs::directory_iterator(at / "outside"), fs::directory_iterator()) == 1);
  }
}

// One header of GNU tar's form for a file with holes: one byte at the end of `size`.
std::string SparseArchive(std::uint64_t size) {
  constexpr std::size_t kBlock = 512;
  constexpr std::size_t kChecksum = 148;
  std::string header(kBlock, '\0');
  const auto put = [&header](std::size_t at, const std::string& text) { header.replace(at, text.size(), text); };
  const auto number = [&put](std::size_t at, std::uint64_t value) { put(at, fmt::format("{:011o}", value)); };
  put(0, "holes");
  put(100, "0000644");
  number(124, 1);  // Bytes in the archive.
  put(156, "S");
  put(257, "ustar  ");
  number(386, size - 1);  // Where the data lies,
  number(398, 1);         // and how much.
  number(483, size);
  put(kChecksum, std::string(8, ' '));
  unsigned sum = 0;
  for (const char byte : header) {
    sum += static_cast<unsigned char>(byte);
  }
  put(kChecksum, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
  return header + "x" + std::string(kBlock - 1 + 2 * kBlock, '\0');
}

TEST_CASE("a file with holes is refused, for a few bytes of archive would fill a disk") {
  const TemporaryFolder at;
  at.Write("bytes", SparseArchive(std::uint64_t{1} << 30));
  const UniqueFd file(::open((at / "bytes").c_str(), O_RDONLY | O_CLOEXEC));
  const absl::StatusOr<std::uint64_t> unpacked = Unpack(file.get(), at / "out");
  CHECK(unpacked.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(rayctl::Text(unpacked.status()).find("holes") != std::string::npos);
  CHECK(!fs::exists(at / "out"));
}

TEST_CASE("what is no archive is refused, cut ones too") {
  const TemporaryFolder at;
  const std::string whole = [&] {
    const UniqueFd archive = Archive(at, {{.path = "f", .contents = std::string(5000, 'x')}});
    return test::Read(at / "archive");
  }();
  for (const std::string& bytes :
       {std::string("no archive at all"), std::string(4096, 'z'), whole.substr(0, 700), whole.substr(0, 3000)}) {
    at.Write("bytes", bytes);
    const UniqueFd file(::open((at / "bytes").c_str(), O_RDONLY | O_CLOEXEC));
    const absl::StatusOr<std::uint64_t> unpacked = Unpack(file.get(), at / "out");
    CHECK(unpacked.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(!fs::exists(at / "out"));
  }
}

}  // namespace
}  // namespace rayctl::working_dir
