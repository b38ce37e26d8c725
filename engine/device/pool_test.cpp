#include "engine/device/pool.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include <sys/mman.h>

namespace lockstep::device {
namespace {

TEST(Pool, ReturnsAlignedDisjointBlocks) {
  Arena arena = Arena::map_private(std::size_t{1} << 26);
  Pool pool(&arena);
  std::mt19937 draws(7);
  struct Taken {
    PoolBlock* block;
    std::size_t bytes;
    int mark;
  };
  std::vector<Taken> taken;
  int mark = 0;
  for (int step = 0; step < 4000; ++step) {
    if (taken.size() < 40 || draws() % 2 == 0) {
      const std::size_t bytes = 1 + draws() % (draws() % 8 == 0 ? 200000 : 3000);
      bool grew = false;
      PoolBlock* block = pool.allocate(bytes, grew);
      ASSERT_NE(block, nullptr);
      ASSERT_GE(block->bytes, bytes);
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(block->data) % Pool::alignment, 0u);
      mark = (mark + 1) % 251;
      std::memset(block->data, mark, bytes);
      taken.push_back({block, bytes, mark});
    } else {
      const std::size_t at = draws() % taken.size();
      const Taken gone = taken[at];
      for (std::size_t i = 0; i < gone.bytes; i += 61) {
        ASSERT_EQ(static_cast<int>(gone.block->data[i]), gone.mark) << "step " << step << ", seed 7";
      }
      pool.release(gone.block);
      taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  for (const Taken& rest : taken) pool.release(rest.block);
  // All blocks merge again, so half of the reserved memory is available as one block.
  bool grew = true;
  PoolBlock* half = pool.allocate(pool.reserved_bytes() / 2, grew);
  ASSERT_NE(half, nullptr);
  EXPECT_FALSE(grew);
}

// Of a pool whose chunks are announced, the caller may treat each chunk apart.
TEST(Pool, KeepsBlocksWithinAnnouncedChunks) {
  Arena arena = Arena::map_private(std::size_t{1} << 26);
  std::vector<HostWorld::Region> chunks;
  Pool pool(&arena, Pool::page_bytes, [&](HostWorld::Region chunk) { chunks.push_back(chunk); });
  std::vector<PoolBlock*> blocks;
  for (const std::size_t bytes : {40'000, 200'000, 5'000, 700'000, 90'000, 1'500'000}) {
    bool grew = false;
    blocks.push_back(pool.allocate(bytes, grew));
    ASSERT_NE(blocks.back(), nullptr);
    const auto holds = [&](const HostWorld::Region& chunk) {
      return chunk.base <= blocks.back()->data &&
             blocks.back()->data + blocks.back()->bytes <= chunk.base + chunk.bytes;
    };
    EXPECT_TRUE(std::any_of(chunks.begin(), chunks.end(), holds)) << bytes;
    if (bytes == 5'000) {
      for (PoolBlock* block : blocks) pool.release(block);
      blocks.clear();
    }
  }
  EXPECT_GT(chunks.size(), 2U);
}

TEST(Pool, DoesNotGrowInRepeatedSteps) {
  Arena arena = Arena::map_private(std::size_t{1} << 30);
  Pool pool(&arena);
  std::mt19937 draws(11);
  std::vector<std::size_t> sizes;
  for (int i = 0; i < 300; ++i) sizes.push_back(1 + draws() % 500000);
  const auto step = [&] {
    bool any = false, grew = false;
    std::vector<PoolBlock*> blocks;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      blocks.push_back(pool.allocate(sizes[i], grew));
      any = any || grew;
      if (i % 3 == 2) {
        pool.release(blocks[i - 1]);
        blocks[i - 1] = nullptr;
      }
    }
    for (PoolBlock* block : blocks) {
      if (block != nullptr) pool.release(block);
    }
    return any;
  };
  EXPECT_TRUE(step());
  const std::size_t reserved = pool.reserved_bytes();
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(step());
  EXPECT_EQ(pool.reserved_bytes(), reserved);
  std::size_t live = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) live += i % 3 == 1 ? 0 : sizes[i];
  EXPECT_LT(static_cast<double>(reserved), 1.35 * static_cast<double>(live));
}

// A step splits the chunk twice and merges all again.
TEST(Pool, UsesTheRecordsOfMergedBlocksAgain) {
  Arena arena = Arena::map_private(std::size_t{1} << 20);
  Pool pool(&arena);
  // A block joins the free one behind it, or the free ones on both sides.
  for (const bool in_order : {false, true}) {
    std::set<const PoolBlock*> records;
    for (int step = 0; step < 100; ++step) {
      bool grew = false;
      PoolBlock* const first = pool.allocate(100, grew);
      PoolBlock* const second = pool.allocate(100, grew);
      records.insert({first, second});
      pool.release(in_order ? first : second);
      pool.release(in_order ? second : first);
    }
    EXPECT_LE(records.size(), 4U) << in_order;
  }
}

TEST(Arena, UnmapsItsPrivateMemoryAfterAMove) {
  constexpr std::size_t bytes = std::size_t{1} << 20;
  std::byte* base = nullptr;
  {
    Arena mapped = Arena::map_private(bytes);
    base = mapped.area().base;
    Arena arena;
    arena = std::move(mapped);
    EXPECT_EQ(arena.area().base, base);
    EXPECT_EQ(::msync(base, bytes, MS_ASYNC), 0);
  }
  EXPECT_EQ(::msync(base, bytes, MS_ASYNC), -1);
  EXPECT_EQ(errno, ENOMEM);  // no memory is mapped there
}

TEST(Pool, UsesLittleMemoryForSmallCases) {
  Arena arena = Arena::map_private(std::size_t{1} << 26);
  Pool pool(&arena);
  bool grew = false;
  for (int i = 0; i < 20; ++i) pool.allocate(1000, grew);
  EXPECT_LE(arena.used_bytes(), std::size_t{64} << 10);
}

TEST(Pool, ReturnsNullWhenTheArenaIsExhausted) {
  Arena arena = Arena::map_private(std::size_t{1} << 20);
  Pool pool(&arena), other(&arena);
  bool grew = false;
  EXPECT_EQ(pool.allocate(std::size_t{1} << 40, grew), nullptr);
  EXPECT_EQ(pool.allocate((std::size_t{1} << 20) + 1, grew), nullptr);
  PoolBlock* all = pool.allocate(std::size_t{1} << 20, grew);
  ASSERT_NE(all, nullptr);
  EXPECT_TRUE(grew);
  EXPECT_EQ(other.allocate(1, grew), nullptr);
  pool.release(all);
  EXPECT_NE(pool.allocate(std::size_t{1} << 19, grew), nullptr);
  EXPECT_FALSE(grew);
}

TEST(Pool, TakesPagesAtTheEndOfAnArenaThatHasNoRoomForAChunk) {
  Arena arena = Arena::map_private(std::size_t{96} << 10);
  Pool pool(&arena);
  bool grew = false;
  ASSERT_NE(pool.allocate(std::size_t{60} << 10, grew), nullptr);
  EXPECT_EQ(arena.used_bytes(), std::size_t{64} << 10);  // the smallest chunk
  ASSERT_NE(pool.allocate(std::size_t{20} << 10, grew), nullptr);
  EXPECT_TRUE(grew);
  EXPECT_EQ(arena.used_bytes(), std::size_t{84} << 10);
  EXPECT_EQ(pool.allocate(std::size_t{20} << 10, grew), nullptr);
  EXPECT_EQ(arena.used_bytes(), std::size_t{84} << 10);
}

}  // namespace
}  // namespace lockstep::device
