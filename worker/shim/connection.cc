#include "worker/shim/connection.h"

#include <utility>

namespace rayctl::shim {

Connection::Connection(EventLoop& loop, UniqueFd socket, Handlers handlers)
    : loop_(loop), socket_(std::move(socket)), handlers_(std::move(handlers)) {}

absl::Status Connection::Watch() {
  return loop_.Watch(socket_.get(), EPOLLIN, [this] { Ready(); });
}

void Connection::Ready() {
  if (!writer_.Empty()) {
    Flush();
  }
  if (!socket_.valid()) {
    return;
  }
  const absl::StatusOr<process::FrameReader::Read> read = reader_.ReadFrom(socket_.get());
  if (!read.ok()) {
    return Broken(std::string(read.status().message()));
  }
  while (socket_.valid()) {
    const absl::StatusOr<std::optional<std::string>> message = reader_.Next();
    if (!message.ok()) {
      return Broken(std::string(message.status().message()));
    }
    if (!message->has_value()) {
      break;
    }
    handlers_.message(**message);
  }
  if (socket_.valid() && *read == process::FrameReader::Read::kClosed) {
    Broken("closed by the peer");
  }
}

void Connection::Send(const std::string& message) {
  if (!socket_.valid()) {
    return;
  }
  if (const absl::Status added = writer_.Add(message); !added.ok()) {
    return Broken(std::string(added.message()));
  }
  Flush();
}

void Connection::Flush() {
  const absl::StatusOr<bool> done = writer_.Flush(socket_.get());
  if (!done.ok()) {
    return Broken(std::string(done.status().message()));
  }
  loop_.Change(socket_.get(), *done ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

void Connection::Broken(const std::string& why) {
  if (!socket_.valid()) {
    return;
  }
  Close();
  handlers_.closed(why);
}

void Connection::Close() {
  if (socket_.valid()) {
    loop_.Forget(socket_.get());
    socket_.Reset();
  }
}

}  // namespace rayctl::shim
