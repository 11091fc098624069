#include "daemon/agent/leftovers.h"

#include <signal.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "worker/process/proc.h"
#include "worker/shim/rank_process.h"

namespace rayctl::agent {
namespace {

bool IsLeftover(pid_t pid, pid_t shim, std::string_view mark_begins, std::string_view rank_socket) {
  const std::optional<std::string> mark = process::EnvironmentOf(pid, shim::kMarkVariable);
  // A living shim may have the dead one's number by now. All that carries its mark descends from it.
  return mark && mark->starts_with(mark_begins) && process::EnvironmentOf(pid, shim::kSocketVariable) == rank_socket &&
         !process::IsSelfOrDescendant(pid, shim);
}

}  // namespace

std::size_t KillLeftovers(pid_t shim, std::string_view rank_socket) {
  const std::string mark_begins = fmt::format("{}.", shim);
  std::set<std::pair<pid_t, std::uint64_t>> killed;
  // Until a look finds nothing new: one of them may have forked between the look and the signal.
  for (bool found = true; found;) {
    found = false;
    for (const pid_t pid : process::AllProcesses()) {
      if (IsLeftover(pid, shim, mark_begins, rank_socket) && killed.emplace(pid, process::StartTicks(pid)).second) {
        ::kill(pid, SIGKILL);
        found = true;
      }
    }
  }
  return killed.size();
}

}  // namespace rayctl::agent
