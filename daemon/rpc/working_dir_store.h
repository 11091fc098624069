#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "working_dir/digest.h"

namespace rayctl::rpc {

inline constexpr std::uint64_t kWorkingDirsBytesMax = std::uint64_t{10} << 30;  // Of all packed folders on the head.
inline constexpr std::size_t kUploadsMax = 16;                                  // At once.

// The packed folders that the head keeps, a file each, named by its digest: whole, or not there. Thread-safe; all but
// Has goes to the disk.
class WorkingDirStore {
 public:
  // Reads what is there; what an upload that was cut short left is removed.
  static absl::StatusOr<std::unique_ptr<WorkingDirStore>> Open(std::string folder,
                                                               std::uint64_t bytes_max = kWorkingDirsBytesMax);

  // A folder that was asked for counts as used now.
  bool Has(const std::string& digest);

  // One on its way in; forgotten unless it is finished.
  class Upload {
   public:
    ~Upload();
    Upload(const Upload&) = delete;
    Upload& operator=(const Upload&) = delete;
    // RESOURCE_EXHAUSTED: larger than an archive may be, or the disk is full.
    absl::Status Add(std::string_view bytes);
    // INVALID_ARGUMENT: what came has another digest.
    absl::Status Finish();

   private:
    friend class WorkingDirStore;
    Upload(WorkingDirStore& store, std::string digest) : store_(store), digest_(std::move(digest)) {}

    WorkingDirStore& store_;
    const std::string digest_;
    std::string path_;
    UniqueFd file_;
    working_dir::Sha256 hash_;
    std::uint64_t bytes_ = 0;
  };
  // INVALID_ARGUMENT: no digest. RESOURCE_EXHAUSTED: kUploadsMax are on their way.
  absl::StatusOr<std::unique_ptr<Upload>> Begin(const std::string& digest);

  // Removes what was not used for the longest until the rest fits; never what is in `needed`, nor `newest`.
  // RESOURCE_EXHAUSTED: that is not enough; then `newest` is removed too, unless it is needed.
  absl::Status MakeRoom(const std::set<std::string>& needed, const std::string& newest);

  // The archive, to be read from its beginning. NOT_FOUND.
  absl::StatusOr<UniqueFd> Read(const std::string& digest);

 private:
  struct Kept {
    std::uint64_t bytes = 0;
    std::uint64_t used = 0;  // Counts up; the smallest was used first.
  };

  WorkingDirStore(std::string folder, std::uint64_t bytes_max) : folder_(std::move(folder)), bytes_max_(bytes_max) {}
  // What is to go, taken out of what is kept.
  absl::Status Choose(const std::set<std::string>& needed, const std::string& newest, std::vector<std::string>& gone);
  std::string Path(const std::string& digest) const { return folder_ + "/" + digest; }

  const std::string folder_;
  const std::uint64_t bytes_max_;
  std::mutex names_mutex_;  // For the files' names; taken before the other, which is never held over the disk.
  std::mutex mutex_;
  std::map<std::string, Kept> kept_;
  std::uint64_t uses_ = 0;
  std::uint64_t last_upload_ = 0;
  std::size_t uploads_ = 0;
};

}  // namespace rayctl::rpc
