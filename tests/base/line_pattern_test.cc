#include "base/line_pattern.h"

#include <catch2/catch.hpp>

namespace rayctl {
namespace {

TEST_CASE("a pattern is looked for anywhere in a line, and its end is before the line's end", "[line_pattern]") {
  const LinePattern pattern = LinePattern::Parse("loss=(nan|inf)$").value();
  CHECK(pattern.Finds("step 3 loss=nan"));
  CHECK(pattern.Finds("loss=inf\n"));
  CHECK(pattern.Finds("loss=inf\r\n"));
  CHECK_FALSE(pattern.Finds("loss=nan but not at the end\n"));
  CHECK(LinePattern::Parse("^$")->Finds("\n"));
}

TEST_CASE("a wrong expression is refused and says why", "[line_pattern]") {
  const auto wrong = LinePattern::Parse("loss=(");
  CHECK(absl::IsInvalidArgument(wrong.status()));
  CHECK(wrong.status().message().find("missing )") != std::string::npos);
  CHECK_FALSE(LinePattern::Parse(std::string(LinePattern::kBytesMax + 1, 'a')).ok());
  CHECK(LinePattern::Parse(std::string(LinePattern::kBytesMax, 'a')).ok());
}

}  // namespace
}  // namespace rayctl
