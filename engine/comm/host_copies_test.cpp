#include "engine/comm/host_copies.hpp"

#include <gtest/gtest.h>

#include "engine/core/rank_context.hpp"

namespace lockstep::comm {
namespace {

constexpr device::Device sim{device::Kind::sim, 0};

TEST(PinnedMemory, ServesLaterCollectives) {
  RankContext context(0, 1);
  const RankScope scope(context);
  PinnedMemory memory;
  const device::Memory* first = memory.take(sim, 1000)->memory.get();
  EXPECT_TRUE(first->pinned_for(device::Kind::sim));
  EXPECT_EQ(memory.take(sim, 1000)->memory.get(), first);
  EXPECT_EQ(memory.take(sim, 10)->memory.get(), first);
}

TEST(PinnedMemory, IsNotCounted) {
  RankContext context(0, 1);
  const RankScope scope(context);
  PinnedMemory memory;
  EXPECT_EQ(memory.take(sim, 1000)->memory->bytes(), 1000U);
  const device::MemoryStats stats = device::memory_stats();
  EXPECT_EQ(stats.num_allocations, 0);
  EXPECT_EQ(stats.peak_total, 0);
}

TEST(PinnedMemory, IsNotSharedByCollectivesInProgress) {
  RankContext context(0, 1);
  const RankScope scope(context);
  PinnedMemory memory;
  const auto large = memory.take(sim, 1000), small = memory.take(sim, 10);
  EXPECT_NE(large->data, small->data);
  EXPECT_NE(memory.take(sim, 10)->data, small->data);
}

TEST(PinnedMemory, KeepsWhatAFailedCollectiveMayStillUse) {
  RankContext context(0, 1);
  const RankScope scope(context);
  PinnedMemory memory;
  const std::byte* data = nullptr;
  {
    const auto block = memory.take(sim, 1000);
    block->in_use = true;
    data = block->data;
  }
  EXPECT_NE(memory.take(sim, 1000)->data, data);
}

TEST(PinnedMemory, GrowsInPlaceOfABlockThatIsTooSmall) {
  RankContext context(0, 1);
  const RankScope scope(context);
  PinnedMemory memory;
  memory.take(sim, 1000);
  const device::Memory* large = memory.take(sim, 5000)->memory.get();
  EXPECT_EQ(memory.take(sim, 1000)->memory.get(), large);
}

TEST(HostCopies, CountTheBytesOfBothBuffers) {
  EXPECT_EQ((HostCopies::Sizes{100, 40, false}).total(), 168u);  // the output is aligned to 64 bytes
  EXPECT_EQ((HostCopies::Sizes{100, 100, true}).total(), 100u);
  EXPECT_EQ((HostCopies::Sizes{0, 0, true}).total(), 0u);
}

}  // namespace
}  // namespace lockstep::comm
