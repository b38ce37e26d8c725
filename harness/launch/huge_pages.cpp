#include "harness/launch/huge_pages.hpp"

#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include <sys/mman.h>

namespace lockstep::launch {

namespace {

#ifdef MADV_COLLAPSE
constexpr int collapse = MADV_COLLAPSE;
#else
constexpr int collapse = 25;  // of Linux 6.1; the C library of Debian 12 does not name it
#endif
constexpr std::uintptr_t huge_page_bytes = std::uintptr_t{2} << 20;

}  // namespace

void move_heap_to_huge_pages() noexcept {
  std::FILE* const maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return;
  char line[512];
  bool none_left = false;  // EINVAL: no memory lies there yet, or the system knows no such advice
  while (!none_left && std::fgets(line, sizeof line, maps) != nullptr) {
    std::uintptr_t begin = 0, end = 0;
    unsigned long inode = 0;
    char access[8] = "";
    const int found = std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s %*s %*s %lu", &begin, &end, access, &inode);
    if (found != 4 || std::strcmp(access, "rw-p") != 0 || inode != 0) continue;
    begin = (begin + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
    for (; begin + huge_page_bytes <= end && !none_left; begin += huge_page_bytes)
      none_left = ::madvise(reinterpret_cast<void*>(begin), huge_page_bytes, collapse) != 0 && errno != EINVAL;
  }
  std::fclose(maps);
}

}  // namespace lockstep::launch
