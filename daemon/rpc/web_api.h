#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "daemon/head/head.h"
#include "rayctl/v1/cluster.pb.h"

namespace rayctl::rpc {

// The JSON of a path below /api/v1/, as `-o json` prints it: status, nodes, jobs (newest first, at most kWebJobsMax),
// jobs/JOB (`describe`). Reads the head and changes nothing. `status` has what only the daemon knows filled in.
// NOT_FOUND: nothing is called so.
absl::StatusOr<std::string> WebApiJson(const head::Head& head, std::string_view path,
                                       ::rayctl::v1::GetStatusResponse status);

inline constexpr std::uint32_t kWebJobsMax = 1000;

}  // namespace rayctl::rpc
