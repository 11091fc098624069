#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/worker/shim_fixture.h"

namespace rayctl::shim {
namespace {

using Agent = local::ShimToAgent;
using Reply = local::ShimReply;

// The process of one fake rank, which connects for the test.
class FakeRank {
 public:
  explicit FakeRank(const std::string& bridge_path) : path_(bridge_path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof address.sun_path - 1);
    listener_.Reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(listener_.get(), 1) == 0);
  }
  std::string Variable() const { return "RAYCTL_TEST_BRIDGE=" + path_; }
  RankPeer Connect() {
    if (!bridge_.valid()) {
      REQUIRE(Readable(listener_.get()));
      bridge_.Reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    }
    Command('c');
    char byte = 0;
    iovec data{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    REQUIRE(Readable(bridge_.get()));
    REQUIRE(::recvmsg(bridge_.get(), &message, MSG_CMSG_CLOEXEC) == 1);
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return RankPeer(UniqueFd(fd));
  }
  void Command(char command) { REQUIRE(::send(bridge_.get(), &command, 1, MSG_NOSIGNAL) == 1); }

 private:
  std::string path_;
  UniqueFd listener_;
  UniqueFd bridge_;
};

// Every message and every notice once, so that a change of the protocol that nobody meant shows.
class Script {
 public:
  Script() : fakes{FakeRank(shim.dir() + "/bridge0"), FakeRank(shim.dir() + "/bridge1")} {}

  void Say(RankPeer& peer, std::uint32_t rank, const std::function<void(local::RankMessage&)>& set,
           std::uint32_t attempt = 0) {
    local::RankMessage message;
    message.mutable_id()->set_job_id(7);
    message.mutable_id()->set_attempt(attempt);
    message.mutable_id()->set_rank(rank);
    message.mutable_id()->set_sequence(++sequence);
    set(message);
    said.insert(message.body_case());
    peer.Send(message);
  }
  local::ShimReply Hear(RankPeer& peer, Reply::BodyCase kind) {
    const std::optional<local::ShimReply> reply = peer.Next();
    REQUIRE(reply.has_value());
    INFO("got message " << reply->body_case());
    REQUIRE(reply->body_case() == kind);
    heard.insert(kind);
    if (reply->has_notice()) {
      notices.insert(reply->notice().body_case());
    }
    return *reply;
  }
  void Tell(const std::function<void(local::AgentToShim&)>& set) {
    shim.Send([&](local::AgentToShim& m) {
      set(m);
      told.insert(m.body_case());
    });
  }
  local::ShimToAgent Await(Agent::BodyCase kind) {
    awaited.insert(kind);
    return shim.Await(kind);
  }
  void Notify(const std::function<void(local::RankNotice&)>& set) {
    Tell([&](auto& m) {
      m.mutable_notify()->add_ranks(1);
      set(*m.mutable_notify()->mutable_notice());
    });
  }
  RankPeer Attach(std::uint32_t rank) {
    RankPeer peer = fakes[rank].Connect();
    Say(peer, rank, [](auto& m) {
      m.mutable_hello()->set_protocol(1);
      m.mutable_hello()->set_sdk("test/1");
      m.mutable_hello()->set_can_rejoin(true);
    });
    CHECK(Hear(peer, Reply::kWelcome).welcome().context().world_size() == 2);
    const local::ShimToAgent attached = Await(Agent::kAttached);
    CHECK(attached.id().rank() == rank);
    CHECK(attached.attached().sdk() == "test/1");
    CHECK(attached.attached().can_rejoin());
    return peer;
  }

  ShimProgram shim;
  std::array<FakeRank, 2> fakes;
  std::uint64_t sequence = 0;
  std::set<int> said;
  std::set<int> heard;
  std::set<int> notices;
  std::set<int> told;
  std::set<int> awaited;
};

TEST_CASE("a fake rank and a fake agent play every message of both protocols", "[rank_protocol]") {
  Script s;
  s.Tell([](auto& m) { m.mutable_hello()->set_protocol(1); });
  s.Await(Agent::kHello);
  s.told.insert(local::AgentToShim::kStart);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    s.shim.Start(rank, {RAYCTL_FAKE_RANK}, {s.fakes[rank].Variable()});
    CHECK(s.Await(Agent::kStarted).id().rank() == rank);
  }
  RankPeer zero = s.Attach(0);
  RankPeer one = s.Attach(1);

  // A second connection of a rank, and one of a process that is no rank.
  RankPeer again = s.fakes[0].Connect();
  s.Say(again, 0, [](auto& m) { m.mutable_hello()->set_protocol(1); });
  CHECK(s.Hear(again, Reply::kRefused).refused().code() == local::REFUSAL_CODE_DUPLICATE_CONNECTION);
  CHECK_FALSE(again.Next().has_value());
  RankPeer stranger(ConnectTo(s.shim.rank_socket()));
  s.Say(stranger, 0, [](auto& m) { m.mutable_hello()->set_protocol(1); });
  CHECK(s.Hear(stranger, Reply::kRefused).refused().code() == local::REFUSAL_CODE_WRONG_USER);
  s.Say(stranger, 0, [](auto& m) { m.mutable_progress(); });
  CHECK(s.Hear(stranger, Reply::kRefused).refused().code() == local::REFUSAL_CODE_BAD_MESSAGE);
  zero.SendRaw("\xFF\xFF\xFF");
  CHECK(s.Hear(zero, Reply::kRefused).refused().code() == local::REFUSAL_CODE_BAD_MESSAGE);

  // Reports, with a checkpoint.
  s.Tell([](auto& m) { m.mutable_head_reachable()->set_reachable(true); });
  s.Say(zero, 0, [](auto& m) {
    m.mutable_report()->set_number(1);
    m.mutable_report()->set_metrics_json("{\"loss\": NaN}");
  });
  CHECK(s.Hear(zero, Reply::kReportDone).report_done().number() == 1);
  CHECK(s.Await(Agent::kReport).report().metrics_json() == "{\"loss\": NaN}");
  const std::string checkpoint = s.shim.dir() + "/checkpoint";
  std::filesystem::create_directories(checkpoint + "/sub");
  std::ofstream(checkpoint + "/sub/model.pt") << "weights";
  std::filesystem::create_symlink("sub/model.pt", checkpoint + "/latest");
  s.Say(one, 1, [&](auto& m) {
    m.mutable_report()->set_number(1);
    m.mutable_report()->set_has_checkpoint(true);
    m.mutable_report()->set_checkpoint_dir(checkpoint);
  });
  s.Hear(one, Reply::kReportDone);
  const local::ReportSpooled spooled = s.Await(Agent::kReport).report();
  REQUIRE(spooled.files_size() == 3);
  CHECK(spooled.files(0).path() == "latest");
  CHECK(spooled.files(0).symlink() == "sub/model.pt");
  CHECK(spooled.files(1).path() == "sub");
  CHECK(spooled.files(2).path() == "sub/model.pt");
  CHECK(spooled.files(2).bytes() == 7);
  std::ofstream(checkpoint + "/sub/model.pt") << "changed since";
  std::string copied;
  std::ifstream(spooled.checkpoint_store_dir() + "/sub/model.pt") >> copied;
  CHECK(copied == "weights");
  s.Say(one, 1, [&](auto& m) {
    m.mutable_report()->set_number(2);
    m.mutable_report()->set_has_checkpoint(true);
    m.mutable_report()->set_checkpoint_dir(checkpoint + "/absent");
  });
  CHECK(s.Hear(one, Reply::kRefused).refused().code() == local::REFUSAL_CODE_BAD_MESSAGE);
  s.Tell([](auto& m) { m.mutable_reports_complete()->set_number(1); });

  // A boundary that is cancelled, and one that passes.
  s.Tell([](auto& m) { m.mutable_hold()->set_hold(1); });
  CHECK(s.Await(Agent::kHeld).held().last_passed() == 1);
  s.Tell([](auto& m) { m.mutable_cancel_boundary()->set_hold(1); });
  s.Tell([](auto& m) { m.mutable_hold()->set_hold(2); });
  CHECK(s.Await(Agent::kHeld).held().hold() == 1);  // The other rank's answer to the first.
  CHECK(s.Await(Agent::kHeld).held().hold() == 2);
  s.Tell([](auto& m) {
    m.mutable_boundary()->set_hold(2);
    m.mutable_boundary()->set_number(2);
    m.mutable_boundary()->set_deadline_unix_nanos(77);
  });
  CHECK(s.Hear(one, Reply::kNotice).notice().should_checkpoint().boundary() == 2);
  s.Say(one, 1, [](auto& m) { m.mutable_report()->set_number(2); });
  CHECK(s.Await(Agent::kBoundaryReached).boundary_reached().number() == 2);
  s.Tell([](auto& m) {
    m.mutable_pass()->set_hold(2);
    m.mutable_pass()->set_number(2);
    m.mutable_pass()->set_action("resize");
  });
  CHECK(s.Hear(one, Reply::kNotice).notice().leave().why() == "resize");
  CHECK(s.Hear(one, Reply::kReportDone).report_done().should_checkpoint());

  s.Say(one, 1, [](auto& m) { m.mutable_barrier()->set_number(1); });
  CHECK(s.Await(Agent::kBarrierEntered).barrier_entered().number() == 1);
  s.Tell([](auto& m) { m.mutable_release_barrier()->set_number(1); });
  CHECK(s.Hear(one, Reply::kBarrierDone).barrier_done().number() == 1);
  s.Say(one, 1, [](auto& m) {
    m.mutable_broadcast()->set_number(1);
    m.mutable_broadcast()->set_root(1);
    m.mutable_broadcast()->set_payload("p");
  });
  CHECK(s.Await(Agent::kBroadcastGiven).broadcast_given().payload() == "p");
  s.Tell([](auto& m) {
    m.mutable_deliver_broadcast()->set_number(1);
    m.mutable_deliver_broadcast()->set_payload("p");
  });
  CHECK(s.Hear(one, Reply::kBroadcastDone).broadcast_done().payload() == "p");
  s.Tell([](auto& m) {
    m.mutable_decide()->set_number(1);
    m.mutable_decide()->set_decision(local::TRIAL_DECISION_CONTINUE);
  });
  s.Say(one, 1, [](auto& m) { m.mutable_progress()->set_step(12); });
  CHECK(s.Await(Agent::kProgress).progress().step() == 12);
  s.Say(one, 1, [](auto& m) {
    m.mutable_failure()->set_type("RuntimeError");
    m.mutable_failure()->set_peer_lost(true);
  });
  CHECK(s.Await(Agent::kFailed).failed().failure().type() == "RuntimeError");
  s.Tell([](auto& m) { m.mutable_release(); });
  CHECK(s.Await(Agent::kRefused).refused().code() == local::REFUSAL_CODE_BAD_MESSAGE);

  // The other notices, and a survivor that goes on in the next attempt.
  s.Notify([](auto& notice) { notice.mutable_peer_lost()->set_rank(0); });
  CHECK(s.Hear(one, Reply::kNotice).notice().has_peer_lost());
  s.Notify([](auto& notice) { notice.mutable_checkpoint_committed()->set_number(4); });
  CHECK(s.Hear(one, Reply::kNotice).notice().checkpoint_committed().number() == 4);
  s.Notify([](auto& notice) { notice.mutable_stop_soon()->set_why("drain"); });
  CHECK(s.Hear(one, Reply::kNotice).notice().stop_soon().why() == "drain");
  s.Tell([](auto& m) { m.mutable_ack()->set_sequence(4); });
  s.Notify([](auto& notice) {
    notice.mutable_next_attempt()->set_attempt(1);
    notice.mutable_next_attempt()->set_rank(1);
  });
  CHECK(s.Hear(one, Reply::kNotice).notice().next_attempt().attempt() == 1);
  s.Say(
      one, 1, [](auto& m) { m.mutable_rejoined(); }, 1);
  CHECK(s.Await(Agent::kStarted).id().attempt() == 1);
  s.Say(zero, 0, [](auto& m) { m.mutable_report()->set_number(2); });
  // It had the boundary's notices before it, since both went to every rank.
  s.Hear(zero, Reply::kNotice);
  s.Hear(zero, Reply::kNotice);
  CHECK(s.Hear(zero, Reply::kRefused).refused().code() == local::REFUSAL_CODE_OLD_ATTEMPT);
  s.Say(
      one, 1, [](auto& m) { m.mutable_goodbye(); }, 1);
  CHECK_FALSE(one.Next().has_value());
  s.fakes[1].Command('x');
  const local::ShimToAgent exited = s.Await(Agent::kExited);
  CHECK(exited.id().attempt() == 1);
  CHECK(exited.exited().exit_code() == 0);
  s.Tell([](auto& m) { m.mutable_stop(); });
  CHECK(s.Await(Agent::kExited).exited().signal() == 9);
  CHECK_FALSE(zero.Next().has_value());
  s.Tell([](auto& m) { m.mutable_release(); });
  s.shim.AwaitEnd();

  // Fields 10 to 24 of AgentToShim, 10 to 21 of ShimToAgent, 10 to 17 of RankMessage, 10 to 15 of ShimReply, six
  // notices.
  CHECK(s.told.size() == 15);
  CHECK(s.awaited.size() == 12);
  CHECK(s.said.size() == 8);
  CHECK(s.heard.size() == 6);
  CHECK(s.notices.size() == 6);
}

}  // namespace
}  // namespace rayctl::shim
