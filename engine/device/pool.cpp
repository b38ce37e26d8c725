#include "engine/device/pool.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/mman.h>

#include "engine/core/error.hpp"
#include "engine/device/machine_memory.hpp"
#include "engine/device/protection.hpp"

namespace lockstep::device {

namespace {
// Small chunks at first, so that a small case touches little memory; larger ones later, so that growth needs few steps.
constexpr std::size_t first_chunk = std::size_t{64} << 10;
constexpr std::size_t largest_chunk = std::size_t{8} << 20;
// Chunks of at least this size check the available memory first. Populating their pages takes far longer than the
// check.
constexpr std::size_t min_checked_bytes = std::size_t{64} << 20;

// Requests huge pages for large chunks only, because the kernel clears 2 MiB per huge page. Both calls are advice; on a
// kernel without them pages are populated at the first access.
void populate(std::byte* base, std::size_t bytes) {
  const OpenMemory open;
  ::madvise(base, bytes, bytes >= largest_chunk ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#ifdef MADV_POPULATE_WRITE
  ::madvise(base, bytes, MADV_POPULATE_WRITE);
#endif
}
}  // namespace

Arena Arena::map_private(std::size_t bytes) {
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    throw Error(str("cannot reserve ", bytes,
                    " bytes of addresses for the memory of a device: ", static_cast<const char*>(std::strerror(errno))),
                "raise the address space limit (ulimit -v)");
  }
  Arena arena(HostWorld::Region{static_cast<std::byte*>(base), bytes});
  arena.owned_ = true;
  return arena;
}

Arena Arena::of_device(HostWorld::Region area) {
  Arena arena(area);
  arena.on_host_ = false;
  return arena;
}

Arena::~Arena() {
  if (!owned_) return;
  forget_protected(area_.base, area_.bytes);
  ::munmap(area_.base, area_.bytes);
}

Arena::Arena(Arena&& other) noexcept { *this = std::move(other); }

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(area_, other.area_);
  std::swap(used_, other.used_);
  std::swap(owned_, other.owned_);
  std::swap(on_host_, other.on_host_);
  return *this;
}

std::byte* Arena::extend(std::size_t bytes) {
  if (bytes > area_.bytes - used_) return nullptr;
  if (on_host_ && bytes >= min_checked_bytes && bytes > available_memory()) return nullptr;
  std::byte* base = area_.base + used_;
  used_ += bytes;
  if (on_host_) populate(base, bytes);
  return base;
}

Pool::Class Pool::class_of(std::size_t units) {
  if (units < num_steps) return {0, static_cast<int>(units)};
  const int level = std::bit_width(units) - 3;
  return {level, static_cast<int>((units >> (level - 1)) & (num_steps - 1))};
}

std::size_t Pool::round_to_class(std::size_t units) {
  if (units < 2 * num_steps) return units;
  const std::size_t step = std::size_t{1} << (std::bit_width(units) - 4);
  return (units + step - 1) & ~(step - 1);
}

PoolBlock* Pool::allocate(std::size_t bytes, bool& grew) {
  grew = false;
  if (bytes > arena_->bytes()) return nullptr;
  const std::size_t units = round_to_class(((bytes - 1) >> unit_shift_) + 1);
  const std::size_t wanted = units << unit_shift_;
  PoolBlock* block = find(units);
  if (block == nullptr) {
    grew = true;
    block = grow(wanted);
    if (block == nullptr) return nullptr;
  }
  remove(block);
  const std::size_t rest = block->bytes - wanted;
  if (rest > 0) {
    PoolBlock* tail = new_block();
    tail->data = block->data + wanted;
    tail->bytes = rest;
    tail->before = block;
    tail->after = block->after;
    if (tail->after != nullptr) tail->after->before = tail;
    if (last_ == block) last_ = tail;
    block->after = tail;
    block->bytes = wanted;
    insert(tail);
  }
  return block;
}

void Pool::release(PoolBlock* block) {
  if (PoolBlock* before = block->before; before != nullptr && before->free) {
    remove(before);
    before->bytes += block->bytes;
    before->after = block->after;
    if (before->after != nullptr) before->after->before = before;
    if (last_ == block) last_ = before;
    recycle_block(block);
    block = before;
  }
  if (PoolBlock* after = block->after; after != nullptr && after->free) {
    remove(after);
    block->bytes += after->bytes;
    block->after = after->after;
    if (block->after != nullptr) block->after->before = block;
    if (last_ == after) last_ = block;
    recycle_block(after);
  }
  insert(block);
}

PoolBlock* Pool::find(std::size_t units) {
  const Class wanted = class_of(units);
  const unsigned steps = steps_in_use_[static_cast<std::size_t>(wanted.level)] & (0xffu << wanted.step);
  int level = wanted.level;
  int step;
  if (steps != 0) {
    step = std::countr_zero(steps);
  } else {
    const std::uint64_t levels = levels_in_use_ & (~std::uint64_t{0} << (wanted.level + 1));
    if (levels == 0) return nullptr;
    level = std::countr_zero(levels);
    step = std::countr_zero(static_cast<unsigned>(steps_in_use_[static_cast<std::size_t>(level)]));
  }
  return lists_[static_cast<std::size_t>(level)][static_cast<std::size_t>(step)];
}

PoolBlock* Pool::grow(std::size_t bytes) {
  const auto whole_pages = [](std::size_t size) { return (size + page_bytes - 1) / page_bytes * page_bytes; };
  // Grows by a quarter of the pool, so that the number of growths is logarithmic and little memory stays unused.
  std::size_t chunk =
      whole_pages(std::max(bytes, std::clamp(std::bit_floor(reserved_ / 4), first_chunk, largest_chunk)));
  std::byte* data = arena_->extend(chunk);
  if (data == nullptr) {
    chunk = whole_pages(bytes);
    data = arena_->extend(chunk);
    if (data == nullptr) return nullptr;
  }
  if (growth_) growth_({data, chunk});
  reserved_ += chunk;
  // CUDA copies no range whose pages were pinned in two calls, so a block of these lies in one chunk.
  const bool joins = !growth_ && last_ != nullptr && last_->data + last_->bytes == data;
  if (joins && last_->free) {
    remove(last_);
    last_->bytes += chunk;
    insert(last_);
    return last_;
  }
  PoolBlock* block = new_block();
  block->data = data;
  block->bytes = chunk;
  if (joins) {
    block->before = last_;
    last_->after = block;
  }
  last_ = block;
  insert(block);
  return block;
}

void Pool::insert(PoolBlock* block) {
  const Class at = class_of(units_of(block->bytes));
  PoolBlock*& head = lists_[static_cast<std::size_t>(at.level)][static_cast<std::size_t>(at.step)];
  block->free = true;
  block->previous_free = nullptr;
  block->next_free = head;
  if (head != nullptr) head->previous_free = block;
  head = block;
  steps_in_use_[static_cast<std::size_t>(at.level)] |= static_cast<std::uint8_t>(1u << at.step);
  levels_in_use_ |= std::uint64_t{1} << at.level;
}

void Pool::remove(PoolBlock* block) {
  const Class at = class_of(units_of(block->bytes));
  PoolBlock*& head = lists_[static_cast<std::size_t>(at.level)][static_cast<std::size_t>(at.step)];
  if (block->previous_free != nullptr) block->previous_free->next_free = block->next_free;
  if (block->next_free != nullptr) block->next_free->previous_free = block->previous_free;
  if (head == block) head = block->next_free;
  block->free = false;
  block->previous_free = block->next_free = nullptr;
  if (head == nullptr) {
    std::uint8_t& steps = steps_in_use_[static_cast<std::size_t>(at.level)];
    steps &= static_cast<std::uint8_t>(~(1u << at.step));
    if (steps == 0) levels_in_use_ &= ~(std::uint64_t{1} << at.level);
  }
}

PoolBlock* Pool::new_block() {
  if (spare_ == nullptr) return &blocks_.emplace_back();
  PoolBlock* block = spare_;
  spare_ = block->next_free;
  *block = PoolBlock{};
  return block;
}

void Pool::recycle_block(PoolBlock* block) {
  block->next_free = spare_;
  spare_ = block;
}

}  // namespace lockstep::device
