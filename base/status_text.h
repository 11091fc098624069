#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace rayctl {

// The message of a status as text that fmt takes (Abseil here has a string_view of its own).
inline std::string Text(const absl::Status& status) { return std::string(status.message()); }

// The same failure with what this layer knows in front: `starting worker 3: exec train: no such file`.
inline absl::Status Annotate(const absl::Status& status, std::string_view context) {
  std::string message(context);
  message += ": ";
  message += Text(status);
  return absl::Status(status.code(), message);
}

}  // namespace rayctl
