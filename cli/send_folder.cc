#include "cli/send_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/status_text.h"
#include "base/units.h"
#include "cli/call.h"
#include "cli/output.h"

namespace rayctl::cli {
namespace {

// Between two words on how far it is; what takes less is done without one.
constexpr std::chrono::seconds kProgressInterval{3};
constexpr int kSubmitsMax = 3;  // A head under pressure may drop a folder between its arrival and the job's.
constexpr std::size_t kLeftOutNamed = 3;

class Progress {
 public:
  Progress(std::string what, std::uint64_t total) : what_(std::move(what)), total_(total) {}

  void Reached(std::uint64_t bytes) {
    const auto now = std::chrono::steady_clock::now();
    if (now - told_ >= kProgressInterval) {
      told_ = now;
      Remark(fmt::format("{}: {} of {}", what_, FormatBytes(static_cast<std::int64_t>(bytes)),
                         FormatBytes(static_cast<std::int64_t>(total_))));
    }
  }

 private:
  const std::string what_;
  const std::uint64_t total_;
  std::chrono::steady_clock::time_point told_ = std::chrono::steady_clock::now();
};

absl::Status Send(HeadClient& head, const Folder& folder, const working_dir::Packed& packed) {
  Progress progress(fmt::format("sending {}", folder.path), packed.archive_bytes);
  return head.PutWorkingDir(packed.digest, packed.archive.get(),
                            [&progress](std::uint64_t bytes) { progress.Reached(bytes); });
}

}  // namespace

absl::StatusOr<Folder> ListFolder(const std::string& path) {
  Folder folder{.path = path};
  if (path.empty()) {
    return folder;
  }
  absl::StatusOr<working_dir::Listing> listing = working_dir::List(path);
  if (!listing.ok()) {
    return rayctl::Annotate(listing.status(), "working directory");
  }
  folder.listing = *std::move(listing);
  if (const std::vector<std::string>& left_out = folder.listing.left_out; !left_out.empty()) {
    std::string names;
    for (std::size_t i = 0; i < std::min(left_out.size(), kLeftOutNamed); ++i) {
      names += fmt::format("{}{}", i == 0 ? "" : ", ", left_out[i]);
    }
    Remark(fmt::format(
        "not sent along, because they are sockets, pipes or devices: {}{}", names,
        left_out.size() > kLeftOutNamed ? fmt::format(" and {} more", left_out.size() - kLeftOutNamed) : ""));
  }
  return folder;
}

absl::StatusOr<v1::SubmitJobResponse> SubmitWithFolder(HeadClient& head, v1::SubmitJobRequest request,
                                                       const Folder& folder) {
  if (folder.path.empty()) {
    return head.SubmitJob(request);
  }
  Progress progress(fmt::format("packing {}", folder.path), folder.listing.bytes);
  const absl::StatusOr<working_dir::Packed> packed =
      working_dir::Pack(folder.path, folder.listing, [&progress](std::uint64_t bytes) { progress.Reached(bytes); });
  if (!packed.ok()) {
    // A file that cannot be read is no head that refuses.
    return absl::AbortedError(fmt::format("working directory: {}", rayctl::Text(packed.status())));
  }
  request.mutable_spec()->set_working_dir(packed->digest);
  for (int tries = 1;; ++tries) {
    const absl::StatusOr<bool> found = head.FindWorkingDir(packed->digest);
    if (!found.ok()) {
      return found.status();
    }
    if (!*found) {
      if (absl::Status sent = Send(head, folder, *packed); !sent.ok()) {
        return sent;
      }
    }
    absl::StatusOr<v1::SubmitJobResponse> response = head.SubmitJob(request);
    if (!absl::IsFailedPrecondition(response.status()) || tries == kSubmitsMax) {
      return response;
    }
    // Refused for what it asks, or because the folder is gone again.
    const absl::StatusOr<bool> still_there = head.FindWorkingDir(packed->digest);
    if (!still_there.ok() || *still_there) {
      return response;
    }
  }
}

}  // namespace rayctl::cli
