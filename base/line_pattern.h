#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace re2 {
class RE2;
}

namespace rayctl {

// A regular expression of RE2 that is looked for in lines: in time linear in the line, whatever the expression.
// Thread-safe.
class LinePattern {
 public:
  static constexpr std::size_t kBytesMax = 4096;

  // INVALID_ARGUMENT: it is no expression, and why.
  static absl::StatusOr<LinePattern> Parse(const std::string& expression);

  // `line` with its line end or without; `$` stands before "\r\n" too.
  bool Finds(std::string_view line) const;

 private:
  explicit LinePattern(std::shared_ptr<const re2::RE2> expression) : expression_(std::move(expression)) {}

  std::shared_ptr<const re2::RE2> expression_;
};

}  // namespace rayctl
