// What calls over TLS cost, on a real head and on a bare gRPC server that only answers (the floor), and how fast jobs
// that do nothing go through. Each mode prints one line of JSON.
//
//   rayctl_bench_calls serve CERT KEY          the bare server: prints its port, answers GetVersion until stdin closes
//   rayctl_bench_calls floor PORT CA COUNT     GetVersion on it, one at a time and with 100 outstanding
//   rayctl_bench_calls version COUNT           the same on the head that RAYCTL_ADDRESS, or this machine, names
//   rayctl_bench_calls durable COUNT           CreateToken, one at a time: answered after the commit
//   rayctl_bench_calls jobs COUNT              submits COUNT jobs `true` at once and waits until the last has ended
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client/channel.h"
#include "client/endpoint.h"
#include "rayctl/v1/cluster.grpc.pb.h"
#include "rayctl/v1/job.grpc.pb.h"
#include "rayctl/v1/token.grpc.pb.h"

namespace {

namespace v1 = rayctl::v1;
using SteadyClock = std::chrono::steady_clock;

constexpr int kOutstanding = 100;
constexpr int kWarmUpCalls = 50;
constexpr std::chrono::minutes kJobsDeadline{5};

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);
}

void Check(const grpc::Status& status, const char* what) {
  if (!status.ok()) {
    Fail(std::string(what) + ": " + status.error_message());
  }
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    Fail("cannot read " + path);
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

double Micros(SteadyClock::duration duration) { return std::chrono::duration<double, std::micro>(duration).count(); }

// Counts down from any thread; one thread waits for zero.
class Countdown {
 public:
  explicit Countdown(int count) : left_(count) {}
  void Done() {
    const std::lock_guard lock(mutex_);
    if (--left_ == 0) {
      zero_.notify_all();
    }
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    zero_.wait(lock, [this] { return left_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable zero_;
  int left_;
};

struct Target {
  std::shared_ptr<grpc::Channel> channel;
  std::string token;
};

Target HeadTarget() {
  const rayctl::client::EndpointSettings settings = rayctl::client::SettingsFromEnvironment();
  auto endpoint = rayctl::client::FindHead(settings, rayctl::client::LookAround(settings));
  if (!endpoint.ok()) {
    Fail(std::string(endpoint.status().message()));
  }
  auto channel = rayctl::client::Connect(*endpoint);
  if (!channel.ok()) {
    Fail(std::string(channel.status().message()));
  }
  return {*std::move(channel), endpoint->token};
}

void PrintLatency(std::vector<double> micros, double calls_per_second) {
  std::sort(micros.begin(), micros.end());
  std::printf("{\"median_us\":%.1f,\"min_us\":%.1f,\"max_us\":%.1f", micros[micros.size() / 2], micros.front(),
              micros.back());
  if (calls_per_second > 0) {
    std::printf(",\"calls_per_second\":%.0f", calls_per_second);
  }
  std::printf("}\n");
}

std::vector<double> OneAtATime(int count, const std::function<void()>& call) {
  for (int i = 0; i < kWarmUpCalls; ++i) {
    call();
  }
  std::vector<double> micros;
  for (int i = 0; i < count; ++i) {
    const auto begun = SteadyClock::now();
    call();
    micros.push_back(Micros(SteadyClock::now() - begun));
  }
  return micros;
}

// Keeps kOutstanding GetVersion calls in flight until `count` were answered; each answer sends the next.
double CallsPerSecond(v1::ClusterService::Stub& stub, const std::string& token, int count) {
  struct Call {
    grpc::ClientContext context;
    v1::GetVersionRequest request;
    v1::GetVersionResponse response;
  };
  std::atomic<int> to_send{count};
  Countdown answered(count);
  std::function<void()> send = [&] {
    if (to_send.fetch_sub(1) <= 0) {
      return;
    }
    auto call = std::make_shared<Call>();
    rayctl::client::Authorize(call->context, token);
    stub.async()->GetVersion(&call->context, &call->request, &call->response, [&, call](const grpc::Status& status) {
      Check(status, "GetVersion");
      send();
      answered.Done();
    });
  };
  const auto begun = SteadyClock::now();
  for (int i = 0; i < kOutstanding; ++i) {
    send();
  }
  answered.Wait();
  return count / std::chrono::duration<double>(SteadyClock::now() - begun).count();
}

void Version(const Target& target, int count) {
  const auto stub = v1::ClusterService::NewStub(target.channel);
  auto micros = OneAtATime(count, [&] {
    grpc::ClientContext context;
    rayctl::client::Authorize(context, target.token);
    v1::GetVersionResponse response;
    Check(stub->GetVersion(&context, {}, &response), "GetVersion");
  });
  PrintLatency(std::move(micros), CallsPerSecond(*stub, target.token, count * 10));
}

void Durable(const Target& target, int count) {
  const auto stub = v1::TokenService::NewStub(target.channel);
  const std::string prefix = "bench-" + std::to_string(::getpid()) + "-";
  int number = 0;
  PrintLatency(OneAtATime(count,
                          [&] {
                            grpc::ClientContext context;
                            rayctl::client::Authorize(context, target.token);
                            v1::CreateTokenRequest request;
                            request.set_name(prefix + std::to_string(number++));
                            request.set_role(v1::ROLE_VIEWER);
                            v1::CreateTokenResponse response;
                            Check(stub->CreateToken(&context, request, &response), "CreateToken");
                          }),
               0);
}

void Jobs(const Target& target, int count) {
  const auto stub = v1::JobService::NewStub(target.channel);
  struct Call {
    grpc::ClientContext submit_context;
    grpc::ClientContext wait_context;
    v1::SubmitJobRequest submit;
    v1::SubmitJobResponse submitted;
    v1::WaitJobRequest wait;
    v1::WaitJobResponse ended;
  };
  std::vector<std::unique_ptr<Call>> calls;
  Countdown accepted(count);
  Countdown ended(count);
  const std::string prefix = "bench-" + std::to_string(::getpid()) + "-";
  for (int i = 0; i < count; ++i) {
    auto call = std::make_unique<Call>();
    for (grpc::ClientContext* context : {&call->submit_context, &call->wait_context}) {
      rayctl::client::Authorize(*context, target.token);
      context->set_deadline(std::chrono::system_clock::now() + kJobsDeadline);
    }
    call->submit.set_request_id(prefix + std::to_string(i));
    call->submit.mutable_spec()->set_name("noop");
    call->submit.mutable_spec()->add_argv("/bin/true");
    call->submit.mutable_spec()->set_kind(v1::JOB_KIND_COMMAND);
    calls.push_back(std::move(call));
  }
  const auto begun = SteadyClock::now();
  for (const auto& owned : calls) {
    Call* call = owned.get();
    stub->async()->SubmitJob(
        &call->submit_context, &call->submit, &call->submitted, [&, call](const grpc::Status& status) {
          Check(status, "SubmitJob");
          accepted.Done();
          call->wait.mutable_job()->set_id(call->submitted.job_id());
          stub->async()->WaitJob(&call->wait_context, &call->wait, &call->ended, [&, call](const grpc::Status& waited) {
            Check(waited, "WaitJob");
            if (call->ended.job().status().state() != v1::JOB_STATE_SUCCEEDED) {
              Fail("a job of the benchmark did not succeed: " + call->ended.job().status().message());
            }
            ended.Done();
          });
        });
  }
  accepted.Wait();
  const auto all_accepted = SteadyClock::now();
  ended.Wait();
  const std::chrono::duration<double> total = SteadyClock::now() - begun;
  const std::chrono::duration<double> accepting = all_accepted - begun;
  std::printf("{\"jobs\":%d,\"seconds\":%.4f,\"jobs_per_second\":%.1f,\"accept_seconds\":%.4f}\n", count, total.count(),
              count / total.count(), accepting.count());
}

class BareService final : public v1::ClusterService::CallbackService {
 public:
  grpc::ServerUnaryReactor* GetVersion(grpc::CallbackServerContext* context, const v1::GetVersionRequest*,
                                       v1::GetVersionResponse* response) override {
    response->set_version("floor");
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

void Serve(const std::string& certificate, const std::string& key) {
  grpc::SslServerCredentialsOptions options;
  options.pem_key_cert_pairs.push_back({ReadFile(key), ReadFile(certificate)});
  BareService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(options), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    Fail("the bare server cannot listen");
  }
  std::printf("%d\n", port);
  std::fflush(stdout);
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  server->Shutdown();
}

int CountOf(const char* text) { return std::max(1, std::atoi(text)); }

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "serve" && argc == 4) {
    Serve(argv[2], argv[3]);
  } else if (mode == "floor" && argc == 5) {
    rayctl::client::ChannelOptions options;
    options.address = std::string("127.0.0.1:") + argv[2];
    options.ca_pem = ReadFile(argv[3]);
    Version({rayctl::client::MakeChannel(options), {}}, CountOf(argv[4]));
  } else if (mode == "version" && argc == 3) {
    Version(HeadTarget(), CountOf(argv[2]));
  } else if (mode == "durable" && argc == 3) {
    Durable(HeadTarget(), CountOf(argv[2]));
  } else if (mode == "jobs" && argc == 3) {
    Jobs(HeadTarget(), CountOf(argv[2]));
  } else {
    std::fprintf(stderr, "usage: %s serve CERT KEY | floor PORT CA COUNT | version|durable|jobs COUNT\n", argv[0]);
    return 2;
  }
  return 0;
}
