#include "base/startup_memory.h"

#include <link.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace rayctl {
namespace {

int ReleaseReadOnly(dl_phdr_info* object, std::size_t /*size*/, void* /*unused*/) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) != 0) {
      continue;  // Written pages exist nowhere else.
    }
    const std::uintptr_t begin = (object->dlpi_addr + segment.p_vaddr) & ~(page - 1);
    const std::uintptr_t end = (object->dlpi_addr + segment.p_vaddr + segment.p_filesz + page - 1) & ~(page - 1);
    // Advice only: where it is refused (the kernel's own object, locked pages) the pages stay.
    ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
  return 0;
}

}  // namespace

void ReleaseStartupMemory() {
  ::malloc_trim(0);
  ::dl_iterate_phdr(ReleaseReadOnly, nullptr);
}

}  // namespace rayctl
