// The allocations of the current rank, and the memory that its pools hold.
//
//   const std::int64_t before = num_allocations(mask);
//   ...
//   num_allocations(mask) > before    // a block of these purposes was allocated in between
#pragma once

#include <cstdint>

#include "engine/device/device.hpp"

namespace lockstep::device {

// Counts allocations since the start of the rank, including repurposed blocks and excluding empty ones. Bit i of the
// mask selects Purpose i.
std::int64_t num_allocations(unsigned purpose_mask);

// The bytes that the pools of the rank's streams on the device have taken from its arena, in use or free.
std::int64_t reserved_bytes(Device device);

}  // namespace lockstep::device
