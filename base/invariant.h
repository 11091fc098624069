#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace rayctl {

// Guards our own invariants and stays on in release: prints where and why, then aborts. Never for bytes from a wire, a
// disk or a person; those get a status.
// The last two are filled in by the compiler (std::source_location, which clang 14 does not have).
inline void Invariant(bool condition, std::string_view why, const char* file = __builtin_FILE(),
                      unsigned line = __builtin_LINE()) {
  if (condition) [[likely]] {
    return;
  }
  std::fprintf(stderr, "invariant broken at %s:%u: %.*s\n", file, line, static_cast<int>(why.size()), why.data());
  std::abort();
}

}  // namespace rayctl
