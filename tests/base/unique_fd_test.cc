#include "base/unique_fd.h"

#include <fcntl.h>

#include <catch2/catch.hpp>
#include <utility>

namespace rayctl {
namespace {

bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

int OpenNull() {
  const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  REQUIRE(fd >= 0);
  return fd;
}

TEST_CASE("a descriptor is closed when its owner goes", "[base]") {
  const int fd = OpenNull();
  {
    const UniqueFd owner(fd);
    CHECK(owner.valid());
    CHECK(IsOpen(fd));
  }
  CHECK_FALSE(IsOpen(fd));
}

TEST_CASE("a descriptor moves and is closed once", "[base]") {
  const int first = OpenNull();
  const int second = OpenNull();
  UniqueFd owner(first);
  UniqueFd other(second);
  other = std::move(owner);
  CHECK(other.get() == first);
  CHECK_FALSE(IsOpen(second));
  CHECK(IsOpen(first));
  other.Reset();
  CHECK_FALSE(IsOpen(first));
  CHECK_FALSE(other.valid());
}

TEST_CASE("a released descriptor stays open", "[base]") {
  const int fd = OpenNull();
  { CHECK(UniqueFd(fd).Release() == fd); }
  CHECK(IsOpen(fd));
  ::close(fd);
}

}  // namespace
}  // namespace rayctl
