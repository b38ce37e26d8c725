// The pages of its peers' memory that a process has in its page table.
//
// Every process maps the arenas of all ranks. The first access to a page of a mapping costs a page fault, several times
// as much as reading or writing the page. A training step repeats its buffers, so all blocks of a large buffer are
// mapped ahead at its second use, before its chunks are claimed; later uses cause no faults. A buffer that is used once
// causes faults only in the ranks that compute its chunks.
//
// One object per rank that is a process. Any of its threads may call it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/core/checked.hpp"
#include "engine/device/arena.hpp"

namespace lockstep::comm {

class PeerMappings {
 public:
  static constexpr std::size_t block_bytes = std::size_t{64} << 10;  // unit of tracking and of mapping
  // Smaller buffers are ignored: most of their blocks would belong to other buffers.
  static constexpr std::size_t min_buffer_bytes = bounded_product(block_bytes, 2);

  explicit PeerMappings(const device::HostWorld& host);
  PeerMappings(const PeerMappings&) = delete;
  PeerMappings& operator=(const PeerMappings&) = delete;

  // Announces an access to a buffer of a rank of the world. Maps the blocks that have been announced before. Ignores
  // memory outside the arenas of that rank.
  void note_use(int rank, const std::byte* begin, std::size_t bytes);
  std::int64_t num_mapped_blocks() const { return num_mapped_blocks_.load(std::memory_order_relaxed); }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(void* memory) const;
  };
  struct Word {  // the state of 64 blocks, one bit each
    std::atomic<std::uint64_t> seen;
    std::atomic<std::uint64_t> mapped;
  };
  void map(device::HostWorld::Region area, std::size_t block);

  const device::HostWorld* host_;
  std::size_t words_per_arena_ = 0;
  std::unique_ptr<Word[], Unmap> words_;  // zero-filled; the cpu and sim arenas of all ranks
  std::atomic<std::int64_t> num_mapped_blocks_{0};
};

}  // namespace lockstep::comm
