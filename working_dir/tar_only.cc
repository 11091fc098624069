#include <string_view>

#include "base/invariant.h"

struct archive;
struct archive_entry;

// libarchive keeps this function of its tar writer in one object with the table of all its formats, which would take
// ten compression libraries along. With it defined here, tar links alone. It is called for what tar has no form for,
// and List gives nothing of the kind.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" void __archive_write_entry_filetype_unsupported(archive* /*writer*/, archive_entry* /*entry*/,
                                                           const char* /*format*/) {
  rayctl::Invariant(false, "tar takes files, folders and links alone");
}
