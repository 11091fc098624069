#include "daemon/agent/output_sender.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>
#include <sys/inotify.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>
#include <variant>

#include "base/status_text.h"
#include "client/channel.h"
#include "daemon/agent/output_scan.h"
#include "daemon/agent/rank_env.h"
#include "daemon/rpc/translate.h"
#include "fmt/format.h"
#include "rayctl/v1/agent.grpc.pb.h"
#include "spdlog/spdlog.h"

namespace rayctl::agent {
namespace {

namespace asio = boost::asio;
namespace v1 = ::rayctl::v1;

}  // namespace

// One call. Loop only, but for the On… call-backs. Holds itself until OnDone.
class OutputSender::Transfer : public grpc::ClientWriteReactor<v1::SendOutputRequest>,
                               public std::enable_shared_from_this<OutputSender::Transfer> {
 public:
  Transfer(OutputSender& sender, link::OpenOutput what, OutputScan scan, std::string folder,
           std::shared_ptr<grpc::Channel> channel)
      : sender_(sender),
        gate_(sender.gate_),
        what_(std::move(what)),
        scan_(std::move(scan)),
        folder_(std::move(folder)),
        stub_(v1::AgentService::NewStub(std::move(channel))) {}

  void Start(std::uint64_t node_id) {
    self_ = shared_from_this();
    if (node_id != 0) {
      client::IdentifyNode(context_, node_id);
    }
    stub_->async()->SendOutput(&context_, &response_, this);
    AddHold();
    StartCall();
    // The first message only says which transfer this is, and what cannot come of it.
    next_.set_transfer_id(what_.transfer.value);
    next_.mutable_ranks_without_log()->Assign(scan_.ranks_without_log().begin(), scan_.ranks_without_log().end());
    Write();
  }

  const std::string& folder() const { return folder_; }
  bool Concerns(const link::RankKey& key) const { return key.job == what_.job && key.attempt == what_.attempt; }

  void RankEnded(Rank rank) {
    scan_.RankEnded(rank);
    Pump();
  }

  // Sends the next piece, if one is there and none is on its way.
  void Pump() {
    if (writing_ || over_) {
      return;
    }
    std::visit([this](auto&& step) { Carry(std::forward<decltype(step)>(step)); }, scan_.Next());
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
  void Carry(OutputScan::Piece next) {
    v1::JobOutput& output = *next_.mutable_output();
    output.set_attempt(what_.attempt);
    output.set_rank(next.rank);
    output.set_stream(rpc::ToProto(next.piece.stream));
    output.set_data(std::move(next.piece.bytes));
    output.set_next_offset(next.piece.next_offset);
    if (next.piece.unix_nanos != 0) {
      const std::chrono::nanoseconds since_epoch(static_cast<std::int64_t>(next.piece.unix_nanos));
      *output.mutable_at() = rpc::ToProto(WallTime(since_epoch));
    }
    Write();
  }
  void Carry(OutputScan::Remark next) {
    next_.set_remark(std::move(next.text));
    Write();
  }
  void Carry(OutputScan::Nothing) {}
  // A search through much that is not wanted lets everything else have its turn.
  void Carry(OutputScan::NotYet) {
    if (!std::exchange(searching_, true)) {
      gate_->Post([self = shared_from_this()] {
        self->searching_ = false;
        self->Pump();
      });
    }
  }
  void Carry(OutputScan::AllSent) {
    over_ = true;
    StartWritesDone();
    RemoveHold();
  }

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
  OutputScan scan_;
  const std::string folder_;
  std::unique_ptr<v1::AgentService::Stub> stub_;
  grpc::ClientContext context_;
  v1::SendOutputResponse response_;
  v1::SendOutputRequest next_;
  v1::SendOutputRequest current_;
  bool writing_ = false;
  bool searching_ = false;  // Its next look is on the loop's list.
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
  absl::StatusOr<OutputScan> scan = OutputScan::Open(
      what, [&](Rank rank) { return paths.RankLog(what.attempt, rank); },
      [&](Rank rank) {
        return is_live_({what.job, what.attempt, rank});
      });
  if (!scan.ok()) {  // The head has checked it: it is of another version.
    spdlog::warn("output not sent transfer={} why={}", what.transfer.value, Text(scan.status()));
    return;
  }
  const auto transfer = std::make_shared<Transfer>(*this, what, *std::move(scan), folder, std::move(channel));
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
