#pragma once

namespace rayctl {

// Gives back what only the start of this process needed: free heap, and the pages of programs and libraries that are
// only read. What is used again comes back from the page cache, a few microseconds for each 64 KiB.
void ReleaseStartupMemory();

}  // namespace rayctl
