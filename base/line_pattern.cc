#include "base/line_pattern.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <utility>

namespace rayctl {

absl::StatusOr<LinePattern> LinePattern::Parse(const std::string& expression) {
  if (expression.size() > kBytesMax) {
    return absl::InvalidArgumentError(
        fmt::format("a regular expression of {} bytes; at most {}", expression.size(), kBytesMax));
  }
  re2::RE2::Options options;
  options.set_log_errors(false);
  auto parsed = std::make_shared<const re2::RE2>(expression, options);
  if (!parsed->ok()) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is no regular expression that RE2 knows: {}", expression, parsed->error()));
  }
  return LinePattern(std::move(parsed));
}

bool LinePattern::Finds(std::string_view line) const {
  for (const char end : {'\n', '\r'}) {
    if (line.ends_with(end)) {
      line.remove_suffix(1);
    }
  }
  return re2::RE2::PartialMatch(re2::StringPiece(line.data(), line.size()), *expression_);
}

}  // namespace rayctl
