#pragma once

#include <cstdio>
#include <cstdlib>
#include <source_location>
#include <string_view>

namespace rayctl {

// Guards our own invariants and stays on in release: prints where and why, then aborts. Never for bytes from a wire, a
// disk or a person; those get a status.
inline void Invariant(bool condition, std::string_view why,
                      std::source_location where = std::source_location::current()) {
  if (condition) [[likely]] {
    return;
  }
  std::fprintf(stderr, "invariant broken at %s:%u: %.*s\n", where.file_name(), static_cast<unsigned>(where.line()),
               static_cast<int>(why.size()), why.data());
  std::abort();
}

}  // namespace rayctl
