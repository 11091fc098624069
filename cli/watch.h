#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "cli/command_line.h"
#include "cli/output.h"

namespace rayctl::cli {

inline constexpr std::chrono::seconds kWatchInterval{2};
inline constexpr std::chrono::milliseconds kWatchIntervalMin{100};

// What a reading verb says: words for people, and the same as one object.
struct Shown {
  std::function<std::string()> text;
  std::function<nlohmann::ordered_json()> object;
  std::vector<std::string> remarks;  // For stderr.
};

// --watch [SECONDS] of a verb: shows the same again until Ctrl-C, which ends it with 130, or until nobody reads.
class Watching {
 public:
  // To be called before Read.
  void AddOption(CLI::App& app);
  // `--watch WORD` where WORD is no number: the word is the verb's, the interval the default.
  static Arguments Separate(Arguments arguments);

  // Says once, or again and again, what `look` gives; on a terminal in place, else one after the other with an empty
  // line between, as JSON one object a line, as YAML one document each. A head that goes away meanwhile is waited for.
  int Run(Format format, const std::function<absl::StatusOr<Shown>()>& look) const;

 private:
  std::optional<Duration> interval_;
};

}  // namespace rayctl::cli
