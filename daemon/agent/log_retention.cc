#include "daemon/agent/log_retention.h"

#include <algorithm>
#include <tuple>

namespace rayctl::agent {

Removals ChooseRemovals(std::vector<KeptJob> kept, const RetentionLimits& limits) {
  Removals removals;
  std::vector<std::tuple<WallTime, JobId, std::uint64_t>> ended;  // With the bytes that stay of them.
  for (KeptJob& job : kept) {
    std::sort(job.attempts.begin(), job.attempts.end(),
              [](const KeptAttempt& a, const KeptAttempt& b) { return a.number > b.number; });
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < job.attempts.size(); ++i) {
      const KeptAttempt& attempt = job.attempts[i];
      const bool stays =
          i < std::max<std::size_t>(limits.attempts_max, 1) || (job.live_from && attempt.number >= *job.live_from);
      if (stays) {
        bytes += attempt.bytes;
      } else {
        removals.attempts.emplace_back(job.job, attempt.number);
      }
    }
    removals.bytes_left += bytes;
    if (!job.live_from) {
      ended.emplace_back(job.written, job.job, bytes);
    }
  }
  std::sort(ended.begin(), ended.end());
  std::size_t jobs_left = ended.size();
  for (const auto& [written, job, bytes] : ended) {
    if (removals.bytes_left <= limits.bytes_max && jobs_left <= limits.jobs_max) {
      break;
    }
    removals.jobs.push_back(job);
    removals.bytes_left -= bytes;
    --jobs_left;
  }
  std::erase_if(removals.attempts, [&removals](const auto& attempt) {
    return std::find(removals.jobs.begin(), removals.jobs.end(), attempt.first) != removals.jobs.end();
  });
  return removals;
}

}  // namespace rayctl::agent
