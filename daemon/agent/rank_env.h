#pragma once

#include <string>
#include <vector>

#include "daemon/link/messages.h"
#include "shim.pb.h"

namespace rayctl::agent {

// RAYCTL_CONFIG above this is a file, because one variable may not exceed 128 KiB (MAX_ARG_STRLEN).
inline constexpr std::size_t kConfigBytesInEnv = 64UL << 10;

// Where what belongs to one job lies on this node; see docs/contracts.md.
struct JobPaths {
  std::string work_dir;
  std::string logs_dir;
  std::string config_file;  // train_loop_config, where it is too long for a variable.

  static JobPaths Of(const std::string& state_dir, JobId job);
  std::string RankLog(AttemptNumber attempt, Rank rank) const;
};

// Whether `spec`'s train_loop_config goes to JobPaths::config_file.
bool ConfigNeedsFile(const JobSpec& spec);

// The whole environment of a rank but RAYCTL_SOCKET, which its shim adds: KEY=VALUE, in key order. `base_env` gives way
// to the job's env_vars, and both to what rayctl decides.
std::vector<std::string> RankEnvironment(const link::Register& node, const std::vector<std::string>& base_env,
                                         const JobPaths& paths, const link::StartGroup& group,
                                         const link::RankAssignment& rank);

// What the shim needs to start this rank.
::rayctl::local::v1::RankStart MakeRankStart(const link::Register& node, const std::vector<std::string>& base_env,
                                             const JobPaths& paths, const link::StartGroup& group,
                                             const link::RankAssignment& rank);

}  // namespace rayctl::agent
