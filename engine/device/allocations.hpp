// How often the current rank has taken memory of some purposes, repurposed blocks included and empty ones not.
//
//   const std::int64_t before = num_allocations(mask);
//   ...
//   num_allocations(mask) > before    // something of these purposes was allocated in between
#pragma once

#include <cstdint>

namespace lockstep::device {

std::int64_t num_allocations(unsigned purpose_mask);  // bit i: Purpose i

}  // namespace lockstep::device
