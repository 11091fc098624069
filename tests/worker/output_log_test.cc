#include "worker/process/output_log.h"

#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/worker/temp_dir.h"
#include "worker/process/output_reader.h"

namespace rayctl::process {
namespace {

constexpr WallTime kNow{std::chrono::seconds(1'000)};

std::string FileText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Got {
  OutputStream stream;
  std::string bytes;
  friend bool operator==(const Got&, const Got&) = default;
};

std::vector<Got> ReadAll(OutputReader& reader) {
  std::vector<Got> result;
  while (true) {
    const auto run = reader.Next();
    INFO(run.status().ToString());
    REQUIRE(run.ok());
    if (!run->has_value()) {
      return result;
    }
    CHECK((*run)->bytes.size() <= OutputReader::kRunBytesMax);
    result.push_back({(*run)->stream, (*run)->bytes});
  }
}

TEST_CASE("the log holds the raw bytes, the index what came on which stream", "[output_log]") {
  const TempDir dir;
  const std::string path = dir.path() + "/logs/attempt_0/rank_0.log";
  OutputLog log = OutputLog::Open({path}).value();
  REQUIRE(log.Append(OutputStream::kStdout, "out\n", kNow).ok());
  REQUIRE(log.Append(OutputStream::kStderr, "err", kNow + std::chrono::nanoseconds(5)).ok());
  CHECK(log.length() == 7);
  CHECK(FileText(path) == "out\nerr");
  const std::string index = FileText(path + ".idx");
  REQUIRE(index.size() == kLogIndexHeaderBytes + 2 * kLogIndexRecordBytes);
  CHECK(index.substr(0, 24) == std::string("RCTLIDX\n\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24));
  // 1e12 ns = 0x000000E8D4A51000.
  CHECK(index.substr(32, 16) == std::string("\x00\x10\xA5\xD4\xE8\x00\x00\x00\x04\x00\x00\x00\x01\x00\x00\x00", 16));
  CHECK(index.substr(48, 16) == std::string("\x05\x10\xA5\xD4\xE8\x00\x00\x00\x03\x00\x00\x00\x02\x00\x00\x00", 16));
  OutputReader reader(path);
  CHECK(ReadAll(reader) == std::vector<Got>{{OutputStream::kStdout, "out\n"}, {OutputStream::kStderr, "err"}});
  CHECK(reader.HasAll(log.length()));
  CHECK_FALSE(reader.HasAll(log.length() + 1));
}

TEST_CASE("neighbours of one stream are one run, and a long one is cut", "[output_log]") {
  const TempDir dir;
  const std::string path = dir.path() + "/r.log";
  OutputLog log = OutputLog::Open({path}).value();
  REQUIRE(log.Append(OutputStream::kStdout, "a", kNow).ok());
  REQUIRE(log.Append(OutputStream::kStdout, "b", kNow).ok());
  REQUIRE(log.Append(OutputStream::kStderr, std::string(70'000, 'e'), kNow).ok());
  OutputReader reader(path);
  CHECK(ReadAll(reader) == std::vector<Got>{{OutputStream::kStdout, "ab"},
                                            {OutputStream::kStderr, std::string(65'536, 'e')},
                                            {OutputStream::kStderr, std::string(70'000 - 65'536, 'e')}});
  OutputReader middle(path, 70'000);
  CHECK(ReadAll(middle) == std::vector<Got>{{OutputStream::kStderr, "ee"}});
}

TEST_CASE("a log that is not there yet is empty, and its bytes come when they are there", "[output_log]") {
  const TempDir dir;
  const std::string path = dir.path() + "/r.log";
  OutputReader reader(path);
  CHECK(ReadAll(reader).empty());
  OutputLog log = OutputLog::Open({path}).value();
  CHECK(ReadAll(reader).empty());
  REQUIRE(log.Append(OutputStream::kStdout, "x", kNow).ok());
  CHECK(ReadAll(reader) == std::vector<Got>{{OutputStream::kStdout, "x"}});
}

TEST_CASE("a full log moves aside, the oldest goes, offsets go on", "[output_log]") {
  const TempDir dir;
  const std::string path = dir.path() + "/r.log";
  OutputLog log = OutputLog::Open({path, 10, 2}).value();
  OutputReader early(path);
  REQUIRE(log.Append(OutputStream::kStdout, "0123456", kNow).ok());
  CHECK(ReadAll(early) == std::vector<Got>{{OutputStream::kStdout, "0123456"}});
  for (const char* piece : {"abcdefg", "hijklmn", "opqrstu"}) {
    REQUIRE(log.Append(OutputStream::kStdout, piece, kNow).ok());
  }
  CHECK(log.length() == 28);
  CHECK(FileText(path) == "opqrstu");
  CHECK(FileText(path + ".1") == "hijklmn");
  CHECK(FileText(path + ".2") == "abcdefg");
  CHECK_FALSE(std::filesystem::exists(path + ".3"));
  CHECK_FALSE(std::filesystem::exists(path + ".3.idx"));
  // One that was in the file which has gone goes on where it was.
  CHECK(ReadAll(early).size() == 3);
  CHECK(early.HasAll(28));
  OutputReader late(path);
  const auto first = late.Next().value();
  REQUIRE(first.has_value());
  CHECK(first->offset == 7);  // The oldest that is left.
  CHECK(first->bytes == "abcdefg");
  OutputReader at(path, 16);
  CHECK(ReadAll(at) == std::vector<Got>{{OutputStream::kStdout, "jklmn"}, {OutputStream::kStdout, "opqrstu"}});
}

TEST_CASE("a log is continued, without what its writer had not finished", "[output_log]") {
  const TempDir dir;
  const std::string path = dir.path() + "/r.log";
  { REQUIRE(OutputLog::Open({path}).value().Append(OutputStream::kStdout, "kept", kNow).ok()); }
  std::ofstream(path, std::ios::app) << "unnamed";
  std::ofstream(path + ".idx", std::ios::app) << "torn";
  {
    OutputReader reader(path);
    CHECK(ReadAll(reader) == std::vector<Got>{{OutputStream::kStdout, "kept"}});
  }
  OutputLog log = OutputLog::Open({path}).value();
  CHECK(log.length() == 4);
  REQUIRE(log.Append(OutputStream::kStderr, "more", kNow).ok());
  CHECK(FileText(path) == "keptmore");
  OutputReader reader(path);
  CHECK(ReadAll(reader) == std::vector<Got>{{OutputStream::kStdout, "kept"}, {OutputStream::kStderr, "more"}});
}

TEST_CASE("a reader beside the writer sees every byte once and in order through many rotations", "[output_log]") {
  const TempDir dir;
  const std::string path = dir.path() + "/r.log";
  constexpr int kLines = 3'000;
  OutputLog log = OutputLog::Open({path, 4'096, 1'000}).value();
  std::string expected;
  std::atomic<bool> done = false;
  std::atomic<bool> all_written = true;
  std::thread writer([&] {
    for (int i = 0; i < kLines; ++i) {
      const std::string line = "line " + std::to_string(i) + "\n";
      expected += line;
      const OutputStream stream = i % 3 == 0 ? OutputStream::kStderr : OutputStream::kStdout;
      all_written = all_written && log.Append(stream, line, kNow).ok();
    }
    done = true;
  });
  OutputReader reader(path);
  std::string got;
  bool ok = true;
  bool contiguous = true;
  while (ok) {
    const bool was_done = done;
    const auto run = reader.Next();
    ok = run.ok();
    if (ok && run->has_value()) {
      contiguous = contiguous && (*run)->offset == got.size();
      got += (*run)->bytes;
    } else if (was_done) {
      break;
    }
  }
  writer.join();
  CHECK(ok);
  CHECK(all_written);
  CHECK(contiguous);
  CHECK(got == expected);
  CHECK(std::filesystem::exists(path + ".5"));
}

TEST_CASE("the last output is at most 4 KiB, cut at a line, and UTF-8", "[output_log]") {
  const TempDir dir;
  OutputLog log = OutputLog::Open({dir.path() + "/r.log"}).value();
  REQUIRE(log.Append(OutputStream::kStdout, "short\n", kNow).ok());
  CHECK(log.LastOutput() == "short\n");
  for (int i = 0; i < 5'000; ++i) {
    REQUIRE(log.Append(OutputStream::kStdout, "line " + std::to_string(i) + "\n", kNow).ok());
  }
  const std::string last = log.LastOutput();
  CHECK(last.size() <= kLastOutputBytes);
  CHECK(last.size() > kLastOutputBytes - 10);
  CHECK(last.substr(0, 5) == "line ");
  CHECK(last.substr(last.size() - 10) == "line 4999\n");
  REQUIRE(log.Append(OutputStream::kStdout, std::string(9'000, 'x'), kNow).ok());
  CHECK(log.LastOutput() == std::string(kLastOutputBytes, 'x'));
  CHECK(ToUtf8("a\xFF\xC3\xA9\xC3") == "a?\xC3\xA9?");
  CHECK(ToUtf8("\xED\xA0\x80|\xE2\x82\xAC|\xF0\x9F\x98\x80") == "???|\xE2\x82\xAC|\xF0\x9F\x98\x80");
}

TEST_CASE("a disk that refuses loses output, says how much, and does not stop the log", "[output_log]") {
  const TempDir dir;
  const std::string path = dir.path() + "/r.log";
  OutputLog log = OutputLog::Open({path, 8, 2}).value();
  REQUIRE(log.Append(OutputStream::kStdout, "12345678", kNow).ok());
  // Rotation cannot make its next file: a folder is in the way.
  std::filesystem::create_directory(path + ".2");
  std::ofstream(path + ".2/in-the-way") << "x";
  REQUIRE(log.Append(OutputStream::kStdout, "abcdefgh", kNow).ok());
  CHECK_FALSE(log.Append(OutputStream::kStdout, "lost", kNow).ok());
  std::filesystem::remove_all(path + ".2");
  REQUIRE(log.Append(OutputStream::kStdout, "more", kNow).ok());
  OutputReader reader(path, 16);
  std::string text;
  for (const Got& got : ReadAll(reader)) {
    text += got.bytes;
  }
  CHECK(text == "\n[rayctl: 4 bytes of output are missing here]\nmore");
}

}  // namespace
}  // namespace rayctl::process
