#include "worker/process/frame.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>

#include "base/errno_status.h"

namespace rayctl::process {

namespace {

constexpr std::size_t kReadBytes = 64U << 10;
constexpr std::size_t kCompactBytes = 64U << 10;  // Consumed bytes at the front before they are given up.

}  // namespace

absl::StatusOr<std::string> EncodeFrame(std::string_view message) {
  if (message.size() > kFrameBytesMax) {
    return absl::InvalidArgumentError("a message of " + std::to_string(message.size()) +
                                      " bytes; frames hold at most " + std::to_string(kFrameBytesMax));
  }
  const auto length = static_cast<std::uint32_t>(message.size());
  std::string frame;
  frame.reserve(kFrameHeaderBytes + message.size());
  for (unsigned i = 0; i < kFrameHeaderBytes; ++i) {
    frame.push_back(static_cast<char>((length >> (8 * i)) & 0xFFU));
  }
  frame.append(message);
  return frame;
}

absl::StatusOr<FrameReader::Read> FrameReader::ReadFrom(int fd) {
  std::array<char, kReadBytes> bytes;
  const ssize_t n = ::read(fd, bytes.data(), bytes.size());
  if (n > 0) {
    Append({bytes.data(), static_cast<std::size_t>(n)});
    return Read::kMore;
  }
  if (n == 0) {
    return Read::kClosed;
  }
  if (errno == EAGAIN || errno == EINTR) {
    return Read::kNothingNow;
  }
  return ErrnoStatus("reading a frame", errno);
}

absl::StatusOr<std::optional<std::string>> FrameReader::Next() {
  if (pending() < kFrameHeaderBytes) {
    return std::nullopt;
  }
  std::uint32_t length = 0;
  for (unsigned i = 0; i < kFrameHeaderBytes; ++i) {
    length |= static_cast<std::uint32_t>(static_cast<unsigned char>(buffer_[begin_ + i])) << (8 * i);
  }
  if (length > kFrameBytesMax) {
    return absl::InvalidArgumentError("a frame of " + std::to_string(length) + " bytes is announced; at most " +
                                      std::to_string(kFrameBytesMax) + " are taken");
  }
  if (pending() < kFrameHeaderBytes + length) {
    return std::nullopt;
  }
  std::string message = buffer_.substr(begin_ + kFrameHeaderBytes, length);
  begin_ += kFrameHeaderBytes + length;
  if (begin_ == buffer_.size()) {
    buffer_.clear();
    begin_ = 0;
    if (buffer_.capacity() > kCompactBytes) {
      buffer_.shrink_to_fit();
    }
  } else if (begin_ > kCompactBytes) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  return message;
}

absl::Status FrameWriter::Add(std::string_view message) {
  absl::StatusOr<std::string> frame = EncodeFrame(message);
  if (!frame.ok()) {
    return frame.status();
  }
  if (waiting_ > 0 && waiting_ + frame->size() > bytes_max_) {
    return absl::ResourceExhaustedError("the peer has not read " + std::to_string(waiting_) + " bytes");
  }
  waiting_ += frame->size();
  frames_.push_back(*std::move(frame));
  return absl::OkStatus();
}

absl::StatusOr<bool> FrameWriter::Flush(int socket) {
  while (!frames_.empty()) {
    const std::string& frame = frames_.front();
    const ssize_t n =
        ::send(socket, frame.data() + sent_of_first_, frame.size() - sent_of_first_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) {
        continue;
      }
      if (errno == EAGAIN) {
        return false;
      }
      return ErrnoStatus("sending a frame", errno);
    }
    sent_of_first_ += static_cast<std::size_t>(n);
    waiting_ -= static_cast<std::size_t>(n);
    if (sent_of_first_ == frame.size()) {
      frames_.pop_front();
      sent_of_first_ = 0;
    }
  }
  return true;
}

}  // namespace rayctl::process
