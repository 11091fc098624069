#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/endpoint.h"
#include "rayctl/v1/cluster.pb.h"
#include "rayctl/v1/job.pb.h"
#include "rayctl/v1/token.pb.h"

namespace CLI {
class App;
}

namespace rayctl::cli {

// --address, --token, --token-file; every verb that talks to a head has them.
struct HeadOptions {
  std::string address;
  std::string token;
  std::string token_file;
};
void AddHeadOptions(CLI::App& app, HeadOptions& options);

// The head's API as plain functions: one channel, connected at the first call. Failures keep the head's code;
// UNAVAILABLE and DEADLINE_EXCEEDED mean that it did not answer. Not thread-safe.
class HeadClient {
 public:
  static absl::StatusOr<HeadClient> Open(const HeadOptions& options);

  absl::StatusOr<v1::GetStatusResponse> GetStatus();
  absl::StatusOr<v1::GetVersionResponse> GetVersion();
  absl::StatusOr<v1::ListNodesResponse> ListNodes();  // All pages.
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request, std::uint64_t limit);
  absl::StatusOr<v1::ListWorkersResponse> ListWorkers(const v1::ListWorkersRequest& request);  // All pages.
  absl::StatusOr<v1::GetJobResponse> GetJob(const v1::JobRef& job);
  absl::StatusOr<v1::CancelJobResponse> CancelJob(const v1::JobRef& job);
  // A head that goes away in the middle is waited for: the request's id makes the repeat harmless.
  absl::StatusOr<v1::SubmitJobResponse> SubmitJob(const v1::SubmitJobRequest& request);
  // DEADLINE_EXCEEDED: the job goes on after `timeout` (none: waits for ever, over restarts of the head).
  absl::StatusOr<v1::WaitJobResponse> WaitJob(const v1::JobRef& job, std::optional<std::chrono::nanoseconds> timeout);
  // Calls `on_event` for each, until the stream ends or it gives false (then OK). Waits up to `patience` for a head
  // that is away; none: not at all.
  absl::Status FollowJob(const v1::FollowJobRequest& request, std::chrono::milliseconds patience,
                         const std::function<bool(const v1::FollowJobResponse&)>& on_event);
  // Whether the head has the packed folder with that digest.
  absl::StatusOr<bool> FindWorkingDir(const std::string& digest);
  // Sends what `archive_fd` reads from its beginning; `on_progress` hears how many bytes have gone.
  absl::Status PutWorkingDir(const std::string& digest, int archive_fd,
                             const std::function<void(std::uint64_t)>& on_progress);
  absl::StatusOr<v1::CreateTokenResponse> CreateToken(const v1::CreateTokenRequest& request);
  absl::StatusOr<v1::ListTokensResponse> ListTokens();  // All pages.
  absl::Status RevokeToken(const std::string& name);

  const std::string& address() const { return endpoint_.address; }

 private:
  HeadClient(client::Endpoint endpoint, std::shared_ptr<grpc::Channel> channel)
      : endpoint_(std::move(endpoint)), channel_(std::move(channel)) {}

  template <class Stub, class Method, class Request, class Response>
  absl::Status Call(Method method, const Request& request, Response* response);
  bool WasConnected() const;

  client::Endpoint endpoint_;
  std::shared_ptr<grpc::Channel> channel_;
};

// Says on stderr what failed and what to do, and gives the exit code: 3 no head answers, 2 a request that is wrong in
// itself, else 1.
int Failed(const absl::Status& status);
int ExitCodeOf(const absl::Status& status);

}  // namespace rayctl::cli
