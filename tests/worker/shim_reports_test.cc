#include <catch2/catch.hpp>

#include "tests/worker/shim_driver.h"

namespace rayctl::shim {
namespace {

using namespace std::chrono_literals;

void Complete(Driver& d, std::uint64_t number, const Words& expected) {
  CHECK(d.Agent([&](auto& m) { m.mutable_reports_complete()->set_number(number); }) == expected);
}

TEST_CASE("a hello is welcomed with the context once, others are refused", "[shim]") {
  Driver d;
  d.Hello();
  d.Start({0});
  const auto hello = [](auto& m) {
    m.mutable_hello()->set_protocol(3);
    m.mutable_hello()->set_sdk("cpp/0.1.0");
  };
  CHECK(d.RankSays(0, hello) == Words{"rank 0 welcome", "agent attached 0"});
  CHECK(std::get<SendRank>(d.effects[0]).message.welcome().protocol() == 1);
  CHECK(std::get<SendRank>(d.effects[0]).message.welcome().context().world_size() == 4);
  CHECK(d.Last<SendAgent>().message.attached().sdk() == "cpp/0.1.0");
  CHECK(d.RankSays(0, hello) == Words{"rank 0 refused 7", "close 0"});
  CHECK(d.RankSays(3, hello) == Words{"rank 3 refused 2", "close 3"});
  CHECK(d.RankSaysFrom({0, 0, 0}, 1, 0, hello) == Words{"rank 0 refused 2", "close 0"});  // Claims to be another.
  d.On(RankSocketClosed{{0, 0, 0}});
  CHECK(d.RankSays(0, [](auto& m) { m.mutable_hello(); }) == Words{"rank 0 refused 3", "close 0"});
  CHECK(d.RankSays(0, hello) == Words{"rank 0 welcome", "agent attached 0"});
  d.Start({0}, 1);
  CHECK(d.Report(0, 1) == Words{"rank 0 refused 1"});
  d.On(RankSocketClosed{{0, 0, 0}});
  CHECK(d.RankSays(0, hello) == Words{"rank 0 refused 1", "close 0"});
}

TEST_CASE("a report is spooled before it is answered; repeats get the same answer, gaps none", "[shim]") {
  Driver d;
  d.Hello();
  d.Run({0});
  CHECK(d.Report(0, 1) == Words{"write report #2", "agent report 0 #2", "rank 0 done 1"});
  CHECK(d.Report(0, 1) == Words{"rank 0 done 1"});
  CHECK(d.Report(0, 3) == Words{"rank 0 refused 3"});
  CHECK(d.Report(0, 0) == Words{"rank 0 refused 3"});
  CHECK(d.Report(0, 2, "", 0, 0, std::string((1 << 20) + 1, 'm')) == Words{"rank 0 refused 5"});
  CHECK(d.Report(0, 2) == Words{"write report #3", "agent report 0 #3", "rank 0 done 2"});
}

TEST_CASE("while the head is there a report waits for the window", "[shim]") {
  Driver d({.job = JobId{7}, .report_window = 2});
  d.Hello();
  d.Run({0});
  d.Report(0, 1);
  d.Report(0, 2);
  CHECK(d.Report(0, 3).empty());
  CHECK(d.Report(0, 3).empty());
  Complete(d, 1, {"write report #4", "agent report 0 #4", "rank 0 done 3"});
  CHECK(d.Report(0, 4).empty());
  // It goes away: bytes count instead.
  CHECK(d.Agent([](auto& m) { m.mutable_head_reachable(); }) ==
        Words{"write report #5", "agent report 0 #5", "rank 0 done 4"});
  d.Agent([](auto& m) { m.mutable_head_reachable()->set_reachable(true); });
  CHECK(d.Report(0, 5).empty());
  CHECK(d.On(AgentClosed{}) == Words{"write report #6", "rank 0 done 5"});
}

TEST_CASE("without the head the spool is bounded in bytes and in checkpoints", "[shim]") {
  Driver d({.job = JobId{7}, .spool_bytes_max = 10, .spool_checkpoints_max = 1});
  d.Hello();
  d.Run({0});
  d.Agent([](auto& m) { m.mutable_head_reachable(); });
  d.Report(0, 1, "", 0, 0, "12345");
  CHECK(d.Report(0, 2, "/c") == Words{"copy 0 2 /c"});
  d.On(CheckpointCopied{{0, 0, 0}, 2, "/store"});
  CHECK(d.Report(0, 3, "/c").empty());  // One checkpoint waits already.
  Complete(d, 2, {"copy 0 3 /c"});
  d.On(CheckpointCopied{{0, 0, 0}, 3, "/store"});
  d.Report(0, 4, "", 0, 0, "1234567890");
  CHECK(d.Report(0, 5).empty());
  Complete(d, 4, {"write report #6", "agent report 0 #6", "rank 0 done 5"});
}

TEST_CASE("a checkpoint is copied before its report is spooled, and a failure may be tried again", "[shim]") {
  Driver d;
  d.Hello();
  d.Run({0});
  CHECK(d.Report(0, 1, "/work/ckpt") == Words{"copy 0 1 /work/ckpt"});
  CHECK(d.Report(0, 1, "/work/ckpt").empty());
  CHECK(d.On(CheckpointCopied{{0, 0, 0}, 1, "", {}, "no space left on device", true}) == Words{"rank 0 refused 6"});
  CHECK(d.Report(0, 2) == Words{"rank 0 refused 3"});  // The first is still missing.
  d.Report(0, 1, "/work/ckpt");
  local::CheckpointFile file;
  file.set_path("model.pt");
  CHECK(d.On(CheckpointCopied{{0, 0, 0}, 1, "/store/1", {file}}) ==
        Words{"write report #2", "agent report 0 #2", "rank 0 done 1"});
  const local::ReportSpooled& spooled = d.Last<SendAgent>().message.report();
  CHECK(spooled.checkpoint_store_dir() == "/store/1");
  CHECK(spooled.files(0).path() == "model.pt");
  // A rank that ends while its checkpoint is copied has no such report.
  d.Report(0, 2, "/work/ckpt");
  d.On(Exited{{0, 0, 0}, 1});
  CHECK(d.On(CheckpointCopied{{0, 0, 0}, 2, "/store/2"}).empty());
}

TEST_CASE("hold, boundary, go", "[shim]") {
  Driver d;
  d.Hello();
  d.Run({0, 1});
  d.Report(0, 1);
  d.Report(0, 2);
  d.Report(1, 1);
  const auto hold = [](auto& m) { m.mutable_hold()->set_hold(3); };
  CHECK(d.Agent(hold) == Words{"agent held 0 last=2", "agent held 1 last=1"});
  CHECK(d.Agent(hold) == Words{"agent held 0 last=2", "agent held 1 last=1"});
  CHECK(d.Agent([](auto& m) { m.mutable_hold()->set_hold(2); }).empty());
  CHECK(d.Report(1, 2).empty());
  const auto boundary = [](auto& m) {
    m.mutable_boundary()->set_hold(3);
    m.mutable_boundary()->set_number(3);
  };
  CHECK(d.Agent(boundary) ==
        Words{"rank 0 notice", "rank 1 notice", "write report #6", "agent report 1 #6", "rank 1 done 2 checkpoint"});
  CHECK(d.Report(0, 3) == Words{"write report #7", "agent report 0 #7", "agent reached 0"});
  CHECK(d.Report(0, 3).empty());  // The answer waits for the go.
  CHECK(d.Report(1, 3, "/c") == Words{"copy 1 3 /c"});
  CHECK(d.On(CheckpointCopied{{0, 0, 1}, 3, "/s"}) == Words{"write report #8", "agent report 1 #8", "agent reached 1"});
  CHECK(d.Last<SendAgent>().message.boundary_reached().has_checkpoint());
  CHECK(d.Hello(100) ==
        Words{"agent hello", "agent attached 0", "agent reached 0", "agent attached 1", "agent reached 1"});
  const auto pass = [](std::uint64_t id) {
    return [id](auto& m) {
      m.mutable_pass()->set_hold(id);
      m.mutable_pass()->set_number(3);
      m.mutable_pass()->set_action("resize");
    };
  };
  CHECK(d.Agent(pass(2)).empty());
  CHECK(d.Agent(pass(3)) ==
        Words{"rank 0 notice", "rank 1 notice", "rank 0 done 3 checkpoint", "rank 1 done 3 checkpoint"});
  CHECK(std::get<SendRank>(d.effects[0]).message.notice().leave().why() == "resize");
  CHECK(d.Agent(pass(3)).empty());
  CHECK(d.Report(0, 4).empty());  // Nothing goes beyond the boundary.
}

TEST_CASE("a cancelled boundary lets everything through", "[shim]") {
  Driver d;
  d.Hello();
  d.Run({0, 1});
  d.Agent([](auto& m) { m.mutable_hold()->set_hold(1); });
  CHECK(d.Report(0, 1).empty());
  d.Agent([](auto& m) {
    m.mutable_boundary()->set_hold(1);
    m.mutable_boundary()->set_number(1);
  });
  CHECK(d.Agent([](auto& m) { m.mutable_cancel_boundary()->set_hold(9); }).empty());
  CHECK(d.Agent([](auto& m) { m.mutable_cancel_boundary()->set_hold(1); }) == Words{"rank 0 done 1"});
  CHECK(d.Report(0, 2).size() == 3);
}

TEST_CASE("in a trial a report returns with the decision, the same for all", "[shim]") {
  Driver d;
  d.Hello();
  d.Run({0, 1}, 0, 4);
  CHECK(d.Report(0, 1, "", 0, 4) == Words{"write report #3", "agent report 0 #3"});
  const auto decide = [&](local::TrialDecision decision) {
    return d.Agent(
        [&](auto& m) {
          m.mutable_decide()->set_number(1);
          m.mutable_decide()->set_decision(decision);
        },
        0, 4);
  };
  CHECK(decide(local::TRIAL_DECISION_STOP) == Words{"rank 0 done 1 decision=3"});
  CHECK(decide(local::TRIAL_DECISION_CONTINUE).empty());
  CHECK(d.Report(1, 1, "", 0, 4) == Words{"write report #4", "agent report 1 #4", "rank 1 done 1 decision=3"});
  CHECK(d.Report(0, 1, "", 0, 4) == Words{"rank 0 done 1 decision=3"});
}

TEST_CASE("a barrier opens for all and stays open", "[shim]") {
  Driver d;
  d.Hello();
  d.Run({0, 1});
  const auto enter = [&](Rank rank) { return d.RankSays(rank, [](auto& m) { m.mutable_barrier()->set_number(1); }); };
  CHECK(enter(0) == Words{"agent entered 0"});
  CHECK(d.Hello(100) == Words{"agent hello", "agent attached 0", "agent entered 0", "agent attached 1"});
  CHECK(d.Agent([](auto& m) { m.mutable_release_barrier()->set_number(1); }) == Words{"rank 0 barrier"});
  CHECK(enter(1) == Words{"rank 1 barrier"});
}

TEST_CASE("a broadcast reaches those that wait and those that come later", "[shim]") {
  Driver d;
  d.Hello();
  d.Run({0, 1, 2});
  const auto join = [&](Rank rank, std::uint64_t number, std::string payload = "") {
    return d.RankSays(rank, [&](auto& m) {
      m.mutable_broadcast()->set_number(number);
      m.mutable_broadcast()->set_root(1);
      m.mutable_broadcast()->set_payload(payload);
    });
  };
  const auto deliver = [&](std::uint64_t number, std::string payload) {
    return d.Agent([&](auto& m) {
      m.mutable_deliver_broadcast()->set_number(number);
      m.mutable_deliver_broadcast()->set_payload(payload);
    });
  };
  CHECK(join(0, 1).empty());
  CHECK(join(1, 1, "p") == Words{"agent given 1"});
  CHECK(deliver(1, "p") == Words{"rank 0 broadcast p", "rank 1 broadcast p"});
  join(1, 2, "q");
  CHECK(deliver(2, "q") == Words{"rank 1 broadcast q"});
  CHECK(join(2, 1) == Words{"rank 2 broadcast p"});  // A slow one.
  CHECK(join(2, 2) == Words{"rank 2 broadcast q"});
  CHECK(join(1, 3, std::string((1 << 20) + 1, 'x')) == Words{"rank 1 refused 5"});
}

TEST_CASE("a failure is told once and remembered for the rank's end", "[shim]") {
  Driver d;
  d.Hello();
  d.Run({0});
  const auto fail = [](auto& m) {
    m.mutable_failure()->set_type("ConnectionError");
    m.mutable_failure()->set_peer_lost(true);
  };
  CHECK(d.RankSays(0, fail) == Words{"write failed #2", "agent failed 0 #2"});
  CHECK(d.RankSays(0, fail).empty());
  CHECK(d.RankSays(0, [](auto& m) { m.mutable_progress()->set_step(4); }) == Words{"agent progress 0"});
  CHECK(d.RankSays(0, [](auto& m) { m.mutable_goodbye(); }) == Words{"close 0"});
  CHECK(d.On(Exited{{0, 0, 0}, 1}) == Words{"write exited #3", "agent exited 0 #3"});
  CHECK(d.Last<SendAgent>().message.exited().peer_lost());
}

TEST_CASE("a survivor that was offered the next attempt lives on in it", "[shim]") {
  Driver d;
  d.Hello();
  d.Run({0, 1});
  d.Report(1, 1);
  const RankRef home{0, 0, 1};
  const auto rejoin = [](auto& m) { m.mutable_rejoined(); };
  CHECK(d.RankSaysFrom(home, 0, 1, rejoin) == Words{"rank 1 refused 3"});
  CHECK(d.Agent([](auto& m) {
    m.mutable_notify()->add_ranks(1);
    auto* next = m.mutable_notify()->mutable_notice()->mutable_next_attempt();
    next->set_attempt(1);
    next->set_rank(0);
  }) == Words{"rank 1 notice"});
  CHECK(d.RankSaysFrom(home, 0, 1, rejoin) == Words{"write started #4", "agent started 0 #4"});
  CHECK(d.Last<SendAgent>().message.id().attempt() == 1);
  CHECK(d.Last<SendAgent>().message.started().pid() == 101);
  CHECK(d.RankSaysFrom(home, 0, 1, rejoin).empty());
  CHECK(d.Start({0}, 1).empty());                      // It is there already.
  CHECK(d.Report(0, 1) == Words{"rank 0 refused 1"});  // The other one is still in the old attempt.
  CHECK(d.RankSaysFrom(home, 0, 1, [](auto& m) { m.mutable_report()->set_number(1); }) ==
        Words{"write report #5", "agent report 0 #5", "rank 1 done 1"});
  CHECK(d.Agent([](auto& m) { m.mutable_stop(); }, 1) == Words{"kill 1 9"});
}

}  // namespace
}  // namespace rayctl::shim
