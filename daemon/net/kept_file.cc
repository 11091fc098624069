#include "daemon/net/kept_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/unique_fd.h"
#include "base/whole_files.h"
#include "fmt/format.h"

namespace rayctl::net {
namespace {

namespace asio = boost::asio;

constexpr std::uint32_t kGoing = IN_DELETE | IN_MOVED_FROM | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR;
// A clean-up may take away what was just made; one that goes on for so long means it.
constexpr int kTriesMax = 16;

absl::Status OwnFolder(const std::string& path) {
  if (::mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    return absl::InternalError(fmt::format("making {}: {}", path, std::strerror(errno)));
  }
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    return absl::NotFoundError(fmt::format("looking at {}: {}", path, std::strerror(errno)));
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::PermissionDeniedError(
        fmt::format("{} is not a folder of this user alone: remove it, or give it mode 0700", path));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MakeRuntimeFolder(const std::string& path) {
  const std::filesystem::path folder(path);
  // The parent is /tmp/rayctl-UID, or a folder that the caller made.
  if (folder.has_parent_path() && !std::filesystem::exists(folder.parent_path())) {
    if (absl::Status status = OwnFolder(folder.parent_path().string()); !status.ok()) {
      return status;
    }
  }
  return OwnFolder(path);
}

KeptFile::KeptFile(asio::io_context& loop, std::string path, OnLoss on_loss)
    : loop_(loop),
      path_(std::move(path)),
      folder_(std::filesystem::path(path_).parent_path().string()),
      on_loss_(std::move(on_loss)) {}

absl::Status KeptFile::Keep(std::string contents) {
  contents_ = std::move(contents);
  absl::Status made = Make();
  if (!made.ok()) {
    LetGo();
  }
  return made;
}

void KeptFile::LetGo() {
  if (watch_ != nullptr) {
    boost::system::error_code ignored;  // It is going either way.
    watch_->close(ignored);
    watch_.reset();
  }
  lock_.Reset();
}

absl::Status KeptFile::Make() {
  absl::Status made;
  for (int tries = 0; tries < kTriesMax; ++tries) {
    made = MakeRuntimeFolder(folder_);
    // Watched before it is written, so that no loss goes unseen.
    made.Update(made.ok() ? Watch() : absl::OkStatus());
    made.Update(made.ok() ? WriteWhole({{path_, contents_}}) : absl::OkStatus());
    if (!absl::IsNotFound(made)) {
      break;
    }
  }
  if (made.ok()) {
    Await();
  }
  return made;
}

// The folder for the file, both it and its parent for the folder itself.
absl::Status KeptFile::Watch() {
  LetGo();
  const std::string parent = std::filesystem::path(folder_).parent_path().string();
  // systemd-tmpfiles leaves a folder alone on which it cannot get a lock, and nobody else takes one on this.
  lock_.Reset(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock_.valid() && ::flock(lock_.get(), LOCK_SH | LOCK_NB) != 0) {
    lock_.Reset();
  }
  UniqueFd fd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!fd.valid()) {
    return absl::ResourceExhaustedError(fmt::format("watching {}: {}", folder_, std::strerror(errno)));
  }
  for (const std::string& folder : {folder_, parent}) {
    if (::inotify_add_watch(fd.get(), folder.c_str(), kGoing) < 0) {
      const std::string why = fmt::format("watching {}: {}", folder, std::strerror(errno));
      return errno == ENOENT ? absl::NotFoundError(why) : absl::ResourceExhaustedError(why);
    }
  }
  watch_ = std::make_shared<asio::posix::stream_descriptor>(loop_, fd.Release());
  return absl::OkStatus();
}

void KeptFile::Await() {
  const auto watch = watch_;
  watch->async_wait(asio::posix::stream_descriptor::wait_read, [this, watch](boost::system::error_code error) {
    if (error || watch != watch_) {
      return;
    }
    alignas(inotify_event) char events[4096];
    while (::read(watch->native_handle(), events, sizeof(events)) > 0) {
    }
    if (::access(path_.c_str(), F_OK) == 0) {
      Await();
      return;
    }
    const absl::Status made = Make();
    if (!made.ok()) {
      LetGo();
    }
    on_loss_(made);
  });
}

}  // namespace rayctl::net
