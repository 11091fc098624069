#include "daemon/agent/agent.h"

#include <algorithm>
#include <random>
#include <utility>

#include "daemon/agent/device_table.h"
#include "daemon/agent/job_table.h"
#include "fmt/format.h"

namespace rayctl::agent {
namespace {

constexpr std::string_view kLeaving = "the node is being stopped";
// Whatever the head says, the link is not flooded.
constexpr Duration kHeartbeatIntervalMin = std::chrono::milliseconds(10);

}  // namespace

class Agent::Impl {
 public:
  Impl(AgentConfig config, Now now)
      : config_(std::move(config)),
        jobs_(config_, out_),
        devices_(config_.registration.devices, config_.device_times),
        random_(config_.seed),
        now_(now) {}

  std::vector<Effect> On(const Event& event, Now now) {
    now_ = now;
    if (exited_) {
      return {};
    }
    std::visit([this](const auto& what) { Handle(what); }, event);
    for (const auto& held : jobs_.TakeReturned()) {
      devices_.RankEnded(held, now_);
    }
    if (const std::optional<std::uint64_t> look = exit_by_ ? std::nullopt : devices_.TakeLook(now_)) {
      out_.push_back(LookAtDevices{*look});
    }
    // Before the end of a rank: with that the head may lend its devices anew.
    if (link_ == Link::kRegistered && !exit_by_ && devices_.devices() != told_devices_) {
      told_devices_ = devices_.devices();
      Send(link::DevicesChanged{told_devices_});
    }
    if (link_ == Link::kRegistered) {
      for (link::RankFacts& facts : jobs_.TakeChanged()) {
        Send(link::RankChanged{std::move(facts)});
      }
    }
    if (exit_by_ && jobs_.Empty()) {
      Leave(0, leave_why_);
    }
    return std::exchange(out_, {});
  }

  std::optional<SteadyTime> NextDeadline() const {
    std::optional<SteadyTime> next = exited_ ? std::nullopt : jobs_.NextAbandoned();
    if (exited_) {
      return next;
    }
    const std::optional<SteadyTime> look = exit_by_ ? std::nullopt : devices_.NextDeadline();
    for (const std::optional<SteadyTime>& deadline : {link_deadline_, exit_by_, look}) {
      if (deadline) {
        next = next ? std::min(*next, *deadline) : *deadline;
      }
    }
    return next;
  }

  std::vector<link::RankFacts> Ranks() const { return jobs_.Unrecorded(); }
  bool registered() const { return link_ == Link::kRegistered; }
  std::map<JobId, AttemptNumber> LiveFrom() const { return jobs_.LiveFrom(); }

 private:
  enum class Link {
    kScanning,     // Shims are looked for; the head must not hear half of what runs here.
    kConnecting,   // ConnectHead was given.
    kRegistering,  // Until Registered or link_deadline_.
    kRegistered,   // link_deadline_: the next heartbeat.
    kWaiting,      // For the next try at link_deadline_.
    kLeft,         // The node stops and the head is gone: no more tries.
  };

  void Handle(const ShimFound& found) { jobs_.Adopt(found, now_); }

  void Handle(const ShimsScanned&) {
    devices_.Begin(now_);
    if (link_ == Link::kScanning) {
      Connect();
    }
  }

  void Handle(const HeadConnected&) {
    if (link_ == Link::kLeft) {
      out_.push_back(CloseHead{std::string(kLeaving)});
      return;
    }
    link_ = Link::kRegistering;
    link_deadline_ = now_.steady + config_.register_timeout;
    incarnation_ = 0;
    sent_ = 0;
    received_ = link::SequenceCheck();
    jobs_.TakeChanged();  // All of it is in the registration.
    link::Register registration = config_.registration;
    registration.ranks = jobs_.Unrecorded();
    told_devices_ = devices_.devices();
    registration.devices = told_devices_;
    Send(std::move(registration));
  }

  void Handle(const HeadClosed&) {
    switch (link_) {
      case Link::kConnecting:
      case Link::kRegistering:
      case Link::kRegistered:
        WaitForNextTry();
        break;
      case Link::kScanning:
      case Link::kWaiting:  // After a CloseHead.
      case Link::kLeft:
        break;
    }
  }

  void Handle(const HeadMessage& event) {
    const link::HeadToAgent& message = event.message;
    const auto* registered = std::get_if<link::Registered>(&message.body);
    if (link_ == Link::kRegistering) {
      if (registered == nullptr) {
        return;  // Of an older stream, or before its turn; then a gap follows.
      }
    } else if (link_ != Link::kRegistered || message.incarnation != incarnation_) {
      return;
    }
    switch (received_.Take(message.sequence)) {
      case link::SequenceCheck::Verdict::kDuplicate:
        return;
      case link::SequenceCheck::Verdict::kGap:
        out_.push_back(CloseHead{fmt::format("a message of the head is missing before number {}", message.sequence)});
        WaitForNextTry();
        return;
      case link::SequenceCheck::Verdict::kNext:
        break;
    }
    unheard_heartbeats_ = 0;
    if (registered != nullptr) {
      TakeRegistered(message.incarnation, *registered);
      return;
    }
    std::visit([this](const auto& order) { Obey(order); }, message.body);
  }

  void Handle(const ShimMessage& event) { jobs_.ShimSaid(event.job, event.message, now_); }
  void Handle(const ShimClosed& event) { jobs_.ShimGone(event, now_); }
  void Handle(const WorkDirPrepared& event) { jobs_.WorkDirAnswered(event, now_); }
  void Handle(const DevicesLooked& event) { devices_.Looked(event.look, event.facts, jobs_.Leases(), now_); }
  void Handle(const PortChecked& event) { jobs_.PortAnswered(event, now_); }

  void Handle(const Tick&) {
    if (exit_by_ && now_.steady >= *exit_by_) {
      Leave(1, fmt::format("{}, and something was still running at the deadline", leave_why_));
      return;
    }
    jobs_.StopAbandoned(now_);
    devices_.Tick(now_);
    if (!link_deadline_ || now_.steady < *link_deadline_) {
      return;
    }
    switch (link_) {
      case Link::kWaiting:
        Connect();
        break;
      case Link::kRegistering:
        out_.push_back(CloseHead{"the head did not answer the registration"});
        WaitForNextTry();
        break;
      case Link::kRegistered:
        if (unheard_heartbeats_ >= config_.unheard_heartbeats_max) {
          out_.push_back(CloseHead{fmt::format("no word of the head in {} heartbeats", unheard_heartbeats_)});
          WaitForNextTry();
          break;
        }
        Send(link::Heartbeat{});
        ++unheard_heartbeats_;
        link_deadline_ = now_.steady + heartbeat_interval_;
        break;
      case Link::kScanning:
      case Link::kConnecting:
      case Link::kLeft:
        break;
    }
  }

  void Handle(const Stop& stop) {
    if (link_ == Link::kRegistered && !exit_by_) {
      Send(link::Goodbye{stop.why});
    }
    BeginLeaving(stop.why, stop.at_once ? Duration(0) : config_.stop_grace);
  }

  void TakeRegistered(Incarnation incarnation, const link::Registered& registered) {
    link_ = Link::kRegistered;
    incarnation_ = incarnation;
    tries_ = 0;
    heartbeat_interval_ = std::max(registered.heartbeat_interval, kHeartbeatIntervalMin);
    link_deadline_ = now_.steady + heartbeat_interval_;
    jobs_.SetHeadReachable(true, now_);
    if (exit_by_) {
      Send(link::Goodbye{leave_why_});
      return;
    }
    jobs_.Reconcile(registered, now_);
  }

  // ---- Orders of the head.
  void Obey(const link::Registered&) {}
  void Obey(const link::StartGroup& group) { jobs_.Start(group, now_); }
  void Obey(const link::StopGroup& stop) { jobs_.StopAttempts(stop.job, stop.attempt, stop.grace, stop.why, now_); }
  void Obey(const link::ForgetRanks& forget) { jobs_.ForgetRanks(forget.job, forget.attempt); }
  void Obey(const link::ForgetJob& forget) { jobs_.ForgetJob(forget.job); }
  void Obey(const link::OpenOutput& open) { out_.push_back(OutputWanted{open}); }
  void Obey(const link::CloseOutput& close) { out_.push_back(OutputUnwanted{close.transfer}); }
  void Obey(const link::HeartbeatHeard&) {}  // That it came is all that it says.
  void Obey(const link::LeaveCluster& leave) { BeginLeaving(leave.why, config_.stop_grace); }

  // ---- The link.
  void Connect() {
    link_ = Link::kConnecting;
    link_deadline_.reset();  // The daemon bounds the attempt and says HeadClosed.
    out_.push_back(ConnectHead{});
  }

  void WaitForNextTry() {
    jobs_.SetHeadReachable(false, now_);
    if (exit_by_) {
      link_ = Link::kLeft;
      link_deadline_.reset();
      return;
    }
    link_ = Link::kWaiting;
    link_deadline_ = now_.steady + NextDelay();
  }

  // Doubles up to the longest; spread over its upper half, so that the agents of a restarted head do not all come at
  // the same moment.
  Duration NextDelay() {
    Duration delay = config_.reconnect_min;
    for (std::uint32_t i = 0; i < tries_ && delay < config_.reconnect_max; ++i) {
      delay *= 2;
    }
    delay = std::min(delay, config_.reconnect_max);
    ++tries_;
    const auto half = static_cast<std::uint64_t>(delay.count() / 2);
    return half == 0 ? delay : Duration(static_cast<std::int64_t>(half + random_() % half));
  }

  template <class Body>
  void Send(Body body) {
    out_.push_back(SendHead{link::AgentToHead{incarnation_, ++sent_, std::move(body)}});
  }

  // ---- The end.
  void BeginLeaving(const std::string& why, Duration grace) {
    if (exit_by_ && grace > Duration(0)) {
      return;
    }
    leave_why_ = why;
    exit_by_ = now_.steady + config_.stop_deadline;
    jobs_.Leave(grace, why, now_);
    if (link_ == Link::kScanning || link_ == Link::kWaiting) {
      link_ = Link::kLeft;
      link_deadline_.reset();
    }
  }

  void Leave(int code, std::string why) {
    exited_ = true;
    out_.push_back(Exit{code, std::move(why)});
  }

  const AgentConfig config_;
  std::vector<Effect> out_;
  JobTable jobs_;
  DeviceTable devices_;
  std::vector<link::Device> told_devices_;  // To the head, on this stream.
  std::mt19937_64 random_;
  Now now_;

  Link link_ = Link::kScanning;
  std::optional<SteadyTime> link_deadline_;
  Incarnation incarnation_ = 0;
  std::uint64_t sent_ = 0;
  link::SequenceCheck received_;
  Duration heartbeat_interval_{0};
  std::uint32_t unheard_heartbeats_ = 0;  // Since the head's last message.
  std::uint32_t tries_ = 0;               // Since the last registration.

  std::optional<SteadyTime> exit_by_;  // Set while leaving.
  std::string leave_why_;
  bool exited_ = false;
};

Agent::Agent(AgentConfig config, Now now) : impl_(std::make_unique<Impl>(std::move(config), now)) {}
Agent::~Agent() = default;
Agent::Agent(Agent&&) noexcept = default;
Agent& Agent::operator=(Agent&&) noexcept = default;

std::vector<Effect> Agent::On(const Event& event, Now now) { return impl_->On(event, now); }
std::optional<SteadyTime> Agent::NextDeadline() const { return impl_->NextDeadline(); }
std::vector<link::RankFacts> Agent::Ranks() const { return impl_->Ranks(); }
bool Agent::registered() const { return impl_->registered(); }
std::map<JobId, AttemptNumber> Agent::LiveFrom() const { return impl_->LiveFrom(); }

}  // namespace rayctl::agent
