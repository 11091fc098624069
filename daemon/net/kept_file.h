#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/unique_fd.h"

namespace rayctl::net {

// Makes a runtime folder and its parent where they are missing, 0700. PERMISSION_DENIED: one of them is another user's,
// or open to others.
absl::Status MakeRuntimeFolder(const std::string& path);

// The file by which others find this process. It is under /tmp, where clean-ups take what looks old, so whenever it or
// its folder goes, both are made again. One thread, the loop's.
class KeptFile {
 public:
  // Hears that the file was made again, or why it could not be; it is not kept any longer then.
  using OnLoss = std::function<void(const absl::Status&)>;
  KeptFile(boost::asio::io_context& loop, std::string path, OnLoss on_loss);
  ~KeptFile() { LetGo(); }
  KeptFile(const KeptFile&) = delete;
  KeptFile& operator=(const KeptFile&) = delete;

  // Writes it, whole, and keeps it from now on.
  absl::Status Keep(std::string contents);
  // The file stays, and may be removed.
  void LetGo();

 private:
  absl::Status Make();
  absl::Status Watch();
  void Await();

  boost::asio::io_context& loop_;
  const std::string path_;
  const std::string folder_;
  const OnLoss on_loss_;
  std::string contents_;
  std::shared_ptr<boost::asio::posix::stream_descriptor> watch_;
  UniqueFd lock_;
};

}  // namespace rayctl::net
