#pragma once

#include <functional>

#include "client/endpoint.h"

namespace rayctl::cli {

// What StopDaemons tells on stdout and stderr.
enum class Say { kAll, kProblems };

// Ends the daemons of this user whose runtime folder `chosen` accepts, heads first, then the shims that are left, and
// clears away what dead ones left in /tmp. The exit code: 1 when something would not end.
int StopDaemons(const client::EndpointSettings& settings, const std::function<bool(const std::string& run_dir)>& chosen,
                Say say = Say::kAll);

}  // namespace rayctl::cli
