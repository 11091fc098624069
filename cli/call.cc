#include "cli/call.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/status_text.h"
#include "cli/command_line.h"
#include "cli/output.h"
#include "cli/utf8_check.h"
#include "client/channel.h"
#include "rayctl/v1/cluster.grpc.pb.h"
#include "rayctl/v1/job.grpc.pb.h"
#include "rayctl/v1/token.grpc.pb.h"
#include "rayctl/v1/working_dir.grpc.pb.h"

namespace rayctl::cli {
namespace {

constexpr std::chrono::seconds kCallDeadline{10};
constexpr std::chrono::seconds kReconnectPatience{1};
constexpr std::chrono::seconds kRepeatDeadline{20};  // For a head that went away in the middle of a submit.
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
constexpr std::chrono::minutes kAwayMax{5};  // For one that goes away while a job is waited for.

void Prepare(grpc::ClientContext& context, const client::Endpoint& endpoint) {
  client::Authorize(context, endpoint.token);
}

}  // namespace

void AddHeadOptions(CLI::App& app, HeadOptions& options) {
  app.add_option("--address", options.address, "Head to talk to (default RAYCTL_ADDRESS, then the one on this machine)")
      ->type_name("HOST:PORT");
  app.add_option("--token", options.token, "Token (default RAYCTL_TOKEN, then this user's own)")->type_name("TOKEN");
  app.add_option("--token-file", options.token_file, "File that holds the token")->type_name("PATH");
}

absl::StatusOr<HeadClient> HeadClient::Open(const HeadOptions& options) {
  client::EndpointSettings settings = client::SettingsFromEnvironment();
  settings.address = options.address;
  settings.token = options.token;
  settings.token_file = options.token_file;
  absl::StatusOr<client::Endpoint> endpoint = client::FindHead(settings, client::LookAround(settings));
  if (!endpoint.ok()) {
    return endpoint.status();
  }
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = client::Connect(*endpoint);
  if (!channel.ok()) {
    return channel.status();
  }
  return HeadClient(*std::move(endpoint), *std::move(channel));
}

template <class Stub, class Method, class Request, class Response>
absl::Status HeadClient::Call(Method method, const Request& request, Response* response) {
  if (absl::Status text = CheckUtf8(request); !text.ok()) {
    return text;
  }
  // An earlier call found the head away. One that fails at once lends its thread to no new connection, so that on a
  // slow machine a program that asks again and again would never have one.
  if (channel_->GetState(false) == GRPC_CHANNEL_TRANSIENT_FAILURE) {
    channel_->WaitForConnected(std::chrono::system_clock::now() + kReconnectPatience);
  }
  const auto stub = Stub::NewStub(channel_);
  grpc::ClientContext context;
  Prepare(context, endpoint_);
  context.set_deadline(std::chrono::system_clock::now() + kCallDeadline);
  return client::FromGrpc((stub.get()->*method)(&context, request, response), endpoint_.address);
}

// Whether the last UNAVAILABLE came from a connection that broke, not from one that was never made.
bool HeadClient::WasConnected() const { return channel_->GetState(false) != GRPC_CHANNEL_TRANSIENT_FAILURE; }

absl::StatusOr<v1::GetStatusResponse> HeadClient::GetStatus() {
  v1::GetStatusResponse response;
  const absl::Status status =
      Call<v1::ClusterService>(&v1::ClusterService::Stub::GetStatus, v1::GetStatusRequest(), &response);
  return status.ok() ? absl::StatusOr<v1::GetStatusResponse>(std::move(response)) : status;
}

absl::StatusOr<v1::GetVersionResponse> HeadClient::GetVersion() {
  v1::GetVersionResponse response;
  const absl::Status status =
      Call<v1::ClusterService>(&v1::ClusterService::Stub::GetVersion, v1::GetVersionRequest(), &response);
  return status.ok() ? absl::StatusOr<v1::GetVersionResponse>(std::move(response)) : status;
}

absl::StatusOr<v1::ListNodesResponse> HeadClient::ListNodes() {
  v1::ListNodesResponse all;
  v1::ListNodesRequest request;
  do {
    v1::ListNodesResponse page;
    const absl::Status status = Call<v1::ClusterService>(&v1::ClusterService::Stub::ListNodes, request, &page);
    if (!status.ok()) {
      return status;
    }
    request.set_page_token(page.next_page_token());
    all.mutable_nodes()->MergeFrom(page.nodes());
  } while (!request.page_token().empty());
  return all;
}

absl::StatusOr<v1::ListJobsResponse> HeadClient::ListJobs(const v1::ListJobsRequest& first, std::uint64_t limit) {
  v1::ListJobsResponse all;
  v1::ListJobsRequest request = first;
  do {
    v1::ListJobsResponse page;
    const absl::Status status = Call<v1::JobService>(&v1::JobService::Stub::ListJobs, request, &page);
    if (!status.ok()) {
      return status;
    }
    request.set_page_token(page.next_page_token());
    all.mutable_jobs()->MergeFrom(page.jobs());
  } while (!request.page_token().empty() && static_cast<std::uint64_t>(all.jobs_size()) < limit);
  if (static_cast<std::uint64_t>(all.jobs_size()) > limit) {
    all.mutable_jobs()->DeleteSubrange(static_cast<int>(limit), all.jobs_size() - static_cast<int>(limit));
    all.set_next_page_token("more");
  } else {
    all.set_next_page_token(request.page_token());
  }
  return all;
}

absl::StatusOr<v1::ListWorkersResponse> HeadClient::ListWorkers(const v1::ListWorkersRequest& first) {
  v1::ListWorkersResponse all;
  v1::ListWorkersRequest request = first;
  do {
    v1::ListWorkersResponse page;
    const absl::Status status = Call<v1::JobService>(&v1::JobService::Stub::ListWorkers, request, &page);
    if (!status.ok()) {
      return status;
    }
    request.set_page_token(page.next_page_token());
    all.mutable_workers()->MergeFrom(page.workers());
  } while (!request.page_token().empty());
  return all;
}

absl::StatusOr<v1::GetJobResponse> HeadClient::GetJob(const v1::JobRef& job) {
  v1::GetJobRequest request;
  *request.mutable_job() = job;
  v1::GetJobResponse response;
  const absl::Status status = Call<v1::JobService>(&v1::JobService::Stub::GetJob, request, &response);
  return status.ok() ? absl::StatusOr<v1::GetJobResponse>(std::move(response)) : status;
}

absl::StatusOr<v1::CancelJobResponse> HeadClient::CancelJob(const v1::JobRef& job) {
  v1::CancelJobRequest request;
  *request.mutable_job() = job;
  v1::CancelJobResponse response;
  const absl::Status status = Call<v1::JobService>(&v1::JobService::Stub::CancelJob, request, &response);
  return status.ok() ? absl::StatusOr<v1::CancelJobResponse>(std::move(response)) : status;
}

absl::StatusOr<v1::SubmitJobResponse> HeadClient::SubmitJob(const v1::SubmitJobRequest& request) {
  v1::SubmitJobResponse response;
  absl::Status status = Call<v1::JobService>(&v1::JobService::Stub::SubmitJob, request, &response);
  if (absl::IsUnavailable(status) && WasConnected()) {
    Remark(fmt::format("the head at {} went away; waiting for it", endpoint_.address));
    const auto stub = v1::JobService::NewStub(channel_);
    grpc::ClientContext context;
    Prepare(context, endpoint_);
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + kRepeatDeadline);
    response.Clear();
    status = client::FromGrpc(stub->SubmitJob(&context, request, &response), endpoint_.address);
  }
  return status.ok() ? absl::StatusOr<v1::SubmitJobResponse>(std::move(response)) : status;
}

absl::StatusOr<v1::WaitJobResponse> HeadClient::WaitJob(const v1::JobRef& job,
                                                        std::optional<std::chrono::nanoseconds> timeout) {
  const auto start = std::chrono::system_clock::now();
  const auto stub = v1::JobService::NewStub(channel_);
  v1::WaitJobRequest request;
  *request.mutable_job() = job;
  if (absl::Status text = CheckUtf8(request); !text.ok()) {
    return text;
  }
  bool away = false;
  while (true) {
    if (away) {
      // Nothing of the wait is lost with the head: wait for it, then ask again.
      auto until = std::chrono::system_clock::now() + kAwayMax;
      if (timeout) {
        until = std::min(until, start + std::chrono::duration_cast<std::chrono::system_clock::duration>(*timeout));
      }
      if (!channel_->WaitForConnected(until)) {
        return timeout && std::chrono::system_clock::now() - start >= *timeout
                   ? absl::DeadlineExceededError("the job goes on")
                   : absl::UnavailableError(fmt::format("the head at {} stays away", endpoint_.address));
      }
    }
    grpc::ClientContext context;
    Prepare(context, endpoint_);
    if (timeout) {
      context.set_deadline(start + std::chrono::duration_cast<std::chrono::system_clock::duration>(*timeout));
    }
    v1::WaitJobResponse response;
    const absl::Status status = client::FromGrpc(stub->WaitJob(&context, request, &response), endpoint_.address);
    if (status.ok()) {
      return response;
    }
    if (!absl::IsUnavailable(status) || !(away || WasConnected())) {
      return status;
    }
    if (!away) {
      Remark(fmt::format("the head at {} went away; waiting for it", endpoint_.address));
    }
    away = true;
  }
}

absl::Status HeadClient::FollowJob(const v1::FollowJobRequest& request, std::chrono::milliseconds patience,
                                   const std::function<bool(const v1::FollowJobResponse&)>& on_event) {
  if (absl::Status text = CheckUtf8(request); !text.ok()) {
    return text;
  }
  if (patience.count() > 0 && !channel_->WaitForConnected(std::chrono::system_clock::now() + patience)) {
    return absl::UnavailableError(fmt::format("the head at {} stays away", endpoint_.address));
  }
  const auto stub = v1::JobService::NewStub(channel_);
  grpc::ClientContext context;
  Prepare(context, endpoint_);
  const auto reader = stub->FollowJob(&context, request);
  v1::FollowJobResponse event;
  while (reader->Read(&event)) {
    if (!on_event(event)) {
      context.TryCancel();
      static_cast<void>(reader->Finish());  // Ended by our own wish.
      return absl::OkStatus();
    }
  }
  return client::FromGrpc(reader->Finish(), endpoint_.address);
}

absl::StatusOr<bool> HeadClient::FindWorkingDir(const std::string& digest) {
  v1::FindWorkingDirRequest request;
  request.set_digest(digest);
  v1::FindWorkingDirResponse response;
  const absl::Status status =
      Call<v1::WorkingDirService>(&v1::WorkingDirService::Stub::FindWorkingDir, request, &response);
  return status.ok() ? absl::StatusOr<bool>(response.found()) : status;
}

absl::Status HeadClient::PutWorkingDir(const std::string& digest, int archive_fd,
                                       const std::function<void(std::uint64_t)>& on_progress) {
  const auto stub = v1::WorkingDirService::NewStub(channel_);
  grpc::ClientContext context;
  Prepare(context, endpoint_);
  v1::PutWorkingDirResponse response;
  const auto writer = stub->PutWorkingDir(&context, &response);
  v1::PutWorkingDirRequest request;
  request.set_digest(digest);
  std::uint64_t sent = 0;
  while (true) {
    std::string& data = *request.mutable_data();
    data.resize(kChunkBytes);
    const ssize_t got = ::pread(archive_fd, data.data(), data.size(), static_cast<off_t>(sent));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      const std::string why = std::strerror(errno);
      context.TryCancel();
      static_cast<void>(writer->Finish());  // Ended by our own wish.
      return absl::InternalError(fmt::format("reading the archive: {}", why));
    }
    data.resize(static_cast<std::size_t>(got));
    // A write that fails has its reason in the status below.
    if (got == 0 || !writer->Write(request)) {
      break;
    }
    sent += static_cast<std::uint64_t>(got);
    on_progress(sent);
    request.clear_digest();
  }
  writer->WritesDone();
  return client::FromGrpc(writer->Finish(), endpoint_.address);
}

absl::StatusOr<v1::CreateTokenResponse> HeadClient::CreateToken(const v1::CreateTokenRequest& request) {
  v1::CreateTokenResponse response;
  const absl::Status status = Call<v1::TokenService>(&v1::TokenService::Stub::CreateToken, request, &response);
  return status.ok() ? absl::StatusOr<v1::CreateTokenResponse>(std::move(response)) : status;
}

absl::StatusOr<v1::ListTokensResponse> HeadClient::ListTokens() {
  v1::ListTokensResponse all;
  v1::ListTokensRequest request;
  do {
    v1::ListTokensResponse page;
    const absl::Status status = Call<v1::TokenService>(&v1::TokenService::Stub::ListTokens, request, &page);
    if (!status.ok()) {
      return status;
    }
    request.set_page_token(page.next_page_token());
    all.mutable_tokens()->MergeFrom(page.tokens());
  } while (!request.page_token().empty());
  return all;
}

absl::Status HeadClient::RevokeToken(const std::string& name) {
  v1::RevokeTokenRequest request;
  request.set_name(name);
  v1::RevokeTokenResponse response;
  return Call<v1::TokenService>(&v1::TokenService::Stub::RevokeToken, request, &response);
}

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitDone;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kExitUnreachable;
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    default:
      return kExitRefused;
  }
}

int Failed(const absl::Status& status) {
  std::string text(rayctl::Text(status));
  if (absl::IsDeadlineExceeded(status)) {
    text = "the head does not answer in time";
  }
  if (ExitCodeOf(status) == kExitUnreachable && text.find("rayctl start") == std::string::npos) {
    text += "; `rayctl start --head` starts one, --address or RAYCTL_ADDRESS names another";
  }
  Remark(text);
  return ExitCodeOf(status);
}

}  // namespace rayctl::cli
