#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/head/head.h"
#include "rayctl/v1/cluster.pb.h"
#include "rayctl/v1/job.pb.h"
#include "rayctl/v1/token.pb.h"

// What the API shows of the head's state. Pure: reads the head, changes nothing.
namespace rayctl::rpc {

enum class Detail { kFull, kList };  // A list leaves out env_vars and train_loop_config_json, which may be long.

::rayctl::v1::Job JobView(const head::Head& head, const head::JobRecord& job, Detail detail);
// Workers of the current attempt, by rank.
std::vector<::rayctl::v1::Worker> WorkerViews(const head::Head& head, const head::JobRecord& job);
::rayctl::v1::Node NodeView(const head::Head::NodeStatus& node);
::rayctl::v1::Token TokenView(const head::TokenRecord& token);

// All but address, version and started_at, which the daemon knows.
void FillStatus(const head::Head& head, ::rayctl::v1::GetStatusResponse& response);

// NOT_FOUND: no such job. INVALID_ARGUMENT: the reference is empty. Both, likewise, below.
absl::StatusOr<const head::JobRecord*> FindJob(const head::Head& head, const ::rayctl::v1::JobRef& ref);
// The whole of a job, with the workers of its current attempt.
absl::StatusOr<::rayctl::v1::GetJobResponse> DescribeJob(const head::Head& head, const ::rayctl::v1::JobRef& ref);

// Pages. INVALID_ARGUMENT: a page token that no earlier page gave.
absl::Status ListJobs(const head::Head& head, const ::rayctl::v1::ListJobsRequest& request,
                      ::rayctl::v1::ListJobsResponse& response);
absl::Status ListWorkers(const head::Head& head, const ::rayctl::v1::ListWorkersRequest& request,
                         ::rayctl::v1::ListWorkersResponse& response);
absl::Status ListNodes(const head::Head& head, const ::rayctl::v1::ListNodesRequest& request,
                       ::rayctl::v1::ListNodesResponse& response);
absl::Status ListTokens(const head::Head& head, const ::rayctl::v1::ListTokensRequest& request,
                        ::rayctl::v1::ListTokensResponse& response);

}  // namespace rayctl::rpc
