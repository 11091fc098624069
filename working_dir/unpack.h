#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rayctl::working_dir {

// Unpacks the archive that `archive_fd` reads into the new folder `folder`, everything in it read-only, and gives the
// bytes of its files. Trusts nothing in it: whatever it says, nothing is written, followed or made outside of `folder`.
// INVALID_ARGUMENT: what no packed folder has (absolute paths, `..`, links out, hard links, devices, setuid bits, the
// same name twice), or no archive at all. RESOURCE_EXHAUSTED: too large, or the disk is full. Then nothing is left.
absl::StatusOr<std::uint64_t> Unpack(int archive_fd, const std::string& folder);

}  // namespace rayctl::working_dir
