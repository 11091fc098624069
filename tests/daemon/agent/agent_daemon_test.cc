#include "daemon/agent/agent_daemon.h"

#include <fcntl.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "fmt/format.h"
#include "rayctl/v1/agent.grpc.pb.h"

namespace rayctl::agent {
namespace {

namespace v1 = ::rayctl::v1;
using namespace std::chrono_literals;

constexpr auto kDeadline = 30s;

// A folder of its own that goes with the test.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "rayctl-agent-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string path;
};

// A head that the test plays: keeps what agents say and sends what the test orders.
class FakeHead final : public v1::AgentService::Service {
 public:
  FakeHead() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeHead() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string address() const { return fmt::format("127.0.0.1:{}", port_); }

  grpc::Status Join(grpc::ServerContext*, const v1::JoinRequest* request, v1::JoinResponse* response) override {
    response->set_node_id(request->node_id() == 0 ? 7 : request->node_id());
    response->set_node_name(request->node_name());
    return grpc::Status::OK;
  }

  grpc::Status Connect(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<v1::HeadToAgent, v1::AgentToHead>* stream) override {
    {
      const std::lock_guard lock(mutex_);
      stream_ = stream;
      context_ = context;
      sequence_ = 0;
      ++incarnation_;
    }
    v1::AgentToHead message;
    while (stream->Read(&message)) {
      const std::lock_guard lock(mutex_);
      heard_.push_back(message);
      changed_.notify_all();
    }
    const std::lock_guard lock(mutex_);
    stream_ = nullptr;
    changed_.notify_all();
    return grpc::Status::OK;
  }

  grpc::Status SendOutput(grpc::ServerContext*, grpc::ServerReader<v1::SendOutputRequest>* reader,
                          v1::SendOutputResponse*) override {
    v1::SendOutputRequest request;
    while (reader->Read(&request)) {
      const std::lock_guard lock(mutex_);
      output_ += request.output().data();
      changed_.notify_all();
    }
    const std::lock_guard lock(mutex_);
    output_ended_ = true;
    changed_.notify_all();
    return grpc::Status::OK;
  }

  void Send(v1::HeadToAgent message) {
    const std::lock_guard lock(mutex_);
    REQUIRE(stream_ != nullptr);
    message.set_incarnation(incarnation_);
    message.set_sequence(++sequence_);
    stream_->Write(message);
  }

  void CutStream() {
    const std::lock_guard lock(mutex_);
    context_->TryCancel();
  }

  // The first message at or after `from` that pleases; its index is left in `from`.
  v1::AgentToHead Await(std::size_t& from, const std::function<bool(const v1::AgentToHead&)>& pleases) {
    std::unique_lock lock(mutex_);
    v1::AgentToHead found;
    const bool came = changed_.wait_for(lock, kDeadline, [&] {
      for (; from < heard_.size(); ++from) {
        if (pleases(heard_[from])) {
          found = heard_[from++];
          return true;
        }
      }
      return false;
    });
    REQUIRE(came);
    return found;
  }
  v1::AgentToHead AwaitState(std::size_t& from, v1::WorkerState state) {
    return Await(from, [state](const v1::AgentToHead& message) {
      return message.has_rank_changed() && message.rank_changed().facts().state() == state;
    });
  }
  v1::AgentToHead AwaitRegister(std::size_t& from) {
    return Await(from, [](const v1::AgentToHead& message) { return message.has_register_(); });
  }

  std::string AwaitOutput(const std::function<bool(const std::string&, bool)>& pleases) {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, kDeadline, [&] { return pleases(output_, output_ended_); }));
    return output_;
  }

 private:
  int port_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  grpc::ServerReaderWriter<v1::HeadToAgent, v1::AgentToHead>* stream_ = nullptr;
  grpc::ServerContext* context_ = nullptr;
  std::uint64_t incarnation_ = 0;
  std::uint64_t sequence_ = 0;
  std::vector<v1::AgentToHead> heard_;
  std::string output_;
  bool output_ended_ = false;
  std::unique_ptr<grpc::Server> server_;
};

// An agent of a thread of its own.
class RunningAgent {
 public:
  RunningAgent(const Folder& folder, const std::string& address, Duration start_timeout = kDeadline) {
    std::array<int, 2> pipe{};
    REQUIRE(::pipe2(pipe.data(), O_CLOEXEC) == 0);
    ready_ = pipe[0];
    options_.state_dir = folder.path + "/s";
    options_.run_dir = folder.path + "/r";
    options_.address = address;
    options_.node.head_address = address;
    options_.node_name = "n";
    options_.insecure = true;
    options_.start_timeout = start_timeout;
    options_.shim_program = RAYCTL_SHIM_PROGRAM;
    options_.ready_fd = pipe[1];
    thread_ = std::thread([this] { code_ = RunAgent(options_); });
  }
  ~RunningAgent() {
    if (thread_.joinable()) {
      ::kill(::getpid(), SIGTERM);
      thread_.join();
    }
    ::close(ready_);
  }

  nlohmann::json Ready() {
    std::string line;
    std::array<char, 512> buffer{};
    pollfd wait{ready_, POLLIN, 0};
    while (::poll(&wait, 1, static_cast<int>(std::chrono::milliseconds(kDeadline).count())) == 1) {
      const ssize_t size = ::read(ready_, buffer.data(), buffer.size());
      if (size <= 0) {
        break;
      }
      line.append(buffer.data(), static_cast<std::size_t>(size));
    }
    return nlohmann::json::parse(line);
  }

  int Join() {
    thread_.join();
    return code_;
  }

 private:
  AgentOptions options_;
  int ready_ = -1;
  int code_ = -1;
  std::thread thread_;
};

v1::StartGroup Group(const std::string& script) {
  v1::StartGroup group;
  group.set_job_id(5);
  group.mutable_spec()->add_argv("/bin/sh");
  group.mutable_spec()->add_argv("-c");
  group.mutable_spec()->add_argv(script);
  group.mutable_spec()->set_kind(v1::JOB_KIND_COMMAND);
  group.add_ranks()->set_rank(0);
  group.set_world_size(1);
  group.set_local_world_size(1);
  group.set_node_count(1);
  group.set_master_addr("127.0.0.1");
  group.set_master_port(20000);
  return group;
}

v1::HeadToAgent Registered() {
  v1::HeadToAgent message;
  message.mutable_registered()->set_heartbeat_millis(2000);
  return message;
}

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

TEST_CASE("an agent joins, runs a rank, sends its output and leaves nothing", "[agent]") {
  const Folder folder;
  FakeHead head;
  RunningAgent agent(folder, head.address());
  std::size_t at = 0;
  const v1::Register registration = head.AwaitRegister(at).register_();
  CHECK(registration.port_min() != 0);
  CHECK(registration.resources().amounts().at("CPU") >= 1);
  head.Send(Registered());
  const nlohmann::json ready = agent.Ready();
  CHECK(ready["ok"] == true);
  CHECK(ready["node_id"] == 7);
  CHECK(std::filesystem::exists(folder.path + "/r/agent.json"));

  const std::string gate = folder.path + "/gate";
  REQUIRE(::mkfifo(gate.c_str(), 0600) == 0);
  v1::HeadToAgent start;
  *start.mutable_start() = Group(fmt::format("echo \"hi $RANK\"; read x <'{}'; echo bye >&2; exit 3", gate));
  head.Send(start);
  v1::HeadToAgent open;
  open.mutable_open_output()->set_transfer_id(1);
  open.mutable_open_output()->set_job_id(5);
  open.mutable_open_output()->add_ranks(0);
  open.mutable_open_output()->set_follow(true);
  head.Send(open);
  head.AwaitState(at, v1::WORKER_STATE_RUNNING);
  head.AwaitOutput([](const std::string& text, bool) { return text == "hi 0\n"; });
  {
    const int fd = ::open(gate.c_str(), O_WRONLY | O_CLOEXEC);
    REQUIRE(::write(fd, "go\n", 3) == 3);
    ::close(fd);
  }
  const v1::RankFacts end = head.AwaitState(at, v1::WORKER_STATE_EXITED).rank_changed().facts();
  CHECK(end.end().exit_code() == 3);
  CHECK(head.AwaitOutput([](const std::string&, bool ended) { return ended; }) == "hi 0\nbye\n");

  v1::HeadToAgent forget;
  forget.mutable_forget_job()->set_job_id(5);
  head.Send(forget);
  v1::HeadToAgent leave;
  leave.mutable_leave()->set_why("the head stops");
  head.Send(leave);
  CHECK(agent.Join() == 0);
  CHECK(Names(folder.path + "/r").empty());
}

TEST_CASE("a next agent adopts the ranks of one that ended, and a cut stream costs them nothing", "[agent]") {
  const Folder folder;
  FakeHead head;
  std::size_t at = 0;
  const std::string gate = folder.path + "/gate";
  REQUIRE(::mkfifo(gate.c_str(), 0600) == 0);
  const v1::StartGroup group = Group(fmt::format("read x <'{}'", gate));
  std::int64_t pid = 0;
  {
    RunningAgent agent(folder, head.address());
    head.AwaitRegister(at);
    head.Send(Registered());
    CHECK(agent.Ready()["ok"] == true);
    v1::HeadToAgent start;
    *start.mutable_start() = group;
    head.Send(start);
    pid = head.AwaitState(at, v1::WORKER_STATE_RUNNING).rank_changed().facts().pid();
    CHECK(pid > 0);
  }  // SIGTERM.
  RunningAgent agent(folder, head.address());
  v1::Register registration = head.AwaitRegister(at).register_();
  REQUIRE(registration.ranks_size() == 1);
  CHECK(registration.ranks(0).pid() == pid);
  CHECK(registration.ranks(0).state() == v1::WORKER_STATE_RUNNING);
  v1::HeadToAgent registered = Registered();
  *registered.mutable_registered()->add_groups() = group;
  registered.mutable_registered()->add_kept_jobs(5);
  head.Send(registered);
  CHECK(agent.Ready()["ok"] == true);

  head.CutStream();
  registration = head.AwaitRegister(at).register_();
  REQUIRE(registration.ranks_size() == 1);
  CHECK(registration.ranks(0).pid() == pid);
  head.Send(Registered());  // Does not name the rank: it must go.
  const v1::RankFacts end = head.AwaitState(at, v1::WORKER_STATE_EXITED).rank_changed().facts();
  CHECK(end.end().signal() == SIGKILL);
  CHECK(end.end().stop_requested());

  ::kill(::getpid(), SIGINT);
  head.Await(at, [](const v1::AgentToHead& message) { return message.has_goodbye(); });
  CHECK(agent.Join() == 0);
  CHECK(Names(folder.path + "/r").empty());
}

TEST_CASE("a head that is not there is told to who started the agent", "[agent]") {
  const Folder folder;
  std::string address;
  {
    const FakeHead gone;
    address = gone.address();
  }
  RunningAgent agent(folder, address, 200ms);
  const nlohmann::json ready = agent.Ready();
  CHECK(ready["ok"] == false);
  CHECK(ready["error"].get<std::string>().find("head unreachable at " + address) == 0);
  CHECK(agent.Join() == 1);
}

}  // namespace
}  // namespace rayctl::agent
