#include "daemon/agent/output_scan.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/worker/temp_dir.h"
#include "worker/process/output_log.h"

namespace rayctl::agent {
namespace {

constexpr WallTime kNow{std::chrono::seconds(1'000)};
constexpr OutputStream kOut = OutputStream::kStdout;
constexpr OutputStream kErr = OutputStream::kStderr;

WallTime At(int millis) { return kNow + std::chrono::milliseconds(millis); }

// Logs of the ranks of one attempt, and what a scan of them gives.
struct Logs {
  std::string Path(Rank rank) const { return dir.path() + "/rank_" + std::to_string(rank) + ".log"; }
  void Write(Rank rank, OutputStream stream, const std::string& text, int millis) {
    auto log = logs.find(rank);
    if (log == logs.end()) {
      log = logs.emplace(rank, process::OutputLog::Open({Path(rank), bytes_max, 2}).value()).first;
    }
    REQUIRE(log->second.Append(stream, text, At(millis)).ok());
  }
  OutputScan Open(link::OpenOutput what, bool live = false) const {
    return OutputScan::Open(
               what, [this](Rank rank) { return Path(rank); }, [live](Rank) { return live; })
        .value();
  }

  TempDir dir;
  std::uint64_t bytes_max = 0;
  std::map<Rank, process::OutputLog> logs;
};

struct Got {
  std::string text;  // Of every piece, "RANKo" or "RANKe" before it.
  std::string data;
  std::vector<std::string> remarks;
  std::map<std::pair<Rank, OutputStream>, std::uint64_t> next;
  bool all_sent = false;
};

Got ReadAll(OutputScan& scan) {
  Got got;
  for (int quiet = 0; quiet < 100'000; ++quiet) {
    OutputScan::Step step = scan.Next();
    if (auto* piece = std::get_if<OutputScan::Piece>(&step)) {
      CHECK(piece->piece.bytes.size() <= process::OutputReader::kRunBytesMax);
      got.text += std::to_string(piece->rank) + (piece->piece.stream == kOut ? "o " : "e ") + piece->piece.bytes;
      got.data += piece->piece.bytes;
      if (piece->piece.next_offset != 0) {
        got.next[{piece->rank, piece->piece.stream}] = piece->piece.next_offset;
      }
    } else if (auto* remark = std::get_if<OutputScan::Remark>(&step)) {
      got.remarks.push_back(remark->text);
    } else if (std::holds_alternative<OutputScan::AllSent>(step)) {
      got.all_sent = true;
      return got;
    } else if (std::holds_alternative<OutputScan::Nothing>(step)) {
      return got;
    }
  }
  FAIL("it never ends");
  return got;
}

TEST_CASE("all ranks come in order of time", "[output_scan]") {
  Logs logs;
  logs.Write(0, kOut, "a\n", 1);
  logs.Write(1, kOut, "b\n", 2);
  logs.Write(1, kErr, "c\n", 3);
  logs.Write(0, kOut, "d\n", 4);
  logs.Write(0, kOut, "e\n", 5);
  logs.Write(2, kOut, "f\n", 6);
  logs.Write(1, kOut, "g\n", 7);
  OutputScan scan = logs.Open({.ranks = {0, 1, 2}, .by_time = true});
  const Got got = ReadAll(scan);
  CHECK(got.all_sent);
  CHECK(got.text == "0o a\n1o b\n1e c\n0o d\ne\n2o f\n1o g\n");
}

TEST_CASE("any interleaving of ranks is put in order whole", "[output_scan]") {
  const unsigned seed = GENERATE(range(1U, 13U));
  CAPTURE(seed);
  std::mt19937 random(seed);
  Logs logs;
  std::string expected;
  int millis = 0;
  for (int i = 0; i < 300; ++i) {
    const Rank rank = random() % 5;
    const std::string line = "line " + std::to_string(i) + "\n";
    millis += 1 + static_cast<int>(random() % 200);
    logs.Write(rank, random() % 2 == 0 ? kOut : kErr, line, millis);
    expected += line;
  }
  OutputScan scan = logs.Open({.ranks = {0, 1, 2, 3, 4}, .by_time = true});
  CHECK(ReadAll(scan).data == expected);
}

TEST_CASE("only lines that the pattern finds something in, whole across pieces and streams", "[output_scan]") {
  Logs logs;
  logs.Write(0, kOut, "no\nlo", 1);
  logs.Write(0, kErr, "an error: lo", 2);
  logs.Write(0, kOut, "ss 1\nnothing\n", 3);
  logs.Write(0, kErr, "ss\n", 4);
  logs.Write(0, kOut, "the last loss", 5);
  OutputScan scan = logs.Open({.ranks = {0}, .grep = "loss"});
  const Got got = ReadAll(scan);
  CHECK(got.all_sent);
  CHECK(got.text == "0o loss 1\n0e an error: loss\n0o the last loss");
}

TEST_CASE("a follower's line is judged once it has ended", "[output_scan]") {
  Logs logs;
  logs.Write(0, kOut, "los", 1);
  OutputScan scan = logs.Open({.ranks = {0}, .follow = true, .grep = "loss$"}, /*live=*/true);
  CHECK(ReadAll(scan).text.empty());
  logs.Write(0, kOut, "s", 2);
  CHECK(ReadAll(scan).text.empty());
  logs.Write(0, kOut, "\nx", 3);
  CHECK(ReadAll(scan).text == "0o loss\n");
  logs.Write(0, kOut, " loss", 4);
  Got got = ReadAll(scan);
  CHECK(got.text.empty());
  CHECK_FALSE(got.all_sent);
  scan.RankEnded(0);
  got = ReadAll(scan);
  CHECK(got.text == "0o x loss");
  CHECK(got.all_sent);
}

TEST_CASE("a line that is longer than any is taken for several", "[output_scan]") {
  Logs logs;
  const std::string begin(LineFilter::kLineBytesMax, 'x');
  logs.Write(0, kOut, begin + "tail\n", 1);
  OutputScan scan = logs.Open({.ranks = {0}, .grep = "tail"});
  CHECK(ReadAll(scan).data == "tail\n");
  OutputScan all = logs.Open({.ranks = {0}, .grep = "."});
  CHECK(ReadAll(all).data == begin + "tail\n");
}

TEST_CASE("one stream, and only from a time on", "[output_scan]") {
  Logs logs;
  logs.Write(0, kOut, "old out\n", 1);
  logs.Write(0, kErr, "old err\n", 2);
  logs.Write(0, kOut, "new out\n", 10);
  logs.Write(0, kErr, "new err\n", 11);
  OutputScan stderr_only = logs.Open({.ranks = {0}, .streams = {kErr}});
  CHECK(ReadAll(stderr_only).data == "old err\nnew err\n");
  OutputScan since = logs.Open({.ranks = {0}, .since = At(10)});
  CHECK(ReadAll(since).data == "new out\nnew err\n");
  OutputScan both = logs.Open({.ranks = {0}, .since = At(3), .streams = {kOut}});
  CHECK(ReadAll(both).data == "new out\n");
  OutputScan later = logs.Open({.ranks = {0}, .since = At(12)});
  const Got nothing = ReadAll(later);
  CHECK(nothing.data.empty());
  CHECK(nothing.all_sent);
}

// Reads some pieces, stops, and reads the rest with the positions that it was told.
std::string ReadInTwo(const Logs& logs, link::OpenOutput what, int pieces, std::vector<std::string>& remarks,
                      const std::function<void()>& between) {
  OutputScan first = logs.Open(what, /*live=*/true);
  std::string data;
  std::map<std::pair<Rank, OutputStream>, std::uint64_t> next;
  for (int i = 0; i < pieces;) {
    OutputScan::Step step = first.Next();
    if (auto* piece = std::get_if<OutputScan::Piece>(&step)) {
      data += piece->piece.bytes;
      next[{piece->rank, piece->piece.stream}] = piece->piece.next_offset;
      ++i;
    } else if (std::holds_alternative<OutputScan::Nothing>(step)) {
      break;
    }
  }
  between();
  for (const auto& [key, offset] : next) {
    what.resume.push_back({key.first, key.second, offset});
  }
  OutputScan second = logs.Open(what);
  const Got rest = ReadAll(second);
  remarks = rest.remarks;
  return data + rest.data;
}

TEST_CASE("who goes on at an offset gets every byte once, filtered or not", "[output_scan]") {
  const std::string grep = GENERATE(as<std::string>(), "", "[02468]$");
  const int pieces = GENERATE(range(0, 9));
  CAPTURE(grep, pieces);
  Logs logs;
  std::string expected;
  for (int i = 0; i < 12; ++i) {
    const OutputStream stream = i % 3 == 0 ? kErr : kOut;
    logs.Write(0, stream, "line ", i);
    logs.Write(0, stream, std::to_string(i) + "\n", i);
    if (grep.empty() || i % 2 == 0) {
      expected += "line " + std::to_string(i) + "\n";
    }
  }
  std::vector<std::string> remarks;
  CHECK(ReadInTwo(logs, {.ranks = {0}, .follow = true, .grep = grep}, pieces, remarks, [] {}) == expected);
  CHECK(remarks.empty());
}

TEST_CASE("a rotation between two readings loses only what was rotated away, and says how much", "[output_scan]") {
  Logs logs;
  logs.bytes_max = 100;  // Two files beside the current one.
  const auto line = [](int i) { return "line number " + std::to_string(1000 + i) + "\n"; };  // 17 bytes.
  for (int i = 0; i < 3; ++i) {
    logs.Write(0, kOut, line(i), i);
  }
  std::vector<std::string> remarks;
  SECTION("nothing was lost") {
    const std::string data = ReadInTwo(logs, {.ranks = {0}, .follow = true}, 1, remarks, [&] {
      for (int i = 3; i < 12; ++i) {
        logs.Write(0, kOut, line(i), i);
      }
    });
    std::string expected;
    for (int i = 0; i < 12; ++i) {
      expected += line(i);
    }
    CHECK(data == expected);
    CHECK(remarks.empty());
  }
  SECTION("some was") {
    const std::string data = ReadInTwo(logs, {.ranks = {0}, .follow = true}, 1, remarks, [&] {
      for (int i = 3; i < 40; ++i) {
        logs.Write(0, kOut, line(i), i);
      }
    });
    std::string expected;
    for (int i = 0; i < 3; ++i) {
      expected += line(i);
    }
    const std::size_t kept = data.size() - expected.size();
    REQUIRE(kept % line(0).size() == 0);
    const int first_kept = 40 - static_cast<int>(kept / line(0).size());
    for (int i = first_kept; i < 40; ++i) {
      expected += line(i);
    }
    CHECK(data == expected);
    CHECK(first_kept > 3);
    REQUIRE(remarks.size() == 1);
    const std::size_t lost = static_cast<std::size_t>(first_kept - 3) * line(0).size();
    CHECK(remarks[0].starts_with(std::to_string(lost) + " bytes of the output of rank 0 were rotated away"));
  }
}

TEST_CASE("what was rotated away before the asked time is no loss", "[output_scan]") {
  Logs logs;
  logs.bytes_max = 50;
  for (int i = 0; i < 40; ++i) {
    logs.Write(0, kOut, "a line of twenty b.\n", i);
  }
  OutputScan scan = logs.Open({.ranks = {0}, .since = At(38)});
  const Got got = ReadAll(scan);
  CHECK(got.data == "a line of twenty b.\na line of twenty b.\n");
  CHECK(got.remarks.empty());
}

TEST_CASE("ranks without a log are named unless they are still to write", "[output_scan]") {
  Logs logs;
  logs.Write(1, kOut, "here\n", 1);
  OutputScan ended = logs.Open({.ranks = {0, 1, 2}});
  CHECK(ended.ranks_without_log() == std::vector<Rank>{0, 2});
  CHECK(ReadAll(ended).text == "1o here\n");
  OutputScan live = logs.Open({.ranks = {0, 1, 2}, .follow = true}, /*live=*/true);
  CHECK(live.ranks_without_log().empty());
  OutputScan none = logs.Open({.ranks = {0}});
  CHECK(ReadAll(none).all_sent);
}

TEST_CASE("a search through much that is not wanted gives others their turn", "[output_scan]") {
  Logs logs;
  for (int i = 0; i < 16; ++i) {
    logs.Write(0, kOut, std::string(60'000, 'x') + "\n", i);
  }
  logs.Write(0, kOut, "needle\n", 20);
  OutputScan scan = logs.Open({.ranks = {0}, .grep = "needle"});
  CHECK(std::holds_alternative<OutputScan::NotYet>(scan.Next()));
  CHECK(ReadAll(scan).data == "needle\n");
}

TEST_CASE("a damaged index ends that rank alone, in words", "[output_scan]") {
  Logs logs;
  logs.Write(0, kOut, "fine\n", 1);
  logs.Write(1, kOut, "fine too\n", 2);
  logs.logs.clear();
  std::FILE* const index = std::fopen((logs.Path(0) + ".idx").c_str(), "r+b");
  REQUIRE(index != nullptr);
  std::fputs("RUBBISH!", index);
  std::fclose(index);
  OutputScan scan = logs.Open({.ranks = {0, 1}, .by_time = true});
  const Got got = ReadAll(scan);
  CHECK(got.text == "1o fine too\n");
  REQUIRE(got.remarks.size() == 1);
  CHECK(got.remarks[0].find("rank 0") != std::string::npos);
}

TEST_CASE("a wrong expression is refused", "[output_scan]") {
  const auto scan = OutputScan::Open(
      {.ranks = {0}, .grep = "("}, [](Rank) { return std::string("/nowhere"); }, [](Rank) { return false; });
  CHECK(absl::IsInvalidArgument(scan.status()));
}

}  // namespace
}  // namespace rayctl::agent
