#include "daemon/net/client_watch.h"

#include <utility>

namespace rayctl::net {

ClientWatch::ClientWatch(boost::asio::io_context& loop, int pidfd, std::function<void()> on_gone) : pidfd_(loop) {
  if (pidfd < 0) {
    return;
  }
  pidfd_.assign(pidfd);
  pidfd_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                    [on_gone = std::move(on_gone)](const boost::system::error_code& error) {
                      if (!error) {
                        on_gone();
                      }
                    });
}

}  // namespace rayctl::net
