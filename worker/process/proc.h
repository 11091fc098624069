#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// What /proc says. Everything here may be out of date when it returns: the kernel does not wait for readers.
namespace rayctl::process {

// Field 22 of /proc/PID/stat, 0 when there is no such process. With it a pid cannot come to name another process.
std::uint64_t StartTicks(pid_t pid);
std::optional<pid_t> ParentOf(pid_t pid);
std::vector<pid_t> ChildrenOf(pid_t pid);
std::vector<pid_t> AllProcesses();
// Whether `pid` is `ancestor` or has it among its parents.
bool IsSelfOrDescendant(pid_t pid, pid_t ancestor);
// The value that the process was started with; nullopt: not set, or not ours to read.
std::optional<std::string> EnvironmentOf(pid_t pid, std::string_view name);
// /proc/sys/kernel/random/boot_id without the line's end.
std::string BootId();

}  // namespace rayctl::process
