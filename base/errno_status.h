#pragma once

#include <cerrno>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace rayctl {

// "no such file or directory": an errno as our messages have it, without a capital.
std::string ErrnoText(int error);

// "<what>: <errno in words>". NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED (full disk, no descriptors, no
// processes), ALREADY_EXISTS, UNAVAILABLE (nobody listens, peer gone), else INTERNAL.
absl::Status ErrnoStatus(std::string_view what, int error);

}  // namespace rayctl
