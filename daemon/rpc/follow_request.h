#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/head/head.h"
#include "daemon/rpc/follow.h"
#include "rayctl/v1/job.pb.h"

namespace rayctl::rpc {

// What a FollowJob asks for. INVALID_ARGUMENT: a time, a stream or the regular expression is wrong. NOT_FOUND: there is
// no such rank, node or attempt of the job, and which there are.
absl::StatusOr<FollowOptions> ReadFollowRequest(const head::Head& head, const head::JobRecord& job,
                                                const ::rayctl::v1::FollowJobRequest& request);

// "0-3, 7" of {0, 1, 2, 3, 7}; in order.
std::string RanksText(const std::vector<Rank>& ranks);

}  // namespace rayctl::rpc
