#include "daemon/agent/log_keeper.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <filesystem>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "base/folders.h"
#include "base/status_text.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace rayctl::agent {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kShareOfDisk = 10;                // The default limit is one part of so many.
constexpr std::uint64_t kBytesPerBlock = 512;             // Of st_blocks, whatever the file system.
constexpr std::string_view kRemovedBegins = ".removed-";  // Folders that were moved aside and are to go.
constexpr std::string_view kAttemptBegins = "attempt_";
// Other parts own it: a checkpoint outlives what its job said.
constexpr std::string_view kCheckpoints = "checkpoints";

// What vanishes while it is looked at, and what cannot be read, counts as nothing.
KeptJob LookAt(JobId id, const fs::path& folder) {
  KeptJob job{.job = id};
  std::error_code ignored;
  const auto note = [&job](const fs::path& path) -> std::uint64_t {
    struct stat info {};
    if (::lstat(path.c_str(), &info) < 0) {
      return 0;
    }
    job.written = std::max(job.written, WallTime(std::chrono::seconds(info.st_mtim.tv_sec) +
                                                 std::chrono::nanoseconds(info.st_mtim.tv_nsec)));
    return static_cast<std::uint64_t>(info.st_blocks) * kBytesPerBlock;
  };
  for (const fs::directory_entry& entry : fs::directory_iterator(folder / "logs", ignored)) {
    const std::string name = entry.path().filename();
    AttemptNumber number = 0;
    if (!name.starts_with(kAttemptBegins) || !absl::SimpleAtoi(name.substr(kAttemptBegins.size()), &number)) {
      continue;
    }
    KeptAttempt attempt{number, note(entry.path())};
    for (const fs::directory_entry& file : fs::directory_iterator(entry.path(), ignored)) {
      attempt.bytes += note(file.path());
    }
    job.attempts.push_back(attempt);
  }
  note(folder);
  return job;
}

std::vector<KeptJob> LookAtAll(const std::string& jobs_dir) {
  std::vector<KeptJob> jobs;
  std::error_code ignored;  // No job has run here yet.
  for (const fs::directory_entry& entry : fs::directory_iterator(jobs_dir, ignored)) {
    const std::string name = entry.path().filename();
    JobId id;
    // What is left of a job whose logs went already.
    const bool only_checkpoints = fs::exists(entry.path() / kCheckpoints, ignored) &&
                                  !fs::exists(entry.path() / "logs", ignored) &&
                                  !fs::exists(entry.path() / "work", ignored);
    if (absl::SimpleAtoi(name, &id.value) && !only_checkpoints) {
      jobs.push_back(LookAt(id, entry.path()));
    }
  }
  return jobs;
}

void RemoveMovedAside(const std::string& jobs_dir) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(jobs_dir, ignored)) {
    if (entry.path().filename().string().starts_with(kRemovedBegins)) {
      // A job may have made some of its folders read-only.
      if (const absl::Status removed = RemoveTree(entry.path().string()); !removed.ok()) {
        spdlog::warn("old logs not removed why={}", Text(removed));
      }
    }
  }
}

}  // namespace

std::uint64_t DefaultLogBytesMax(const std::string& state_dir) {
  const std::uint64_t most = RetentionLimits().bytes_max;
  struct statvfs disk {};
  if (::statvfs(state_dir.c_str(), &disk) != 0) {
    return most;
  }
  return std::min<std::uint64_t>(most, static_cast<std::uint64_t>(disk.f_blocks) * disk.f_frsize / kShareOfDisk);
}

LogKeeper::LogKeeper(boost::asio::io_context& loop, std::string state_dir, RetentionLimits limits, LiveJobs live_jobs)
    : jobs_dir_(std::move(state_dir) + "/jobs"),
      limits_(limits),
      live_jobs_(std::move(live_jobs)),
      gate_(std::make_shared<LoopGate>(loop)),
      timer_(loop) {}

LogKeeper::~LogKeeper() {
  gate_->Close();
  disk_.join();
}

void LogKeeper::Touch() {
  touched_ = true;
  if (!armed_) {
    Arm(kInterval);
  }
}

void LogKeeper::Arm(std::chrono::milliseconds after) {
  armed_ = true;
  timer_.expires_after(after);
  timer_.async_wait([this](boost::system::error_code error) {
    if (!error) {
      Look();
    }
  });
}

void LogKeeper::Look() {
  touched_ = false;
  boost::asio::post(disk_, [gate = gate_, this, dir = jobs_dir_] {
    RemoveMovedAside(dir);
    gate->Post([this, kept = LookAtAll(dir)]() mutable { Decide(std::move(kept)); });
  });
}

void LogKeeper::Decide(std::vector<KeptJob> kept) {
  armed_ = false;
  const std::optional<std::map<JobId, AttemptNumber>> live = live_jobs_();
  if (!live) {
    Touch();  // Once the head has said which they are.
    return;
  }
  for (KeptJob& job : kept) {
    if (const auto found = live->find(job.job); found != live->end()) {
      job.live_from = found->second;
    }
  }
  const Removals removals = ChooseRemovals(std::move(kept), limits_);
  const auto move_aside = [this](const fs::path& path) {
    std::error_code error;
    fs::rename(path, fmt::format("{}/{}{}-{}", jobs_dir_, kRemovedBegins, ::getpid(), ++moved_), error);
    if (error && error != std::errc::no_such_file_or_directory) {
      spdlog::warn("old logs not removed path={} why={}", path.string(), error.message());
    }
  };
  for (const auto& [job, attempt] : removals.attempts) {
    move_aside(fmt::format("{}/{}/logs/{}{}", jobs_dir_, job.value, kAttemptBegins, attempt));
  }
  for (const JobId job : removals.jobs) {
    const fs::path folder = fmt::format("{}/{}", jobs_dir_, job.value);
    std::error_code ignored;
    if (!fs::exists(folder / kCheckpoints, ignored)) {
      move_aside(folder);
      continue;
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
      if (entry.path().filename() != kCheckpoints) {
        move_aside(entry.path());
      }
    }
  }
  if (!removals.jobs.empty() || !removals.attempts.empty()) {
    spdlog::info("old logs removed jobs={} attempts={} bytes_left={}", removals.jobs.size(), removals.attempts.size(),
                 removals.bytes_left);
    boost::asio::post(disk_, [dir = jobs_dir_] { RemoveMovedAside(dir); });
  }
  const bool was_over = std::exchange(over_, removals.bytes_left > limits_.bytes_max);
  if (over_ && !was_over) {
    spdlog::warn("logs of jobs that go on are over the limit bytes={} bytes_max={}", removals.bytes_left,
                 limits_.bytes_max);
  }
  if (touched_ || !live->empty()) {
    Touch();
  }
}

}  // namespace rayctl::agent
