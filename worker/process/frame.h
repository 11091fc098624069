#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rayctl::process {

inline constexpr std::size_t kFrameBytesMax = 16U << 20;  // Of one message.
inline constexpr std::size_t kFrameHeaderBytes = 4;

// 4 bytes little-endian length, then the message. INVALID_ARGUMENT: it is too long.
absl::StatusOr<std::string> EncodeFrame(std::string_view message);

// Cuts a stream into messages. Bytes come by Append (asio) or by ReadFrom (a non-blocking descriptor).
class FrameReader {
 public:
  void Append(std::string_view bytes) { buffer_.append(bytes); }

  enum class Read { kMore, kNothingNow, kClosed };
  // One read(2). kMore: got some, there may be more. UNAVAILABLE and others: the connection is broken.
  absl::StatusOr<Read> ReadFrom(int fd);

  // The next whole message; nullopt: not all of it is here. INVALID_ARGUMENT: its length is over the limit, and nothing
  // after it can be trusted.
  absl::StatusOr<std::optional<std::string>> Next();
  // Bytes of a message that has not arrived whole.
  std::size_t pending() const { return buffer_.size() - begin_; }

 private:
  std::string buffer_;
  std::size_t begin_ = 0;
};

// Messages on their way out to a non-blocking socket.
class FrameWriter {
 public:
  explicit FrameWriter(std::size_t bytes_max = 64U << 20) : bytes_max_(bytes_max) {}

  // RESOURCE_EXHAUSTED: the peer reads too slowly and `bytes_max` are waiting; close the connection.
  absl::Status Add(std::string_view message);
  // Sends what the socket takes (never raises SIGPIPE). True: nothing is left; false: wait until it is writable.
  absl::StatusOr<bool> Flush(int socket);
  bool Empty() const { return frames_.empty(); }

 private:
  std::size_t bytes_max_;
  std::deque<std::string> frames_;
  std::size_t sent_of_first_ = 0;
  std::size_t waiting_ = 0;
};

}  // namespace rayctl::process
