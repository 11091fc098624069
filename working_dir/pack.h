#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rayctl::working_dir {

// In each folder the first of these that is there holds for it and for what is below.
inline constexpr std::string_view kIgnoreFiles[] = {".rayctlignore", ".rayignore", ".gitignore"};

enum class Kind { kFolder, kFile, kLink };
struct Entry {
  std::string path;  // Relative to the folder, without a slash at the end.
  Kind kind = Kind::kFile;
  std::uint64_t bytes = 0;  // Of a file.
  bool executable = false;
  std::string target;  // Of a link.
};
struct Listing {
  std::vector<Entry> entries;  // Each folder before what is in it, names in byte order.
  std::uint64_t bytes = 0;
  std::vector<std::string> left_out;  // Sockets, pipes and devices, which no archive holds.
};

// What of `folder` goes into the archive: not what an ignore file names, and never .git.
// RESOURCE_EXHAUSTED: more than kContentBytesMax or kEntriesMax; says what is largest. INVALID_ARGUMENT: a link that
// leads out of the folder. NOT_FOUND: no such folder.
absl::StatusOr<Listing> List(const std::string& folder);

// OK: a link at `path` (relative to the packed folder) to `target` leads nowhere out of that folder, whatever other
// links that keep to this rule are there: a relative path whose `..` all come first and do not pass the top.
absl::Status CheckLink(std::string_view path, std::string_view target);

struct Packed {
  std::string digest;
  std::uint64_t archive_bytes = 0;
  UniqueFd archive;  // A file without a name, at its beginning.
};

// Packs what was listed: the same names, contents, links and executable bits give the same bytes, whoever owns them and
// whenever they were written. `on_progress` hears how much of listing.bytes is done.
// FAILED_PRECONDITION: a file changed meanwhile. PERMISSION_DENIED: one cannot be read.
absl::StatusOr<Packed> Pack(const std::string& folder, const Listing& listing,
                            const std::function<void(std::uint64_t)>& on_progress);

}  // namespace rayctl::working_dir
