#pragma once

#include <functional>

#include "client/endpoint.h"

namespace rayctl::cli {

// Ends the daemons of this user whose runtime folder `chosen` accepts, heads first, then the shims that are left, and
// clears away what dead ones left in /tmp. Says on stdout what was stopped. The exit code: 1 when something would not
// end.
int StopDaemons(const client::EndpointSettings& settings,
                const std::function<bool(const std::string& run_dir)>& chosen);

}  // namespace rayctl::cli
