#include "harness/launch/huge_pages.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <sys/mman.h>

namespace lockstep::launch {
namespace {

constexpr std::size_t bytes = std::size_t{16} << 20;
constexpr int collapse = 25;  // MADV_COLLAPSE

// KiB in huge pages of the mapping that contains the address.
long huge_kib_at(const char* address) {
  std::ifstream file("/proc/self/smaps");
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  bool is_here = false;
  for (std::string line; std::getline(file, line);) {
    char* rest = nullptr;
    const std::uintptr_t begin = std::strtoull(line.c_str(), &rest, 16);
    if (*rest == '-') is_here = begin <= wanted && wanted < std::strtoull(rest + 1, nullptr, 16);
    if (is_here && line.starts_with("AnonHugePages:")) return std::atol(line.c_str() + 14);
  }
  return -1;
}

char* mapped() {
  void* const place = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(place, MAP_FAILED);
  ::madvise(place, bytes, MADV_NOHUGEPAGE);  // however the machine is set, it begins with small pages
  char* const memory = static_cast<char*>(place);
  for (std::size_t i = 0; i < bytes; ++i) memory[i] = static_cast<char>(i % 251);
  ::madvise(place, bytes, MADV_HUGEPAGE);
  return memory;
}

TEST(HugePages, HoldTheSameBytes) {
  char* const memory = mapped();
  move_heap_to_huge_pages();
  std::size_t same = 0;
  for (std::size_t i = 0; i < bytes; ++i) same += memory[i] == static_cast<char>(i % 251) ? 1 : 0;
  EXPECT_EQ(same, bytes);
  ::munmap(memory, bytes);
}

TEST(HugePages, TakeThePlaceOfSmallOnes) {
  char* const memory = mapped();
  const std::size_t huge = std::size_t{2} << 20;
  char* const aligned = memory + (huge - reinterpret_cast<std::uintptr_t>(memory) % huge) % huge;
  char* const other = mapped();
  char* const probe = other + (huge - reinterpret_cast<std::uintptr_t>(other) % huge) % huge;
  const bool has_them = ::madvise(probe, huge, collapse) == 0;
  ::munmap(other, bytes);
  if (!has_them) GTEST_SKIP() << "this system gives no huge pages";
  const long before = huge_kib_at(aligned);
  move_heap_to_huge_pages();
  EXPECT_GE(huge_kib_at(aligned), before + 12 * 1024);
  ::munmap(memory, bytes);
}

}  // namespace
}  // namespace lockstep::launch
