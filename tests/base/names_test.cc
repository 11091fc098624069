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

}  // namespace
}  // namespace rayctl
