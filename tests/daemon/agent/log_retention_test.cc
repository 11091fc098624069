#include "daemon/agent/log_retention.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <random>
#include <set>
#include <vector>

namespace rayctl::agent {
namespace {

KeptJob Ended(std::uint64_t id, int written, std::vector<KeptAttempt> attempts) {
  return {.job = JobId{id}, .written = WallTime(std::chrono::seconds(written)), .attempts = std::move(attempts)};
}

TEST_CASE("the jobs that ended longest ago go first, and no more than must", "[log_retention]") {
  const std::vector<KeptJob> kept{Ended(1, 30, {{0, 40}}), Ended(2, 10, {{0, 40}}), Ended(3, 20, {{0, 40}})};
  struct Case {
    std::uint64_t bytes_max;
    std::vector<JobId> gone;
    std::uint64_t left;
  };
  const auto test = GENERATE(values<Case>({{120, {}, 120},
                                           {119, {JobId{2}}, 80},
                                           {80, {JobId{2}}, 80},
                                           {79, {JobId{2}, JobId{3}}, 40},
                                           {0, {JobId{2}, JobId{3}, JobId{1}}, 0}}));
  CAPTURE(test.bytes_max);
  const Removals removals = ChooseRemovals(kept, {.bytes_max = test.bytes_max});
  CHECK(removals.jobs == test.gone);
  CHECK(removals.bytes_left == test.left);
  CHECK(removals.attempts.empty());
}

TEST_CASE("a job that goes on stays, however much it wrote and however old it is", "[log_retention]") {
  std::vector<KeptJob> kept{Ended(1, 1, {{0, 1000}}), Ended(2, 2, {{0, 10}})};
  kept[0].live_from = 0;
  const Removals removals = ChooseRemovals(kept, {.bytes_max = 100});
  CHECK(removals.jobs == std::vector<JobId>{JobId{2}});
  CHECK(removals.bytes_left == 1000);
}

TEST_CASE("of many attempts the newest stay, also of a job that goes on", "[log_retention]") {
  KeptJob job = Ended(5, 1, {{3, 1}, {0, 1}, {7, 1}, {5, 1}});
  const RetentionLimits limits{.attempts_max = 2};
  using Gone = std::vector<std::pair<JobId, AttemptNumber>>;
  CHECK(ChooseRemovals({job}, limits).attempts == Gone{{JobId{5}, 3}, {JobId{5}, 0}});
  job.live_from = 3;  // A rank of attempt 3 is still dying.
  CHECK(ChooseRemovals({job}, limits).attempts == Gone{{JobId{5}, 0}});
  job.live_from = 0;
  CHECK(ChooseRemovals({job}, limits).attempts.empty());
}

TEST_CASE("there is a most of ended jobs too", "[log_retention]") {
  const std::vector<KeptJob> kept{Ended(1, 3, {}), Ended(2, 1, {}), Ended(3, 2, {})};
  CHECK(ChooseRemovals(kept, {.jobs_max = 2}).jobs == std::vector<JobId>{JobId{2}});
}

TEST_CASE("whatever lies there, the limits hold and nothing else goes", "[log_retention]") {
  const unsigned seed = GENERATE(range(1U, 201U));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto draw = [&random](unsigned most) { return random() % (most + 1); };
  const RetentionLimits limits{.bytes_max = draw(2000), .jobs_max = draw(12), .attempts_max = 1 + draw(4)};
  std::vector<KeptJob> kept;
  for (unsigned i = 0; i < draw(20); ++i) {
    KeptJob job = Ended(i + 1, static_cast<int>(draw(10)), {});
    for (unsigned a = 0; a < draw(8); ++a) {
      job.attempts.push_back({a, draw(100)});
    }
    if (draw(3) == 0) {
      job.live_from = draw(8);
    }
    std::shuffle(job.attempts.begin(), job.attempts.end(), random);
    kept.push_back(std::move(job));
  }
  const Removals removals = ChooseRemovals(kept, limits);
  const std::set<JobId> gone(removals.jobs.begin(), removals.jobs.end());
  CHECK(gone.size() == removals.jobs.size());
  std::uint64_t left = 0;
  std::size_t ended_left = 0;
  std::uint64_t last_gone = 0;  // Bytes of the job that went last.
  WallTime newest_gone{};
  for (const KeptJob& job : kept) {
    std::uint64_t bytes = 0;
    std::size_t attempts = 0;
    AttemptNumber newest = 0;
    for (const KeptAttempt& attempt : job.attempts) {
      newest = std::max(newest, attempt.number);
      const bool stays = std::find(removals.attempts.begin(), removals.attempts.end(),
                                   std::pair(job.job, attempt.number)) == removals.attempts.end();
      if (!stays) {
        CHECK_FALSE((job.live_from && attempt.number >= *job.live_from));
      } else if (!(job.live_from && attempt.number >= *job.live_from)) {
        ++attempts;
      }
      bytes += stays ? attempt.bytes : 0;
    }
    if (gone.contains(job.job)) {
      CHECK_FALSE(job.live_from);
      newest_gone = std::max(newest_gone, job.written);
      continue;
    }
    CHECK(attempts <= limits.attempts_max);
    if (!job.attempts.empty()) {
      CHECK(std::find(removals.attempts.begin(), removals.attempts.end(), std::pair(job.job, newest)) ==
            removals.attempts.end());
    }
    left += bytes;
    ended_left += job.live_from ? 0 : 1;
  }
  for (const KeptJob& job : kept) {
    if (!job.live_from && !gone.contains(job.job)) {
      CHECK(job.written >= newest_gone);
    }
    if (!removals.jobs.empty() && job.job == removals.jobs.back()) {
      std::vector<KeptAttempt> attempts = job.attempts;
      std::sort(attempts.begin(), attempts.end(), [](const auto& a, const auto& b) { return a.number > b.number; });
      attempts.resize(std::min(attempts.size(), limits.attempts_max));
      for (const KeptAttempt& attempt : attempts) {
        last_gone += attempt.bytes;
      }
    }
  }
  CHECK(left == removals.bytes_left);
  CHECK((ended_left == 0 || (left <= limits.bytes_max && ended_left <= limits.jobs_max)));
  if (!gone.empty()) {  // With the last one back, a limit would be broken.
    CHECK((left + last_gone > limits.bytes_max || ended_left + 1 > limits.jobs_max));
  }
}

}  // namespace
}  // namespace rayctl::agent
