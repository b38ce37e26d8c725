// What of its peers' memory a process has in its page table.
//
// The arenas of all ranks are mapped in each process, but a page costs a fault at its first use there, several times as
// much as reading or writing it. A large buffer that meets collectives again is mapped whole at its second, before its
// chunks are claimed: whoever claims one then finds the pages there, and what a training step repeats meets no faults.
// A buffer that comes once costs only the faults of those who work on it.
//
// One a process rank; any of its threads may call.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/core/checked.hpp"
#include "engine/device/arena.hpp"

namespace lockstep::comm {

class Reach {
 public:
  static constexpr std::size_t block_bytes = std::size_t{64} << 10;  // of what is kept in mind, and mapped at once
  static constexpr std::size_t least_bytes =
      bounded_product(block_bytes, 2);  // of a buffer; in less, most of a block would be of others

  explicit Reach(const device::HostWorld& host);
  Reach(const Reach&) = delete;
  Reach& operator=(const Reach&) = delete;

  // A buffer of this rank of the world is about to be read or written. Nothing happens to what lies in no arena.
  void meet(int rank, const std::byte* begin, std::size_t bytes);
  // Blocks mapped ahead so far.
  std::int64_t num_mapped() const { return num_mapped_.load(std::memory_order_relaxed); }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(void* memory) const;
  };
  struct Word {  // of 64 blocks
    std::atomic<std::uint64_t> seen;
    std::atomic<std::uint64_t> mapped;
  };
  void map(device::HostWorld::Area area, std::size_t block);

  const device::HostWorld* host_;
  std::size_t words_a_arena_ = 0;
  std::unique_ptr<Word[], Unmap> words_;  // of the cpu and sim arenas of all ranks; zero
  std::atomic<std::int64_t> num_mapped_{0};
};

}  // namespace lockstep::comm
