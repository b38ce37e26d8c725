// The allocator behind allocate(): blocks cut from an arena, kept and reused, for one stream (internal).
//
// Two-level segregated lists: sizes are rounded up to a class (steps of an eighth of a power of two, 64 bytes at
// least), any free block of a class serves any request of it, neighbours that are free merge. What a pool took from its
// arena it keeps, so a step that repeats takes nothing new. Bookkeeping lies apart from the memory. One rank's thread
// only.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "engine/device/arena.hpp"

namespace lockstep::device {

// Where the pools of a rank's device take their chunks from: an area used up from its start.
class Arena {
 public:
  Arena() = default;
  explicit Arena(HostWorld::Area area) : area_(area) {}
  // A private mapping, for a rank without a world.
  static Arena map_private(std::size_t bytes);
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  bool defined() const { return area_.base != nullptr; }
  std::byte* take(std::size_t bytes);  // populated; null when the rest, or the machine, has less
  std::size_t taken() const { return taken_; }
  std::size_t bytes() const { return area_.bytes; }

 private:
  HostWorld::Area area_;
  std::size_t taken_ = 0;
  bool owned_ = false;
};

struct PoolBlock {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  bool free = false;
  PoolBlock* before = nullptr;  // neighbours in memory
  PoolBlock* after = nullptr;
  PoolBlock* previous_free = nullptr;  // neighbours in the list of the class
  PoolBlock* next_free = nullptr;
};

class Pool {
 public:
  static constexpr std::size_t alignment = 64;
  explicit Pool(Arena* arena) : arena_(arena) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Null when the arena is used up. `grew` tells whether the arena was asked.
  PoolBlock* take(std::size_t bytes, bool& grew);
  void give_back(PoolBlock* block);
  std::size_t reserved_bytes() const { return reserved_; }

 private:
  static constexpr int num_steps = 8;
  static constexpr int num_levels = 40;
  struct Class {
    int level = 0;
    int step = 0;
  };
  static Class class_of(std::size_t units);
  static std::size_t round_to_class(std::size_t units);
  PoolBlock* find(std::size_t units);
  PoolBlock* grow(std::size_t bytes);
  void insert(PoolBlock* block);
  void remove(PoolBlock* block);
  PoolBlock* new_block();
  void drop_block(PoolBlock* block);

  Arena* arena_;
  std::array<std::array<PoolBlock*, num_steps>, num_levels> lists_{};
  std::array<std::uint8_t, num_levels> steps_in_use_{};
  std::uint64_t levels_in_use_ = 0;
  std::deque<PoolBlock> blocks_;
  PoolBlock* spare_ = nullptr;
  PoolBlock* last_ = nullptr;  // the block at the end of the newest chunk
  std::size_t reserved_ = 0;
};

}  // namespace lockstep::device
