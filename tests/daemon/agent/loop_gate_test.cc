#include "daemon/agent/loop_gate.h"

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace rayctl::agent {
namespace {

TEST_CASE("what is posted before the gate closes runs on the loop, in order", "[loop_gate]") {
  boost::asio::io_context loop{1};
  LoopGate gate(loop);
  std::vector<int> ran;
  gate.Post([&ran] { ran.push_back(1); });
  gate.Post([&ran] { ran.push_back(2); });
  gate.Close();
  gate.Post([&ran] { ran.push_back(3); });
  CHECK(ran.empty());
  loop.run();
  CHECK(ran == std::vector<int>{1, 2});
}

TEST_CASE("the loop may be destroyed after Close while others still post", "[loop_gate]") {
  constexpr int kThreads = 4;
  constexpr int kPostsBeforeClose = 1000;
  std::optional<boost::asio::io_context> loop(1);
  const auto gate = std::make_shared<LoopGate>(*loop);
  std::atomic<bool> over = false;
  int ran = 0;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([gate, &over, &ran, io = &*loop] {
      while (!over) {
        gate->Post([&ran, io] {
          if (++ran == kPostsBeforeClose) {
            io->stop();  // While every thread is somewhere in Post.
          }
        });
      }
    });
  }
  {
    const auto work = boost::asio::make_work_guard(*loop);
    loop->run();
  }
  gate->Close();
  loop.reset();
  over = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(ran == kPostsBeforeClose);
}

}  // namespace
}  // namespace rayctl::agent
