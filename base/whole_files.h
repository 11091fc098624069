#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace rayctl {

struct WholeFile {
  std::string path;
  std::string_view contents;
};

// Writes files of one folder, 0600, each whole or not at all, and puts them in place in the order given. They outlast a
// power cut once this returns. One call for several files costs about what one file does: they share the disk's syncs.
absl::Status WriteDurably(const std::vector<WholeFile>& files);

}  // namespace rayctl
