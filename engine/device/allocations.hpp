// The number of allocations of the current rank by purpose.
//
//   const std::int64_t before = num_allocations(mask);
//   ...
//   num_allocations(mask) > before    // a block of these purposes was allocated in between
#pragma once

#include <cstdint>

namespace lockstep::device {

// Counts allocations since the start of the rank, including repurposed blocks and excluding empty ones. Bit i of the
// mask selects Purpose i.
std::int64_t num_allocations(unsigned purpose_mask);

}  // namespace lockstep::device
