// A limit on the memory that a rank may use, in addition to the size of its arenas.
//
//   limit_memory({.bytes = std::int64_t{2} << 30});    // for the current rank
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

namespace lockstep::device {

// The limit applies to the bytes in use on all devices together. allocate() throws Error for a request that exceeds it.
// A rank has no limit by default.
struct MemoryLimit {
  static constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();
  std::int64_t bytes = none;
  std::shared_ptr<const std::atomic<std::int64_t>> beside{};  // bytes in use outside devices that also count, or null
  std::string remedy = "shard more, free earlier, or raise the limit";
};
void limit_memory(MemoryLimit limit);

std::int64_t memory_in_use();  // memory_stats().current_total, in bytes

}  // namespace lockstep::device
