#include "daemon/agent/output_sender.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>
#include <sys/inotify.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "base/status_text.h"
#include "client/channel.h"
#include "daemon/agent/rank_env.h"
#include "daemon/rpc/translate.h"
#include "fmt/format.h"
#include "rayctl/v1/agent.grpc.pb.h"
#include "spdlog/spdlog.h"
#include "worker/process/output_reader.h"

namespace rayctl::agent {
namespace {

namespace asio = boost::asio;
namespace v1 = ::rayctl::v1;

}  // namespace

// One call. Loop only, but for the On… call-backs. Holds itself until OnDone.
class OutputSender::Transfer : public grpc::ClientWriteReactor<v1::SendOutputRequest>,
                               public std::enable_shared_from_this<OutputSender::Transfer> {
 public:
  Transfer(OutputSender& sender, link::OpenOutput what, std::string folder, const JobPaths& paths,
           std::shared_ptr<grpc::Channel> channel)
      : sender_(sender),
        gate_(sender.gate_),
        what_(std::move(what)),
        folder_(std::move(folder)),
        stub_(v1::AgentService::NewStub(std::move(channel))) {
    for (const Rank rank : what_.ranks) {
      const link::RankKey key{what_.job, what_.attempt, rank};
      sources_.push_back(
          {rank, process::OutputReader(paths.RankLog(what_.attempt, rank)), !what_.follow || !sender_.is_live_(key)});
    }
  }

  void Start(std::uint64_t node_id) {
    self_ = shared_from_this();
    if (node_id != 0) {
      client::IdentifyNode(context_, node_id);
    }
    stub_->async()->SendOutput(&context_, &response_, this);
    AddHold();
    StartCall();
    // The first message only says which transfer this is.
    next_.set_transfer_id(what_.transfer.value);
    Write();
  }

  const std::string& folder() const { return folder_; }
  bool Concerns(const link::RankKey& key) const { return key.job == what_.job && key.attempt == what_.attempt; }

  void RankEnded(Rank rank) {
    for (Source& source : sources_) {
      source.complete = source.complete || source.rank == rank;
    }
    Pump();
  }

  // Sends the next piece, if one is there and none is on its way.
  void Pump() {
    if (writing_ || over_) {
      return;
    }
    bool all_sent = true;
    // In turn, so that a rank that writes much does not keep the others waiting.
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      Source& source = sources_[turn_];
      turn_ = (turn_ + 1) % sources_.size();
      if (source.sent) {
        continue;
      }
      absl::StatusOr<std::optional<process::OutputRun>> run = source.reader.Next();
      if (!run.ok()) {
        source.sent = true;
        next_.set_remark(
            fmt::format("the output of rank {} cannot be read further: {}", source.rank, Text(run.status())));
        Write();
        return;
      }
      if (!run->has_value()) {
        source.sent = source.complete;
        all_sent = all_sent && source.sent;
        continue;
      }
      if ((*run)->offset > source.next) {
        next_.set_remark(fmt::format("{} bytes of the output of rank {} were rotated away before they were read",
                                     (*run)->offset - source.next, source.rank));
      }
      source.next = (*run)->offset + (*run)->bytes.size();
      v1::JobOutput* output = next_.mutable_output();
      output->set_attempt(what_.attempt);
      output->set_rank(source.rank);
      output->set_stream(rpc::ToProto((*run)->stream));
      output->set_data(std::move((*run)->bytes));
      Write();
      return;
    }
    if (all_sent) {
      over_ = true;
      StartWritesDone();
      RemoveHold();
    }
  }

  void Cancel() {
    context_.TryCancel();
    GiveUp();
  }

  void OnWriteDone(bool ok) override {
    gate_->Post([self = shared_from_this(), ok] {
      self->writing_ = false;
      if (ok) {
        self->Pump();
      } else {
        self->GiveUp();
      }
    });
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<LoopGate> gate = gate_;  // The loop may drop the last hold of this before Post returns.
    gate->Post([self = std::move(self_), status] {
      if (!status.ok() && status.error_code() != grpc::StatusCode::CANCELLED) {
        spdlog::info("output transfer ended transfer={} why={}", self->what_.transfer.value, status.error_message());
      }
      self->sender_.Ended(self->what_.transfer);
    });
  }

 private:
  struct Source {
    Rank rank = 0;
    process::OutputReader reader;
    bool complete = false;  // Nothing is written any more: where the file ends, it ends.
    bool sent = false;
    std::uint64_t next = 0;  // Where the next piece begins, if nothing was rotated away.
  };

  void Write() {
    writing_ = true;
    current_.Swap(&next_);
    next_.Clear();
    StartWrite(&current_);
  }

  void GiveUp() {
    if (!over_) {
      over_ = true;
      RemoveHold();
    }
  }

  OutputSender& sender_;
  const std::shared_ptr<LoopGate> gate_;
  const link::OpenOutput what_;
  const std::string folder_;
  std::unique_ptr<v1::AgentService::Stub> stub_;
  grpc::ClientContext context_;
  v1::SendOutputResponse response_;
  v1::SendOutputRequest next_;
  v1::SendOutputRequest current_;
  std::vector<Source> sources_;
  std::size_t turn_ = 0;
  bool writing_ = false;
  bool over_ = false;
  std::shared_ptr<Transfer> self_;
};

OutputSender::OutputSender(asio::io_context& loop, std::string state_dir, IsLive is_live)
    : loop_(loop),
      gate_(std::make_shared<LoopGate>(loop)),
      state_dir_(std::move(state_dir)),
      is_live_(std::move(is_live)),
      inotify_(loop, ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
  Watch();
}

OutputSender::~OutputSender() { gate_->Close(); }

void OutputSender::Watch() {
  inotify_.async_read_some(asio::buffer(events_), [this](boost::system::error_code error, std::size_t size) {
    if (error) {
      if (error != asio::error::operation_aborted) {
        spdlog::error("logs are not watched any more why={}", error.message());
      }
      return;
    }
    std::set<std::string> changed;
    bool some_lost = false;
    for (std::size_t at = 0; at + sizeof(inotify_event) <= size;) {
      inotify_event event{};
      std::memcpy(&event, events_.data() + at, sizeof(event));
      at += sizeof(event) + event.len;
      some_lost = some_lost || (event.mask & IN_Q_OVERFLOW) != 0;
      const auto it = watches_.find(event.wd);
      if (it != watches_.end()) {
        changed.insert(it->second);
      }
    }
    const auto transfers = transfers_;  // Pump may end some.
    for (const auto& [id, transfer] : transfers) {
      if (some_lost || changed.contains(transfer->folder())) {
        transfer->Pump();
      }
    }
    Watch();
  });
}

void OutputSender::Open(const link::OpenOutput& what, std::shared_ptr<grpc::Channel> channel, std::uint64_t node_id) {
  if (finished_ || channel == nullptr || transfers_.contains(what.transfer)) {
    return;
  }
  const JobPaths paths = JobPaths::Of(state_dir_, what.job);
  const std::string folder = fmt::format("{}/attempt_{}", paths.logs_dir, what.attempt);
  if (what.follow) {
    // A rank may not have begun; its folder must be there to be watched.
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    const int watch = error ? -1 : ::inotify_add_watch(inotify_.native_handle(), folder.c_str(), IN_MODIFY | IN_CREATE);
    if (watch < 0) {
      spdlog::warn("logs are not watched folder={} why={}", folder, error ? error.message() : std::strerror(errno));
    } else {
      folders_[folder] = watch;
      watches_[watch] = folder;
    }
  }
  const auto transfer = std::make_shared<Transfer>(*this, what, folder, paths, std::move(channel));
  transfers_[what.transfer] = transfer;
  ++calls_alive_;
  transfer->Start(node_id);
}

void OutputSender::Close(TransferId transfer) {
  const auto it = transfers_.find(transfer);
  if (it != transfers_.end()) {
    it->second->Cancel();
  }
}

void OutputSender::CloseAll() {
  for (const auto& [id, transfer] : transfers_) {
    transfer->Cancel();
  }
}

void OutputSender::RankEnded(const link::RankKey& key) {
  const auto transfers = transfers_;
  for (const auto& [id, transfer] : transfers) {
    if (transfer->Concerns(key)) {
      transfer->RankEnded(key.rank);
    }
  }
}

void OutputSender::Ended(TransferId transfer) {
  --calls_alive_;
  const auto it = transfers_.find(transfer);
  if (it != transfers_.end()) {
    const std::string folder = it->second->folder();
    transfers_.erase(it);
    const bool still_wanted = std::any_of(transfers_.begin(), transfers_.end(),
                                          [&folder](const auto& entry) { return entry.second->folder() == folder; });
    const auto watched = folders_.find(folder);
    if (!still_wanted && watched != folders_.end()) {
      ::inotify_rm_watch(inotify_.native_handle(), watched->second);
      watches_.erase(watched->second);
      folders_.erase(watched);
    }
  }
  if (finished_ && calls_alive_ == 0) {
    std::exchange(finished_, nullptr)();
  }
}

void OutputSender::Finish(std::function<void()> done) {
  finished_ = std::move(done);
  boost::system::error_code ignored;  // Nobody reads it any more.
  inotify_.close(ignored);
  CloseAll();
  if (calls_alive_ == 0) {
    asio::post(loop_, std::exchange(finished_, nullptr));
  }
}

}  // namespace rayctl::agent
