// The size of the arenas of a rank that shares no memory with peers. A service of its context: to be set before the
// first allocation.
//
//   context.service<device::PrivateArena>().bytes = std::size_t{16} << 20;
#pragma once

#include <cstddef>

#include "engine/core/rank_context.hpp"
#include "engine/device/arena.hpp"

namespace lockstep::device {

struct PrivateArena {
  explicit PrivateArena(const RankContext&) {}
  std::size_t bytes = HostWorld::default_arena_bytes;  // per kind of device; addresses, of which used pages cost memory
};

}  // namespace lockstep::device
