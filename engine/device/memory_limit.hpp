// A bound on the memory that a rank may have in use, below the end of the device's own.
//
//   limit_memory({.bytes = std::int64_t{2} << 30});    // of the current rank, from now on
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

namespace lockstep::device {

// The most bytes in use on all devices together; allocate throws Error for a request that goes past it. A rank has no
// limit until it gets one.
struct MemoryLimit {
  static constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();
  std::int64_t bytes = none;
  std::shared_ptr<const std::atomic<std::int64_t>> beside{};  // bytes in use that are no device's; null: none
  std::string remedy = "shard more, free earlier, or raise the limit";
};
void limit_memory(MemoryLimit limit);

std::int64_t memory_in_use();  // memory_stats().current_total alone

}  // namespace lockstep::device
