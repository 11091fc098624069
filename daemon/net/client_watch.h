#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>

namespace rayctl::net {

// Says when the process that a daemon serves alone (docs/contracts.md, private clusters) has ended, however it did.
// Loop thread only.
class ClientWatch {
 public:
  // `pidfd`: of that process, inherited, taken over; -1 watches nobody. `on_gone` comes once, on the loop.
  ClientWatch(boost::asio::io_context& loop, int pidfd, std::function<void()> on_gone);

 private:
  boost::asio::posix::stream_descriptor pidfd_;
};

}  // namespace rayctl::net
