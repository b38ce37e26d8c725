#include "engine/comm/device_memory.hpp"

#include <cstring>
#include <string_view>

#include <unistd.h>

#include "engine/core/error.hpp"
#include "engine/device/cuda/calls.hpp"
#include "engine/device/device_arena.hpp"

namespace lockstep::comm {

DeviceMemory::DeviceMemory(WorldControl& world, int rank, device::Kind kind) : world_(world), rank_(rank) {
  const device::DeviceArena arena = device::device_arena(kind);
  DeviceArenaControl& own = world.rank(rank).device_arena;
  LOCKSTEP_CHECK(arena.device_id.size() < sizeof own.device_id, "the id of a device: ", arena.device_id);
  if (world.processes != 0 && world.world_size > 1) {
    const device::cuda::MemoryHandle handle = device::cuda::calls().handle_of(arena.area.base);
    static_assert(sizeof own.handle == sizeof handle.bytes);
    std::memcpy(own.handle, handle.bytes, sizeof handle.bytes);
  }
  arena.device_id.copy(own.device_id, sizeof own.device_id - 1);
  own.process = ::getpid();
  own.base = reinterpret_cast<std::uintptr_t>(arena.area.base);
  own.bytes.store(arena.area.bytes, std::memory_order_release);
}

DeviceMemory::~DeviceMemory() {
  for (const auto& [rank, memory] : mapped_) device::cuda::calls().close_handle(memory);
}

std::byte* DeviceMemory::address_of(int rank, const std::byte* pointer) {
  if (pointer == nullptr) return nullptr;
  const DeviceArenaControl &mine = world_.rank(rank_).device_arena, &theirs = world_.rank(rank).device_arena;
  if (theirs.process == mine.process) return const_cast<std::byte*>(pointer);
  const std::uint64_t offset = reinterpret_cast<std::uintptr_t>(pointer) - theirs.base;
  LOCKSTEP_CHECK(offset < theirs.bytes, "rank ", rank, " gives an address outside its arena");
  const std::lock_guard lock(mutex_);
  std::byte*& base = mapped_[rank];
  if (base == nullptr) {
    device::cuda::MemoryHandle handle{};
    std::memcpy(handle.bytes, theirs.handle, sizeof handle.bytes);
    base = static_cast<std::byte*>(device::cuda::calls().open_handle(handle));
  }
  return base + offset;
}

bool share_a_device(const WorldControl& world, const std::int32_t* ranks, int count) {
  const DeviceArenaControl& first = world.rank(ranks[0]).device_arena;
  for (int i = 0; i < count; ++i) {
    const DeviceArenaControl& each = world.rank(ranks[i]).device_arena;
    if (each.bytes.load(std::memory_order_acquire) == 0 ||
        std::string_view(each.device_id) != std::string_view(first.device_id))
      return false;
  }
  return true;
}

}  // namespace lockstep::comm
