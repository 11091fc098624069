#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/resources.h"
#include "base/states.h"

namespace rayctl {

// What a person asked for, with every default filled in (NormaliseJobSpec).
struct JobSpec {
  std::string name;               // Empty: the head names it after the entrypoint and the id.
  std::string entrypoint;         // Run under /bin/sh -c. Either this or argv.
  std::vector<std::string> argv;  // Exec'd without a shell.
  std::map<std::string, std::string> env_vars;
  std::string train_loop_config_json = "{}";
  std::uint32_t num_workers = 1;
  std::uint32_t num_workers_max = 1;
  Resources resources_per_worker{{"CPU", Amount::Units(1)}};
  PlacementStrategy placement_strategy = PlacementStrategy::kPack;
  std::map<std::string, std::string> label_selector;
  std::string accelerator_type;
  std::string storage_path;
  std::int32_t max_failures = 0;  // -1 = for ever.
  std::uint32_t num_to_keep = 0;
  std::string checkpoint_score_attribute;
  std::string checkpoint_score_order;
  std::string queue;
  std::int32_t priority = 0;
  std::optional<std::int64_t> seed;
  Duration timeout{0};  // 0 = none.
  Duration agent_grace = std::chrono::seconds(60);
  Duration grace_period = std::chrono::seconds(10);
  Duration head_grace{0};  // 0 = none.
  JobKind kind = JobKind::kCommand;
  std::string working_dir;  // Digest of the packed folder; empty: ranks start in an empty folder.

  friend bool operator==(const JobSpec&, const JobSpec&) = default;
};

}  // namespace rayctl
