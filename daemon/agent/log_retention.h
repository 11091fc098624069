#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"

namespace rayctl::agent {

// How much of what jobs wrote stays on a node. What a rank of a living job writes is bounded by rotation alone.
struct RetentionLimits {
  std::uint64_t bytes_max = 10ULL << 30;  // Of the logs of all jobs together.
  std::size_t jobs_max = 10'000;          // Folders of ended jobs: each costs some inodes, however little it holds.
  std::size_t attempts_max = 50;          // Folders of one job, a living one too: a crash loop makes many.
};

struct KeptAttempt {
  AttemptNumber number = 0;
  std::uint64_t bytes = 0;
};

// The folder of one job as it lies on the disk.
struct KeptJob {
  JobId job;
  WallTime written{};                 // When its logs were last written to.
  std::vector<KeptAttempt> attempts;  // In any order.
  // Set while the job goes on here: this attempt and newer ones are being written.
  std::optional<AttemptNumber> live_from;
};

struct Removals {
  std::vector<JobId> jobs;  // Whole, the longest ended first.
  std::vector<std::pair<JobId, AttemptNumber>> attempts;
  std::uint64_t bytes_left = 0;  // Of what stays.
};

// What has to go: of each job the oldest attempts beyond attempts_max, then the jobs that ended longest ago until the
// rest is within the limits. Never a job that goes on, and never the newest attempt of one.
Removals ChooseRemovals(std::vector<KeptJob> kept, const RetentionLimits& limits);

}  // namespace rayctl::agent
