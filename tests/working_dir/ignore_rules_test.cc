#include "working_dir/ignore_rules.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace rayctl::working_dir {
namespace {

using Verdict = IgnoreRules::Verdict;

struct Row {
  std::string rules;
  std::string path;
  bool is_folder;
  Verdict verdict;
};

TEST_CASE("ignore rules mean what gitignore(5) says") {
  constexpr Verdict kNo = Verdict::kNone;
  constexpr Verdict kYes = Verdict::kIgnored;
  constexpr Verdict kBack = Verdict::kKept;
  const std::vector<Row> rows{
      // A name without a slash, at any depth.
      {"build", "build", true, kYes},
      {"build", "build", false, kYes},
      {"build", "a/b/build", false, kYes},
      {"build", "rebuild", false, kNo},
      {"*.pyc", "a/x.pyc", false, kYes},
      {"*.pyc", "a/x.py", false, kNo},
      {"*", ".hidden", false, kYes},
      {"?.o", "a.o", false, kYes},
      {"?.o", "ab.o", false, kNo},
      {"[a-c].o", "b.o", false, kYes},
      {"[!a-c].o", "b.o", false, kNo},
      {"[!a-c].o", "d.o", false, kYes},
      // A slash anchors.
      {"/build", "build", true, kYes},
      {"/build", "a/build", true, kNo},
      {"a/b", "a/b", false, kYes},
      {"a/b", "x/a/b", false, kNo},
      {"a/*", "a/b", false, kYes},
      {"a/*", "a/b/c", false, kNo},  // It goes with a/b.
      {"a/*.o", "a/b/c.o", false, kNo},
      // Only folders.
      {"data/", "data", true, kYes},
      {"data/", "data", false, kNo},
      {"data/", "x/data", true, kYes},
      {"/data/", "x/data", true, kNo},
      // Any number of folders.
      {"**/logs", "logs", true, kYes},
      {"**/logs", "a/b/logs", true, kYes},
      {"**/logs/debug.log", "build/logs/debug.log", false, kYes},
      {"**/logs/debug.log", "logs/build/debug.log", false, kNo},
      {"logs/**", "logs", true, kNo},
      {"logs/**", "logs/a/b", false, kYes},
      {"a/**/b", "a/b", false, kYes},
      {"a/**/b", "a/x/y/b", false, kYes},
      {"a/**/b", "a/x/y/c", false, kNo},
      {"a/**/**/b", "a/b", false, kYes},
      {"a**b", "axyb", false, kYes},
      {"x/a**b", "x/a/b", false, kNo},
      // The last one that matches decides.
      {"*.log\n!keep.log", "keep.log", false, kBack},
      {"*.log\n!keep.log", "a/keep.log", false, kBack},
      {"*.log\n!keep.log", "other.log", false, kYes},
      {"!keep.log\n*.log", "keep.log", false, kYes},
      {"/*\n!/src", "src", true, kBack},
      {"/*\n!/src", "data", true, kYes},
      // Comments, blanks, escapes, line ends.
      {"# build", "# build", false, kNo},
      {"\\#build", "#build", false, kYes},
      {"\\!build", "!build", false, kYes},
      {"\n\n   \nbuild", "build", false, kYes},
      {"build   ", "build", false, kYes},
      {"build\\ ", "build ", false, kYes},
      {"build\\ ", "build", false, kNo},
      {"build\r\nx", "build", false, kYes},
      {"\xEF\xBB\xBF"
       "build",
       "build", false, kYes},
      {"a b", "a b", false, kYes},
      {"données", "x/données", true, kYes},
      {"/", "a", true, kNo},
      {"", "a", false, kNo},
      {"foo\\*", "foo*", false, kYes},
      {"foo\\*", "food", false, kNo},
  };
  for (const Row& row : rows) {
    INFO("rules: " << row.rules << "\npath: " << row.path << (row.is_folder ? "/" : ""));
    CHECK(IgnoreRules::Parse(row.rules).Judge(row.path, row.is_folder) == row.verdict);
  }
}

}  // namespace
}  // namespace rayctl::working_dir
