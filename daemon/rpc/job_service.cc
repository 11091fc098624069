#include <memory>
#include <utility>

#include "daemon/rpc/follow_request.h"
#include "daemon/rpc/service_context.h"
#include "daemon/rpc/translate.h"
#include "daemon/rpc/views.h"
#include "fmt/format.h"
#include "rayctl/v1/job.grpc.pb.h"

namespace rayctl::rpc {
namespace {

// Answers when the job has ended. Lives until gRPC is done with the call; what runs on the loop holds only `State`.
class WaitReactor final : public grpc::ServerUnaryReactor {
 public:
  struct State {
    WaitReactor* reactor = nullptr;  // Null once finished. Head loop only.
    HeadLoop::Watch watch;
    v1::WaitJobResponse* response = nullptr;
  };

  WaitReactor(ServiceContext& services, v1::JobRef ref, v1::WaitJobResponse* response) : services_(services) {
    state_->reactor = this;
    state_->response = response;
    services.loop.Post([&services, ref = std::move(ref), state = state_] { Begin(services, ref, state); });
  }

  void OnCancel() override {
    services_.loop.Post([state = state_] { Finish(state, absl::CancelledError("the client went away")); });
  }
  void OnDone() override { delete this; }

 private:
  static void Begin(ServiceContext& services, const v1::JobRef& ref, const std::shared_ptr<State>& state) {
    if (state->reactor == nullptr) {
      return;
    }
    const absl::StatusOr<const head::JobRecord*> job = FindJob(services.loop.head(), ref);
    if (!job.ok()) {
      Finish(state, job.status());
      return;
    }
    const JobId id = (*job)->id;
    state->watch = services.loop.WatchJob(id, [&services, id, weak = std::weak_ptr<State>(state)] {
      if (const std::shared_ptr<State> locked = weak.lock()) {
        Look(services, id, locked);
      }
    });
    Look(services, id, state);
  }

  static void Look(ServiceContext& services, JobId id, const std::shared_ptr<State>& state) {
    if (state->reactor == nullptr) {
      return;
    }
    const head::JobRecord* const job = services.loop.head().FindJob(id);
    if (job == nullptr) {
      Finish(state, absl::NotFoundError("the job is too old and was forgotten"));
    } else if (IsFinal(job->state)) {
      *state->response->mutable_job() = JobView(services.loop.head(), *job, Detail::kFull);
      Finish(state, absl::OkStatus());
    }
  }

  static void Finish(const std::shared_ptr<State>& state, const absl::Status& status) {
    if (WaitReactor* const reactor = std::exchange(state->reactor, nullptr)) {
      state->watch = {};
      reactor->grpc::ServerUnaryReactor::Finish(ToGrpc(status));
    }
  }

  ServiceContext& services_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

class FollowReactor final : public grpc::ServerWriteReactor<v1::FollowJobResponse>, public FollowSink {
 public:
  struct State {
    FollowReactor* reactor = nullptr;  // Null once finished. Head loop only.
    std::shared_ptr<FollowSession> session;
  };

  FollowReactor(ServiceContext& services, const v1::FollowJobRequest& request) : services_(services) {
    state_->reactor = this;
    services.loop.Post([&services, request, state = state_] { Begin(services, request, state); });
  }

  void OnWriteDone(bool ok) override {
    services_.loop.Post([ok, state = state_] {
      if (state->session != nullptr) {
        state->session->Written(ok);
      }
    });
  }
  void OnCancel() override {
    services_.loop.Post([state = state_] {
      if (state->session != nullptr) {
        state->session->Cancelled();
      } else if (state->reactor != nullptr) {
        state->reactor->Finish(absl::CancelledError("the client went away"));
      }
    });
  }
  void OnDone() override { delete this; }

  // FollowSink, on the loop.
  void Write(const v1::FollowJobResponse& response) override { StartWrite(&response); }
  void Finish(const absl::Status& status) override {
    // The session may hold the message of a write in flight, so it lives as long as this reactor does.
    state_->reactor = nullptr;
    keep_ = std::exchange(state_->session, nullptr);
    grpc::ServerWriteReactor<v1::FollowJobResponse>::Finish(ToGrpc(status));
  }

 private:
  static void Begin(ServiceContext& services, const v1::FollowJobRequest& request,
                    const std::shared_ptr<State>& state) {
    if (state->reactor == nullptr) {
      return;
    }
    const absl::StatusOr<const head::JobRecord*> job = FindJob(services.loop.head(), request.job());
    if (!job.ok()) {
      state->reactor->Finish(job.status());
      return;
    }
    absl::StatusOr<FollowOptions> options = ReadFollowRequest(services.loop.head(), **job, request);
    if (!options.ok()) {
      state->reactor->Finish(options.status());
      return;
    }
    state->session = std::make_shared<FollowSession>(services.relay, *std::move(options), *state->reactor);
    const std::shared_ptr<FollowSession> session = state->session;
    session->Start();
  }

  ServiceContext& services_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::shared_ptr<FollowSession> keep_;
};

class JobService final : public v1::JobService::CallbackService {
 public:
  explicit JobService(ServiceContext& services) : services_(services) {}

  grpc::ServerUnaryReactor* SubmitJob(grpc::CallbackServerContext* call, const v1::SubmitJobRequest* request,
                                      v1::SubmitJobResponse* response) override {
    return OnLoop(services_, call, [this, request, response](const Caller& caller, const Finish& finish) {
      absl::StatusOr<JobSpec> spec = FromProto(request->spec());
      if (!spec.ok()) {
        finish(spec.status());
        return;
      }
      if (!spec->working_dir.empty() &&
          (services_.working_dirs == nullptr || !services_.working_dirs->Has(spec->working_dir))) {
        finish(absl::FailedPreconditionError(
            fmt::format("working_dir: the head does not have {}; put it there first", spec->working_dir)));
        return;
      }
      services_.loop.Call(head::SubmitJob{.request_id = request->request_id(),
                                          .spec = *std::move(spec),
                                          .user = caller.user,
                                          .fail_infeasible = request->fail_infeasible()},
                          [response, finish](const absl::StatusOr<head::Answer>& answer) {
                            if (answer.ok()) {
                              const auto& submitted = std::get<head::SubmitAnswer>(*answer);
                              response->set_job_id(submitted.job.value);
                              response->mutable_remarks()->Assign(submitted.remarks.begin(), submitted.remarks.end());
                            }
                            finish(answer.status());
                          });
    });
  }

  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* call, const v1::GetJobRequest* request,
                                   v1::GetJobResponse* response) override {
    return OnLoop(services_, call, [this, request, response](const Caller&, const Finish& finish) {
      absl::StatusOr<v1::GetJobResponse> described = DescribeJob(services_.loop.head(), request->job());
      const absl::Status status = described.status();
      if (status.ok()) {
        *response = *std::move(described);
      }
      finish(status);
    });
  }

  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* call, const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override {
    return OnLoop(services_, call, [this, request, response](const Caller&, const Finish& finish) {
      finish(rpc::ListJobs(services_.loop.head(), *request, *response));
    });
  }

  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext* call, const v1::ListWorkersRequest* request,
                                        v1::ListWorkersResponse* response) override {
    return OnLoop(services_, call, [this, request, response](const Caller&, const Finish& finish) {
      finish(rpc::ListWorkers(services_.loop.head(), *request, *response));
    });
  }

  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* call, const v1::CancelJobRequest* request,
                                      v1::CancelJobResponse* response) override {
    return OnLoop(services_, call, [this, request, response](const Caller& caller, const Finish& finish) {
      const absl::StatusOr<const head::JobRecord*> job = FindJob(services_.loop.head(), request->job());
      if (!job.ok()) {
        finish(job.status());
        return;
      }
      services_.loop.Call(
          head::CancelJob{.job = (*job)->id, .user = caller.user, .any_job = caller.kind == CallerKind::kAdmin},
          [response, finish](const absl::StatusOr<head::Answer>& answer) {
            if (answer.ok()) {
              const auto& cancelled = std::get<head::CancelAnswer>(*answer);
              response->set_job_id(cancelled.job.value);
              response->set_state(ToProto(cancelled.state));
            }
            finish(answer.status());
          });
    });
  }

  grpc::ServerUnaryReactor* WaitJob(grpc::CallbackServerContext*, const v1::WaitJobRequest* request,
                                    v1::WaitJobResponse* response) override {
    return new WaitReactor(services_, request->job(), response);
  }

  grpc::ServerWriteReactor<v1::FollowJobResponse>* FollowJob(grpc::CallbackServerContext*,
                                                             const v1::FollowJobRequest* request) override {
    return new FollowReactor(services_, *request);
  }

 private:
  ServiceContext& services_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeJobService(ServiceContext& services) {
  return std::make_unique<JobService>(services);
}

}  // namespace rayctl::rpc
