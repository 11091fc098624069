#include "daemon/agent/working_dirs.h"

#include <fcntl.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <tuple>
#include <utility>

#include "base/errno_status.h"
#include "base/folders.h"
#include "base/status_text.h"
#include "base/unique_fd.h"
#include "client/channel.h"
#include "daemon/agent/rank_env.h"
#include "fmt/format.h"
#include "rayctl/v1/working_dir.grpc.pb.h"
#include "spdlog/spdlog.h"
#include "working_dir/digest.h"
#include "working_dir/tree.h"
#include "working_dir/unpack.h"

namespace rayctl::agent {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kThreads = 4;
constexpr std::chrono::seconds kRetryInterval{1};  // After a transfer broke while the head was there.
constexpr std::string_view kPartSuffix = ".part";
constexpr std::string_view kArchiveSuffix = ".archive";
constexpr std::string_view kGoneSuffix = ".gone";

// Whether the same call may go well when the head is reached again.
bool MayComeLater(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE || status.error_code() == grpc::StatusCode::CANCELLED;
}

}  // namespace

// One call to the head. Its thread runs it; the loop may cancel it.
class WorkingDirs::Transfer {
 public:
  Transfer(std::shared_ptr<grpc::Channel> channel, std::string digest, std::uint64_t node_id)
      : digest_(std::move(digest)), stub_(rayctl::v1::WorkingDirService::NewStub(std::move(channel))) {
    if (node_id != 0) {
      client::IdentifyNode(context_, node_id);
    }
  }

  // Writes what comes to `path`. Leaves the file at its beginning, once its digest is right.
  absl::Status Receive(const std::string& path) {
    file_.Reset(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!file_.valid()) {
      return ErrnoStatus(fmt::format("making {}", path), errno);
    }
    rayctl::v1::GetWorkingDirRequest request;
    request.set_digest(digest_);
    const auto reader = stub_->GetWorkingDir(&context_, request);
    rayctl::v1::GetWorkingDirResponse part;
    working_dir::Sha256 hash;
    std::uint64_t bytes = 0;
    absl::Status status;
    while (status.ok() && reader->Read(&part)) {
      bytes += part.data().size();
      if (bytes > working_dir::kArchiveBytesMax) {
        status = absl::ResourceExhaustedError("the head sends more than an archive may have");
        break;
      }
      hash.Add(part.data());
      std::string_view rest = part.data();
      while (!rest.empty() && status.ok()) {
        const ssize_t wrote = ::write(file_.get(), rest.data(), rest.size());
        if (wrote >= 0) {
          rest.remove_prefix(static_cast<std::size_t>(wrote));
        } else if (errno != EINTR) {
          status = ErrnoStatus(fmt::format("writing {}", path), errno);
        }
      }
    }
    if (!status.ok()) {
      context_.TryCancel();
    }
    const grpc::Status ended = reader->Finish();
    if (!status.ok()) {
      return status;
    }
    may_come_later_ = MayComeLater(ended);
    if (!ended.ok()) {
      return client::FromGrpc(ended);
    }
    if (hash.Hex() != digest_) {
      return absl::DataLossError("what the head sent is not what the digest names; submit the job again");
    }
    if (::lseek(file_.get(), 0, SEEK_SET) != 0) {
      return ErrnoStatus(fmt::format("reading {}", path), errno);
    }
    return absl::OkStatus();
  }

  void Cancel() { context_.TryCancel(); }
  const std::string& digest() const { return digest_; }
  int file() const { return file_.get(); }
  bool may_come_later() const { return may_come_later_; }

 private:
  const std::string digest_;
  std::unique_ptr<rayctl::v1::WorkingDirService::Stub> stub_;
  grpc::ClientContext context_;
  UniqueFd file_;
  bool may_come_later_ = false;
};

WorkingDirs::WorkingDirs(boost::asio::io_context& loop, std::string state_dir, Deliver deliver)
    : gate_(std::make_shared<LoopGate>(loop)),
      state_dir_(std::move(state_dir)),
      cache_dir_(state_dir_ + "/agent/working_dirs"),
      deliver_(std::move(deliver)),
      retry_(loop),
      pool_(kThreads) {
  // What an agent that was killed left half made. Nothing else looks at it yet.
  std::error_code missing;
  for (const fs::directory_entry& entry : fs::directory_iterator(cache_dir_, missing)) {
    if (!working_dir::IsDigest(entry.path().filename().string())) {
      if (const absl::Status removed = RemoveTree(entry.path().string()); !removed.ok()) {
        spdlog::warn("folder left behind why={}", Text(removed));
      }
    }
  }
}

WorkingDirs::~WorkingDirs() {
  gate_->Close();
  for (const auto& [digest, fetch] : fetches_) {
    if (fetch.transfer != nullptr) {
      fetch.transfer->Cancel();
    }
  }
  pool_.join();
}

void WorkingDirs::Prepare(const PrepareWorkDir& what) {
  boost::asio::post(pool_, [this, what] { Look(what); });
}

void WorkingDirs::SetHead(std::shared_ptr<grpc::Channel> channel, std::uint64_t node_id) {
  if (channel == channel_) {
    return;
  }
  channel_ = std::move(channel);
  node_id_ = node_id;
  for (const auto& [digest, fetch] : fetches_) {
    if (fetch.transfer != nullptr) {
      fetch.transfer->Cancel();  // Of a stream that is no more.
    }
  }
  StartWaiting();
}

// ---- On the pool's threads.

void WorkingDirs::Look(const PrepareWorkDir& what) {
  absl::Status status;
  if (CopyFor(what, status)) {
    Answer(what.job, status);
    return;
  }
  gate_->Post([this, what] { Want(what); });
}

bool WorkingDirs::CopyFor(const PrepareWorkDir& what, absl::Status& status) {
  const std::string work = JobPaths::Of(state_dir_, what.job).work_dir;
  std::error_code error;
  if (fs::is_directory(work, error)) {
    return true;  // An earlier attempt's, which this one goes on with.
  }
  const std::shared_lock lock(cache_mutex_);
  const std::string cached = Cached(what.digest);
  if (!fs::is_directory(cached, error)) {
    return false;
  }
  // Used now; the order is all that hangs on it.
  static_cast<void>(::utimensat(AT_FDCWD, cached.c_str(), nullptr, 0));
  const std::string part = work + std::string(kPartSuffix);
  status = RemoveTree(part);
  if (status.ok()) {
    fs::create_directories(fs::path(work).parent_path(), error);
    status = error ? absl::InternalError(fmt::format("making the folder of {}: {}", work, error.message()))
                   : working_dir::CopyTree(cached, part);
  }
  if (status.ok() && ::rename(part.c_str(), work.c_str()) != 0) {
    status = ErrnoStatus(fmt::format("naming {}", work), errno);
  }
  if (!status.ok()) {
    static_cast<void>(RemoveTree(part));  // The next try removes it too.
  }
  return true;
}

absl::Status WorkingDirs::Unpack(Transfer& transfer) {
  const std::string cached = Cached(transfer.digest());
  const std::string archive = cached + std::string(kArchiveSuffix);
  const std::string part = cached + std::string(kPartSuffix);
  std::error_code error;
  fs::create_directories(cache_dir_, error);
  if (error) {
    return absl::InternalError(fmt::format("making {}: {}", cache_dir_, error.message()));
  }
  absl::Status status = transfer.Receive(archive);
  if (status.ok()) {
    status = RemoveTree(part);
  }
  std::uint64_t bytes = 0;
  if (status.ok()) {
    const absl::StatusOr<std::uint64_t> unpacked = working_dir::Unpack(transfer.file(), part);
    status = unpacked.status();
    bytes = unpacked.ok() ? *unpacked : 0;
  }
  if (status.ok()) {
    // Its name promises what is in it, also after a power cut.
    const UniqueFd unpacked(::open(part.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!unpacked.valid() || ::syncfs(unpacked.get()) != 0) {
      status = ErrnoStatus(fmt::format("writing {}", part), errno);
    }
  }
  ::unlink(archive.c_str());
  if (status.ok() && ::rename(part.c_str(), cached.c_str()) != 0) {
    status = ErrnoStatus(fmt::format("naming {}", cached), errno);
  }
  if (!status.ok()) {
    static_cast<void>(RemoveTree(part));  // The next try removes it too.
    return status;
  }
  {
    const std::lock_guard lock(sizes_mutex_);
    sizes_[transfer.digest()] = bytes;
  }
  MakeRoom(transfer.digest());
  return absl::OkStatus();
}

void WorkingDirs::MakeRoom(const std::string& newest) {
  std::vector<std::tuple<fs::file_time_type, std::string, std::uint64_t>> found;
  std::uint64_t total = 0;
  {
    const std::lock_guard lock(sizes_mutex_);
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(cache_dir_, error)) {
      const std::string digest = entry.path().filename().string();
      if (!working_dir::IsDigest(digest)) {
        continue;
      }
      auto known = sizes_.find(digest);
      if (known == sizes_.end()) {
        const absl::StatusOr<std::uint64_t> bytes = working_dir::TreeBytes(entry.path().string());
        known = sizes_.emplace(digest, bytes.ok() ? *bytes : 0).first;
      }
      std::error_code gone;
      found.emplace_back(entry.last_write_time(gone), digest, known->second);
      total += known->second;
    }
  }
  std::sort(found.begin(), found.end());
  for (const auto& [time, digest, bytes] : found) {
    if (total <= kUnpackedBytesMax) {
      return;
    }
    if (digest == newest) {
      continue;
    }
    const std::string aside = Cached(digest) + std::string(kGoneSuffix);
    {
      const std::unique_lock lock(cache_mutex_);
      if (::rename(Cached(digest).c_str(), aside.c_str()) != 0) {
        continue;
      }
    }
    total -= bytes;
    spdlog::info("working directory removed from the cache digest={} bytes={}", digest, bytes);
    if (const absl::Status removed = RemoveTree(aside); !removed.ok()) {
      spdlog::warn("folder left behind why={}", Text(removed));
    }
    const std::lock_guard lock(sizes_mutex_);
    sizes_.erase(digest);
  }
}

void WorkingDirs::Answer(JobId job, const absl::Status& status) {
  if (!status.ok()) {
    spdlog::warn("no working directory job={} why={}", job.value, Text(status));
  }
  gate_->Post([this, job, status] { deliver_(WorkDirPrepared{job, status}); });
}

// ---- On the loop.

void WorkingDirs::Want(const PrepareWorkDir& what) {
  const auto [fetch, added] = fetches_.try_emplace(what.digest);
  fetch->second.jobs.insert(what.job);
  if (added) {
    Start(what.digest);
  }
}

void WorkingDirs::Start(const std::string& digest) {
  if (channel_ == nullptr) {
    return;  // When the head is there again.
  }
  const auto transfer = std::make_shared<Transfer>(channel_, digest, node_id_);
  fetches_[digest].transfer = transfer;
  spdlog::info("working directory fetched digest={}", digest);
  boost::asio::post(pool_, [this, transfer] {
    const absl::Status status = Unpack(*transfer);
    gate_->Post([this, digest = transfer->digest(), status, later = transfer->may_come_later()] {
      Fetched(digest, status, later);
    });
  });
}

void WorkingDirs::StartWaiting() {
  for (auto& [digest, fetch] : fetches_) {
    if (fetch.transfer == nullptr) {
      Start(digest);
    }
  }
}

void WorkingDirs::Fetched(const std::string& digest, const absl::Status& status, bool may_come_later) {
  const auto found = fetches_.find(digest);
  if (found == fetches_.end()) {
    return;
  }
  found->second.transfer = nullptr;
  if (!status.ok() && may_come_later) {
    spdlog::info("working directory comes later digest={} why={}", digest, Text(status));
    retry_.expires_after(kRetryInterval);
    retry_.async_wait([this](boost::system::error_code error) {
      if (!error) {
        StartWaiting();
      }
    });
    return;
  }
  const std::set<JobId> jobs = std::move(found->second.jobs);
  fetches_.erase(found);
  for (const JobId job : jobs) {
    if (status.ok()) {
      Prepare({job, digest});
    } else {
      Answer(job, status);
    }
  }
}

}  // namespace rayctl::agent
