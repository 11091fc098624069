#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string_view>

namespace rayctl::agent {

// Kills what the ranks of a dead shim left behind in sessions of their own: the processes that carry the shim's mark
// and its rank socket in their environment. Gives how many there were.
std::size_t KillLeftovers(pid_t shim, std::string_view rank_socket);

}  // namespace rayctl::agent
