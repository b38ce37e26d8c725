// Buffers on the host in the place of those on an accelerator, for a collective whose members live on several hosts:
// the ferries move memory of the host. The input is copied before the member arrives, the output when the collective is
// complete. The memory is pinned, so that both copies run on the stream of the collective, and serves later collectives
// of the rank. Its size depends on the number of collectives in progress, and so on time: statistics do not count it.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "engine/device/device.hpp"

namespace lockstep::comm {

struct IssuedCollective;

// Pinned memory of one rank. On the rank's own thread.
class PinnedMemory {
 public:
  struct Block {
    device::MemoryPtr memory;
    std::byte* data = nullptr;
    bool in_use = false;  // a ferry may use it; stays so after a failure
  };
  // A block of at least `bytes`, which nothing else uses while the caller shares it. Allocates where none is free.
  std::shared_ptr<Block> take(device::Device user, std::size_t bytes);

 private:
  std::vector<std::shared_ptr<Block>> blocks_;
};

// Of one collective.
class HostCopies {
 public:
  // Sizes in bytes; 0: the member has no such buffer. An input in place is also the output.
  struct Sizes {
    std::size_t input = 0, output = 0;
    bool in_place = false;
    std::size_t total() const;
  };
  HostCopies(std::shared_ptr<PinnedMemory::Block> block, Sizes sizes) : block_(std::move(block)), sizes_(sizes) {}
  // Copies the input, waits for it, and lets the collective use the host's buffers.
  void copy_in(IssuedCollective& issued);
  // After a complete collective: copies the output to the accelerator and waits.
  void copy_out(const IssuedCollective& issued);

 private:
  std::shared_ptr<PinnedMemory::Block> block_;
  Sizes sizes_;
  std::byte* output_ = nullptr;  // on the accelerator
};

}  // namespace lockstep::comm
