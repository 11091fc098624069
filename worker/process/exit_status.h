#pragma once

#include <cstdint>
#include <variant>

namespace rayctl::process {

struct Exited {
  int code = 0;
};
struct Signaled {
  int signal = 0;
};
using ExitStatus = std::variant<Exited, Signaled>;

// Exit codes of programs that never ran, as shells have them.
inline constexpr int kNotExecutable = 126;
inline constexpr int kNotFound = 127;

}  // namespace rayctl::process
