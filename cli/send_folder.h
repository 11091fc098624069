#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "rayctl/v1/job.pb.h"
#include "working_dir/pack.h"

// A person's folder on its way to the head.
namespace rayctl::cli {

class HeadClient;

struct Folder {
  std::string path;  // Empty: the job has none.
  working_dir::Listing listing;
};
// Looks at what would be sent, and refuses what cannot be; see working_dir::List. OK and empty for an empty path.
absl::StatusOr<Folder> ListFolder(const std::string& path);

// Packs the folder, sends it where the head does not have it yet, and submits the job with its digest. Says how far it
// is on stderr when that takes long.
absl::StatusOr<v1::SubmitJobResponse> SubmitWithFolder(HeadClient& head, v1::SubmitJobRequest request,
                                                       const Folder& folder);

}  // namespace rayctl::cli
