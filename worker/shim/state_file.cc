#include "worker/shim/state_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <tuple>
#include <utility>

#include "base/errno_status.h"
#include "worker/process/frame.h"
#include "worker/process/proc.h"
#include "worker/process/worker_process.h"

namespace rayctl::shim {

namespace {

constexpr std::uint32_t kStateVersion = 1;
constexpr mode_t kStateMode = 0600;

void Apply(const local::ShimStateRecord& record, local::RankStatus& status) {
  using Body = local::ShimStateRecord;
  switch (record.body_case()) {
    case Body::kStarting:
      status.set_phase(local::RANK_PHASE_STARTING);
      break;
    case Body::kStarted:
      status.set_phase(local::RANK_PHASE_RUNNING);
      status.set_pid(record.started().pid());
      status.set_pid_start_ticks(record.started().pid_start_ticks());
      break;
    case Body::kExited:
      status.set_phase(local::RANK_PHASE_EXITED);
      *status.mutable_exit() = record.exited();
      break;
    default:
      break;
  }
}

}  // namespace

absl::StatusOr<ShimState> ReadShimState(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    return ErrnoStatus("opening " + path, errno);
  }
  process::FrameReader frames;
  while (true) {
    const absl::StatusOr<process::FrameReader::Read> read = frames.ReadFrom(fd.get());
    if (!read.ok()) {
      return read.status();
    }
    if (*read == process::FrameReader::Read::kClosed) {
      break;
    }
  }
  ShimState state;
  absl::StatusOr<std::optional<std::string>> frame = frames.Next();
  if (!frame.ok() || !frame->has_value() || !state.header.ParseFromString(**frame) || state.header.version() == 0) {
    return absl::InvalidArgumentError(path + " is not the state file of a shim");
  }
  if (state.header.version() != kStateVersion) {
    return absl::InvalidArgumentError(path + " has version " + std::to_string(state.header.version()) +
                                      "; this program reads " + std::to_string(kStateVersion));
  }
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, local::RankStatus> ranks;
  while (true) {
    frame = frames.Next();
    local::ShimStateRecord record;
    if (!frame.ok() || !frame->has_value() || !record.ParseFromString(**frame)) {
      break;
    }
    const auto [entry, is_new] = ranks.try_emplace({record.group(), record.attempt(), record.rank()});
    local::RankStatus& status = entry->second;
    if (is_new) {
      status.set_group(record.group());
      status.set_attempt(record.attempt());
      status.set_rank(record.rank());
    }
    Apply(record, status);
    state.last_sequence = std::max(state.last_sequence, record.sequence());
    state.records.push_back(std::move(record));
  }
  for (auto& [key, status] : ranks) {
    state.ranks.push_back(std::move(status));
  }
  return state;
}

bool ShimLives(const local::ShimStateHeader& header) {
  return header.boot_id() == process::BootId() && header.shim_start_ticks() != 0 &&
         process::StartTicks(static_cast<pid_t>(header.shim_pid())) == header.shim_start_ticks();
}

absl::StatusOr<StateFile> StateFile::Create(const std::string& path, const local::ShimStateHeader& header,
                                            IfHeld if_held) {
  if (const std::size_t slash = path.rfind('/'); slash != std::string::npos && slash > 0) {
    if (absl::Status made = process::MakeFolders(path.substr(0, slash)); !made.ok()) {
      return made;
    }
  }
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW;
  StateFile file;
  file.path_ = path;
  while (true) {
    file.fd_.Reset(::open(path.c_str(), kFlags, kStateMode));
    if (!file.fd_.valid()) {
      return ErrnoStatus("opening " + path, errno);
    }
    if (::flock(file.fd_.get(), if_held == IfHeld::kWait ? LOCK_EX : LOCK_EX | LOCK_NB) < 0) {
      if (errno == EINTR) {
        continue;
      }
      if (errno == EWOULDBLOCK) {
        return absl::AlreadyExistsError(path + " is held by a living shim");
      }
      return ErrnoStatus("locking " + path, errno);
    }
    struct stat ours {};
    struct stat named {};
    if (::fstat(file.fd_.get(), &ours) < 0) {
      return ErrnoStatus("reading " + path, errno);
    }
    if (::stat(path.c_str(), &named) < 0 || named.st_ino != ours.st_ino) {
      continue;  // Moved aside by another starter between our open and our lock.
    }
    if (ours.st_size == 0) {
      break;
    }
    if (::rename(path.c_str(), (path + ".old").c_str()) < 0) {
      return ErrnoStatus("moving " + path + " aside", errno);
    }
  }
  absl::StatusOr<std::string> frame = process::EncodeFrame(header.SerializeAsString());
  if (!frame.ok()) {
    return frame.status();
  }
  file.unwritten_ = *std::move(frame);
  if (absl::Status written = file.Flush(); !written.ok()) {
    return written;
  }
  return file;
}

absl::Status StateFile::Append(const local::ShimStateRecord& record) {
  absl::StatusOr<std::string> frame = process::EncodeFrame(record.SerializeAsString());
  if (!frame.ok()) {
    return frame.status();
  }
  unwritten_.append(*frame);
  return Flush();
}

absl::Status StateFile::Flush() {
  std::size_t done = 0;
  while (done < unwritten_.size()) {
    const ssize_t n = ::write(fd_.get(), unwritten_.data() + done, unwritten_.size() - done);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      const int error = errno;
      unwritten_.erase(0, done);  // Goes on where it stopped: what is in the file is a torn record only until then.
      return ErrnoStatus("writing " + path_, error);
    }
    done += static_cast<std::size_t>(n);
  }
  unwritten_.clear();
  return absl::OkStatus();
}

void StateFile::Remove() { ::unlink(path_.c_str()); }

}  // namespace rayctl::shim
