#include "base/names.h"

#include <catch2/catch.hpp>
#include <string>

namespace rayctl {
namespace {

TEST_CASE("a name steers no terminal, leaves no folder and has an end", "[names]") {
  CHECK(IsName(""));
  CHECK(IsName("größe 1, 'x' | ..."));
  CHECK(IsName(std::string(kNameBytesMax, 'x')));
  CHECK_FALSE(IsName(std::string(kNameBytesMax + 1, 'x')));
  CHECK_FALSE(IsName("../x"));
  CHECK_FALSE(IsName("a\nb"));
  CHECK_FALSE(IsName("\x1b[31mred"));
  CHECK_FALSE(IsName("a\x7f"));
  CHECK_FALSE(IsName(std::string_view("a\0b", 3)));
}

TEST_CASE("a job's name is none that looks like an id", "[names]") {
  CHECK(IsJobName(""));
  CHECK(IsJobName("1a"));
  CHECK(IsJobName("-1"));
  CHECK_FALSE(IsJobName("1"));
  CHECK_FALSE(IsJobName("007"));
  CHECK_FALSE(IsJobName("a/b"));
}

}  // namespace
}  // namespace rayctl
