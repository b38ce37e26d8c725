#include "engine/comm/host_copies.hpp"

#include <algorithm>
#include <atomic>

#include "engine/comm/protocol.hpp"
#include "engine/device/cuda/calls.hpp"
#include "engine/device/scratch.hpp"
#include "engine/device/stream.hpp"

namespace lockstep::comm {

namespace {

constexpr std::size_t alignment = 64;  // bytes, of the output behind the input
std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

std::byte* address_of(device::Memory& memory) {
  std::byte* data = nullptr;
  device::launch(device::current_stream(device::host_device), "host_copies",
                 {{&memory, 0, memory.bytes(), device::Mode::write}},
                 [&data](const device::Pointers& pointers) { data = pointers.at(0); });
  return data;
}

}  // namespace

std::shared_ptr<PinnedMemory::Block> PinnedMemory::take(device::Device user, std::size_t bytes) {
  const auto is_free = [](const std::shared_ptr<Block>& block) {
    if (block.use_count() != 1) return false;
    std::atomic_thread_fence(std::memory_order_acquire);  // the last owner's uses come before
    return !block->in_use;
  };
  std::shared_ptr<Block>* smallest = nullptr;
  for (std::shared_ptr<Block>& block : blocks_)
    if (block->memory->bytes() >= bytes && is_free(block) &&
        (smallest == nullptr || block->memory->bytes() < (*smallest)->memory->bytes()))
      smallest = &block;
  if (smallest != nullptr) return *smallest;
  // A larger block takes the place of one that is too small.
  if (const auto small = std::find_if(blocks_.begin(), blocks_.end(), is_free); small != blocks_.end())
    blocks_.erase(small);
  auto block = std::make_shared<Block>();
  block->memory = device::allocate_pinned_scratch(user, bytes);
  block->data = address_of(*block->memory);
  return blocks_.emplace_back(std::move(block));
}

std::size_t HostCopies::Sizes::total() const { return in_place ? std::max(input, output) : aligned(input) + output; }

void HostCopies::copy_in(IssuedCollective& issued) {
  device::cuda::Calls& calls = device::cuda::calls();
  block_->in_use = true;
  output_ = issued.output;
  if (sizes_.input > 0) {
    calls.copy(block_->data, issued.input, sizes_.input, issued.execution.stream);
    issued.input = block_->data;
  }
  if (sizes_.output > 0) issued.output = block_->data + (sizes_.in_place ? 0 : aligned(sizes_.input));
  calls.synchronize_stream(issued.execution.stream);
}

void HostCopies::copy_out(const IssuedCollective& issued) {
  if (sizes_.output > 0) {
    device::cuda::Calls& calls = device::cuda::calls();
    calls.copy(output_, issued.output, sizes_.output, issued.execution.stream);
    calls.synchronize_stream(issued.execution.stream);
  }
  block_->in_use = false;
}

}  // namespace lockstep::comm
