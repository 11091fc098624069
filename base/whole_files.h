#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace rayctl {

struct WholeFile {
  std::string path;
  std::string contents;
};

// Writes files of one folder, 0600, each whole or not at all for whoever reads them, and puts them in place in the
// order given. A power cut may lose them. Several processes may write the same file at once; the last one stands.
// NOT_FOUND: no such folder. RESOURCE_EXHAUSTED: the disk is full.
absl::Status WriteWhole(const std::vector<WholeFile>& files);

// Writes files of one folder, 0600, each whole or not at all, and puts them in place in the order given. They outlast a
// power cut once this returns. One call for several files costs about what one file does: they share the disk's syncs.
absl::Status WriteDurably(const std::vector<WholeFile>& files);

}  // namespace rayctl
