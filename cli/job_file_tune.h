#pragma once

#include "cli/yaml_walk.h"

namespace rayctl::cli {

// Checks the `tune:` section of a job file by name and type.
void CheckTuneSection(YamlWalk& walk, const Place& tune);

}  // namespace rayctl::cli
