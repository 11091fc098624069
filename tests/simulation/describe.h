#pragma once

#include <string>

#include "daemon/agent/agent.h"
#include "daemon/head/events.h"
#include "worker/shim/shim.h"

// One line a thing, for traces. Says enough that two runs which differ show it.
namespace rayctl::sim {

namespace local = ::rayctl::local::v1;

std::string Describe(const head::Event& event);
std::string Describe(const head::Effect& effect);
std::string Describe(const agent::Event& event);
std::string Describe(const shim::Event& event);

}  // namespace rayctl::sim
