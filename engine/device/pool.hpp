// The allocator behind allocate(): the blocks of one stream, carved from an arena and reused (internal to
// engine/device).
//
// It uses two-level segregated free lists. A size is rounded up to a size class (eight classes per power of two, at
// least 64 bytes), any free block of a class serves any request of that class, and free neighbours merge. A pool keeps
// the memory that it has from its arena, so a repeated training step needs no new memory. The bookkeeping is separate
// from the memory. Only the rank's own thread uses a pool.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

#include "engine/device/arena.hpp"

namespace lockstep::device {

// The region that the pools of one device take their chunks from, in order of its addresses. Chunks are never returned.
class Arena {
 public:
  Arena() = default;
  explicit Arena(HostWorld::Region area) : area_(area) {}
  // Maps private memory, for a rank without a HostWorld. Throws Error if the mapping fails.
  static Arena map_private(std::size_t bytes);
  // Memory whose pages are not the host's, owned by the caller.
  static Arena of_device(HostWorld::Region area);
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  bool defined() const { return area_.base != nullptr; }
  // Returns the next `bytes`, with their pages populated, or null if the region or the machine has less memory left.
  std::byte* extend(std::size_t bytes);
  std::size_t used_bytes() const { return used_; }
  std::size_t bytes() const { return area_.bytes; }
  HostWorld::Region area() const { return area_; }

 private:
  HostWorld::Region area_;
  std::size_t used_ = 0;
  bool owned_ = false;
  bool on_host_ = true;
};

struct PoolBlock {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  bool free = false;
  PoolBlock* before = nullptr;  // neighbours in memory
  PoolBlock* after = nullptr;
  PoolBlock* previous_free = nullptr;  // neighbours in the free list of the size class
  PoolBlock* next_free = nullptr;
};

class Pool {
 public:
  static constexpr std::size_t alignment = 64, page_bytes = 4096;
  using Growth = std::function<void(HostWorld::Region)>;
  // Blocks are aligned to `unit` bytes, a power of two up to the size of a page, and are multiples of it. `growth` is
  // called with the pages of each new chunk, and may throw.
  explicit Pool(Arena* arena, std::size_t unit = alignment, Growth growth = {})
      : arena_(arena), unit_shift_(static_cast<unsigned>(std::countr_zero(unit))), growth_(std::move(growth)) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  bool has_bytes() const { return arena_->defined(); }  // else it has no blocks
  // Returns a block of at least `bytes` (above 0), or null if the arena has too little memory left. Sets `grew` to
  // whether no free block was large enough.
  PoolBlock* allocate(std::size_t bytes, bool& grew);
  void release(PoolBlock* block);
  std::size_t reserved_bytes() const { return reserved_; }

 private:
  static constexpr int num_steps = 8;
  static constexpr int num_levels = 40;
  struct Class {
    int level = 0;
    int step = 0;
  };
  static Class class_of(std::size_t units);
  std::size_t units_of(std::size_t bytes) const { return bytes >> unit_shift_; }
  static std::size_t round_to_class(std::size_t units);
  PoolBlock* find(std::size_t units);  // a free block, or null
  PoolBlock* grow(std::size_t bytes);
  void insert(PoolBlock* block);
  void remove(PoolBlock* block);
  PoolBlock* new_block();
  void recycle_block(PoolBlock* block);

  Arena* arena_;
  unsigned unit_shift_;
  Growth growth_;
  std::array<std::array<PoolBlock*, num_steps>, num_levels> lists_{};
  std::array<std::uint8_t, num_levels> steps_in_use_{};
  std::uint64_t levels_in_use_ = 0;
  std::deque<PoolBlock> blocks_;
  PoolBlock* spare_ = nullptr;
  PoolBlock* last_ = nullptr;  // the block at the end of the newest chunk
  std::size_t reserved_ = 0;
};

}  // namespace lockstep::device
