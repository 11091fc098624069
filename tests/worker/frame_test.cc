#include "worker/process/frame.h"

#include <sys/socket.h>

#include <array>
#include <catch2/catch.hpp>
#include <string>

#include "base/unique_fd.h"

namespace rayctl::process {
namespace {

TEST_CASE("a frame is its length in four little-endian bytes and the message", "[frame]") {
  CHECK(EncodeFrame("abc").value() == std::string("\x03\x00\x00\x00"
                                                  "abc",
                                                  7));
  CHECK(EncodeFrame(std::string(0x10203, 'x')).value().substr(0, 4) == std::string("\x03\x02\x01\x00", 4));
  CHECK(EncodeFrame("").value() == std::string(4, '\0'));
}

TEST_CASE("messages come out whole however the bytes arrive", "[frame]") {
  const std::string bytes = EncodeFrame("first").value() + EncodeFrame("").value() + EncodeFrame("third").value();
  FrameReader reader;
  std::vector<std::string> messages;
  for (const char byte : bytes) {
    reader.Append({&byte, 1});
    while (true) {
      const auto message = reader.Next();
      REQUIRE(message.ok());
      if (!message->has_value()) {
        break;
      }
      messages.push_back(**message);
    }
  }
  CHECK(messages == std::vector<std::string>{"first", "", "third"});
  CHECK(reader.pending() == 0);
}

TEST_CASE("a message of 16 MiB passes, a longer one is refused on both sides", "[frame]") {
  CHECK(EncodeFrame(std::string(kFrameBytesMax, 'x')).ok());
  CHECK(absl::IsInvalidArgument(EncodeFrame(std::string(kFrameBytesMax + 1, 'x')).status()));
  FrameReader reader;
  reader.Append(std::string("\x00\x00\x00\x01", 4));
  CHECK(reader.Next().value() == std::nullopt);
  FrameReader other;
  other.Append(std::string("\x01\x00\x00\x01", 4));
  CHECK(absl::IsInvalidArgument(other.Next().status()));
}

TEST_CASE("what a full socket does not take is sent later, in order", "[frame]") {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
  const UniqueFd left(ends[0]);
  UniqueFd right(ends[1]);
  FrameWriter writer(4U << 20);
  FrameReader reader;
  const std::string big(1U << 20, 'b');
  REQUIRE(writer.Add(big).ok());
  REQUIRE(writer.Add("last").ok());
  CHECK(writer.Flush(left.get()).value() == false);
  CHECK(absl::IsResourceExhausted(writer.Add(std::string(4U << 20, 'x'))));
  std::vector<std::string> got;
  while (got.size() < 2) {
    REQUIRE(reader.ReadFrom(right.get()).ok());
    while (const auto message = reader.Next().value()) {
      got.push_back(*message);
    }
    REQUIRE(writer.Flush(left.get()).ok());
  }
  CHECK(got[0] == big);
  CHECK(got[1] == "last");
  CHECK(writer.Empty());
  right.Reset();
  REQUIRE(writer.Add("nobody").ok());
  CHECK(absl::IsUnavailable(writer.Flush(left.get()).status()));
}

}  // namespace
}  // namespace rayctl::process
