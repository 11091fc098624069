#include <unistd.h>

#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "base/states.h"
#include "daemon/rpc/service_context.h"
#include "daemon/rpc/working_dir_store.h"
#include "fmt/format.h"
#include "rayctl/v1/working_dir.grpc.pb.h"
#include "spdlog/spdlog.h"

namespace rayctl::rpc {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
constexpr std::size_t kDiskThreads = 2;

using Disk = boost::asio::thread_pool;

// What jobs that have not ended were submitted with. Head loop only.
std::set<std::string> Needed(const head::Head& head) {
  std::set<std::string> needed;
  for (const auto& [id, job] : head.jobs()) {
    if (!job.spec.working_dir.empty() && !IsFinal(job.state)) {
      needed.insert(job.spec.working_dir);
    }
  }
  return needed;
}

// A folder comes in. One step at a time: a read, then the disk's thread, then the next read.
class PutReactor final : public grpc::ServerReadReactor<v1::PutWorkingDirRequest> {
 public:
  PutReactor(ServiceContext& services, Disk& disk, const grpc::CallbackServerContext* call)
      : services_(services), disk_(disk), call_(call) {
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override {
    boost::asio::post(disk_, [this, ok] { ok ? Take() : Complete(); });
  }
  void OnDone() override { delete this; }

 private:
  void Take() {
    absl::Status status;
    if (upload_ == nullptr) {
      digest_ = incoming_.digest();
      absl::StatusOr<std::unique_ptr<WorkingDirStore::Upload>> begun = services_.working_dirs->Begin(digest_);
      status = begun.status();
      if (status.ok()) {
        upload_ = *std::move(begun);
      }
    }
    if (status.ok()) {
      status = upload_->Add(incoming_.data());
    }
    if (!status.ok()) {
      End(status);
      return;
    }
    incoming_.Clear();
    StartRead(&incoming_);
  }

  void Complete() {
    if (call_->IsCancelled()) {
      End(absl::CancelledError("the client went away"));
      return;
    }
    if (upload_ == nullptr) {
      End(absl::InvalidArgumentError("nothing came"));
      return;
    }
    if (const absl::Status finished = upload_->Finish(); !finished.ok()) {
      End(finished);
      return;
    }
    services_.loop.Post([this] {
      boost::asio::post(disk_, [this, needed = Needed(services_.loop.head())] {
        const absl::Status status = services_.working_dirs->MakeRoom(needed, digest_);
        spdlog::info("working directory taken digest={} why_not={}", digest_, std::string(status.message()));
        End(status);
      });
    });
  }

  void End(const absl::Status& status) {
    upload_.reset();
    Finish(ToGrpc(status));
  }

  ServiceContext& services_;
  Disk& disk_;
  const grpc::CallbackServerContext* call_;
  v1::PutWorkingDirRequest incoming_;
  std::string digest_;
  std::unique_ptr<WorkingDirStore::Upload> upload_;
};

// A folder goes to an agent.
class GetReactor final : public grpc::ServerWriteReactor<v1::GetWorkingDirResponse> {
 public:
  GetReactor(ServiceContext& services, Disk& disk, std::string digest) : services_(services), disk_(disk) {
    boost::asio::post(disk_, [this, digest = std::move(digest)] {
      absl::StatusOr<UniqueFd> file = services_.working_dirs->Read(digest);
      if (!file.ok()) {
        Finish(ToGrpc(file.status()));
        return;
      }
      file_ = *std::move(file);
      Next();
    });
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the agent went away"));
      return;
    }
    boost::asio::post(disk_, [this] { Next(); });
  }
  void OnDone() override { delete this; }

 private:
  void Next() {
    std::string& data = *outgoing_.mutable_data();
    data.resize(kChunkBytes);
    ssize_t got = 0;
    do {
      got = ::read(file_.get(), data.data(), data.size());
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
      Finish(ToGrpc(
          absl::DataLossError(fmt::format("reading a working directory on the head: {}", std::strerror(errno)))));
    } else if (got == 0) {
      Finish(grpc::Status::OK);
    } else {
      data.resize(static_cast<std::size_t>(got));
      StartWrite(&outgoing_);
    }
  }

  ServiceContext& services_;
  Disk& disk_;
  UniqueFd file_;
  v1::GetWorkingDirResponse outgoing_;
};

template <class Reactor>
class Refused final : public Reactor {
 public:
  explicit Refused(const grpc::Status& why) { this->Finish(why); }
  void OnDone() override { delete this; }
};

class WorkingDirService final : public v1::WorkingDirService::CallbackService {
 public:
  explicit WorkingDirService(ServiceContext& services) : services_(services) {}
  ~WorkingDirService() override { disk_.join(); }

  grpc::ServerUnaryReactor* FindWorkingDir(grpc::CallbackServerContext* call, const v1::FindWorkingDirRequest* request,
                                           v1::FindWorkingDirResponse* response) override {
    return OnLoop(services_, call, [this, request, response](const Caller&, const rpc::Finish& finish) {
      response->set_found(services_.working_dirs != nullptr && services_.working_dirs->Has(request->digest()));
      finish(absl::OkStatus());
    });
  }

  grpc::ServerReadReactor<v1::PutWorkingDirRequest>* PutWorkingDir(grpc::CallbackServerContext* call,
                                                                   v1::PutWorkingDirResponse*) override {
    if (services_.working_dirs == nullptr) {
      return new Refused<grpc::ServerReadReactor<v1::PutWorkingDirRequest>>(NoStore());
    }
    return new PutReactor(services_, disk_, call);
  }

  grpc::ServerWriteReactor<v1::GetWorkingDirResponse>* GetWorkingDir(grpc::CallbackServerContext* /*call*/,
                                                                     const v1::GetWorkingDirRequest* request) override {
    if (services_.working_dirs == nullptr) {
      return new Refused<grpc::ServerWriteReactor<v1::GetWorkingDirResponse>>(NoStore());
    }
    return new GetReactor(services_, disk_, request->digest());
  }

 private:
  static grpc::Status NoStore() {
    return {grpc::StatusCode::FAILED_PRECONDITION, "this head keeps no working directories"};
  }

  ServiceContext& services_;
  Disk disk_{kDiskThreads};  // The loop and gRPC's threads wait for no disk.
};

}  // namespace

std::unique_ptr<grpc::Service> MakeWorkingDirService(ServiceContext& services) {
  return std::make_unique<WorkingDirService>(services);
}

}  // namespace rayctl::rpc
