#include "engine/comm/peer_mappings.hpp"

#include <algorithm>
#include <cerrno>
#include <type_traits>

#include <sys/mman.h>

#include "engine/core/checked.hpp"
#include "engine/core/resources.hpp"

namespace lockstep::comm {

void PeerMappings::Unmap::operator()(void* memory) const { ::munmap(memory, bytes); }

PeerMappings::PeerMappings(const device::HostWorld& host) : host_(&host) {
  static_assert(std::is_trivially_destructible_v<Word>);
  std::size_t largest = 0;
  for (int number = 0; number < host.num_arenas(); ++number) largest = std::max(largest, host.arena(number).bytes);
  words_per_arena_ = largest / block_bytes / 64 + 1;
  const std::size_t bytes = bounded_product(element_offset(host.num_arenas(), words_per_arena_), sizeof(Word));
  // Zero-filled, and pages that are never accessed use no memory. Allocators do not promise both.
  void* const words =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (words == MAP_FAILED)
    throw resource_error(str("mapping the table of the blocks of ", host.world_size(), " ranks"), errno);
  words_ = {static_cast<Word*>(words), Unmap{bytes}};
}

void PeerMappings::note_use(int rank, const std::byte* begin, std::size_t bytes) {
  if (begin == nullptr || bytes == 0) return;
  const int number = host_->arena_with(rank, begin);
  if (number < 0) return;
  const device::HostWorld::Region area = host_->arena(number);
  Word* words = words_.get() + element_offset(number, words_per_arena_);
  const std::size_t first = static_cast<std::size_t>(begin - area.base) / block_bytes;
  const std::size_t last = (static_cast<std::size_t>(begin - area.base) + bytes - 1) / block_bytes;
  for (std::size_t at = first; at <= last;) {
    Word& word = words[at / 64];
    const std::size_t end = std::min(last + 1, (at / 64 + 1) * 64);
    const std::size_t n = end - at;
    const std::uint64_t mask = (n == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1) << (at % 64);
    if ((word.mapped.load(std::memory_order_relaxed) & mask) != mask) {
      const std::uint64_t seen_before = word.seen.fetch_or(mask, std::memory_order_relaxed) & mask;
      const std::uint64_t missing = seen_before & ~word.mapped.fetch_or(seen_before, std::memory_order_relaxed);
      for (std::size_t bit = 0; bit < 64; ++bit)
        if ((missing >> bit & 1) != 0) map(area, at / 64 * 64 + bit);
    }
    at = end;
  }
}

// An advice: a kernel without it maps pages at their first access. Populating a shared page for reading also makes it
// writable.
void PeerMappings::map(device::HostWorld::Region area, std::size_t block) {
  const std::size_t begin = element_offset(block, block_bytes);
#ifdef MADV_POPULATE_READ
  ::madvise(area.base + begin, std::min(block_bytes, area.bytes - begin), MADV_POPULATE_READ);
#endif
  num_mapped_blocks_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace lockstep::comm
