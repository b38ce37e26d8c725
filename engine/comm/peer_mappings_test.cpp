// Mapping pages of peers ahead of use, and copies to several destinations.
#include "engine/comm/peer_mappings.hpp"

#include <numeric>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/comm/communicator.hpp"
#include "engine/comm/protocol.hpp"
#include "engine/comm/reduce.hpp"
#include "engine/comm/test_ranks.hpp"

namespace lockstep::comm {
namespace {

using namespace testing_ranks;

std::unique_ptr<device::HostWorld> small_world(int size, std::size_t num_blocks = 10) {
  return device::HostWorld::create(size, device::Sharing::processes, num_blocks * PeerMappings::block_bytes,
                                   control_bytes(size));
}

// Whether this process has the page in its page table.
bool is_mapped(const std::byte* address) {
  const auto page = reinterpret_cast<std::uintptr_t>(address) / static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const int file = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  std::uint64_t entry = 0;
  const auto at = static_cast<off_t>(page * sizeof entry);
  EXPECT_EQ(::pread(file, &entry, sizeof entry, at), static_cast<ssize_t>(sizeof entry));
  ::close(file);
  return entry >> 63 != 0;
}

#ifdef MADV_POPULATE_READ
bool can_map_ahead(std::byte* page) {
  return ::madvise(page, static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)), MADV_POPULATE_READ) == 0;
}
#else
bool can_map_ahead(std::byte*) { return false; }
#endif

TEST(PeerMappings, MapsABufferAtItsSecondUse) {
  const auto host = small_world(2);
  PeerMappings mappings(*host);
  const std::byte* base = host->arena(device::Kind::cpu, 1).base;
  mappings.note_use(1, base + 100, 2 * PeerMappings::block_bytes);  // three blocks, the first and last partly
  EXPECT_EQ(mappings.num_mapped_blocks(), 0);
  mappings.note_use(1, base + 100, 2 * PeerMappings::block_bytes);
  EXPECT_EQ(mappings.num_mapped_blocks(), 3);
  mappings.note_use(1, base + 100, 2 * PeerMappings::block_bytes);
  EXPECT_EQ(mappings.num_mapped_blocks(), 3);
  // Another buffer that shares one block: only the other block is mapped.
  for (int time = 0; time < 3; ++time)
    mappings.note_use(1, base + 2 * PeerMappings::block_bytes, 2 * PeerMappings::block_bytes);
  EXPECT_EQ(mappings.num_mapped_blocks(), 4);
}

// The state of 64 blocks is one word.
TEST(PeerMappings, MapsTheBlocksOfABufferOverSeveralWords) {
  const auto host = small_world(2, 300);
  const auto mapped_blocks = [&](std::size_t first, std::size_t num) {
    PeerMappings mappings(*host);
    const std::byte* begin = host->arena(device::Kind::cpu, 1).base + first * PeerMappings::block_bytes;
    for (int time = 0; time < 3; ++time) mappings.note_use(1, begin, num * PeerMappings::block_bytes);
    return mappings.num_mapped_blocks();
  };
  EXPECT_EQ(mapped_blocks(0, 300), 300);
  EXPECT_EQ(mapped_blocks(64, 64), 64);
  EXPECT_EQ(mapped_blocks(63, 2), 2);
  EXPECT_EQ(mapped_blocks(130, 150), 150);
}

// Each block of each arena is used once, and so none is mapped.
TEST(PeerMappings, KeepsTheBlocksOfLargeArenasApart) {
  const auto host = small_world(2, 300);
  PeerMappings mappings(*host);
  for (const device::Kind kind : {device::Kind::cpu, device::Kind::sim})
    for (const int rank : {0, 1}) mappings.note_use(rank, host->arena(kind, rank).base, host->arena(kind, rank).bytes);
  EXPECT_EQ(mappings.num_mapped_blocks(), 0);
}

TEST(PeerMappings, PutsThePagesOfTheBlocksIntoThePageTable) {
  const auto host = small_world(2, 300);
  std::byte* const base = host->arena(device::Kind::cpu, 1).base;
  if (!can_map_ahead(base)) GTEST_SKIP() << "this kernel maps a page at its first access only";
  PeerMappings mappings(*host);
  const std::size_t first = 70, num = 3;
  for (int time = 0; time < 2; ++time)
    mappings.note_use(1, base + first * PeerMappings::block_bytes, num * PeerMappings::block_bytes);
  for (std::size_t block = 60; block < 80; ++block)
    EXPECT_EQ(is_mapped(base + (block + 1) * PeerMappings::block_bytes - 1), block >= first && block < first + num)
        << "block " << block;
}

TEST(PeerMappings, SeparatesArenasAndIgnoresOtherMemory) {
  const auto host = small_world(2);
  PeerMappings mappings(*host);
  const auto twice = [&](int rank, const std::byte* begin, std::size_t bytes) {
    mappings.note_use(rank, begin, bytes);
    mappings.note_use(rank, begin, bytes);
  };
  twice(0, host->arena(device::Kind::cpu, 0).base, 1);
  EXPECT_EQ(mappings.num_mapped_blocks(), 1);
  twice(0, host->arena(device::Kind::sim, 0).base, 1);
  EXPECT_EQ(mappings.num_mapped_blocks(), 2);
  twice(1, host->arena(device::Kind::sim, 1).base, host->arena(device::Kind::sim, 1).bytes);
  EXPECT_EQ(mappings.num_mapped_blocks(), 12);
  const int elsewhere = 0;
  twice(0, reinterpret_cast<const std::byte*>(&elsewhere), sizeof elsewhere);
  twice(0, host->arena(device::Kind::cpu, 1).base, 1);  // in the arena of another rank
  twice(0, nullptr, 64);
  twice(0, host->arena(device::Kind::cpu, 0).base, 0);
  EXPECT_EQ(mappings.num_mapped_blocks(), 12);
}

TEST(PeerMappings, DoesNotChangeSumsOfRepeatedBuffers) {
  const auto failures = run_ranks(3, Kind::processes, [](int rank) {
    constexpr std::size_t count = 300'000;
    std::vector<float> mine(count);
    std::iota(mine.begin(), mine.end(), static_cast<float>(rank));
    const Tensor tensor = tensor_of(mine, DType::float32);
    for (int time = 0; time < 4; ++time) {
      device::write_from_host(tensor.storage()->memory(), 0, mine.data(), count * sizeof(float));
      all_reduce(world_group(), tensor, ReduceOp::sum);
      const std::vector<float> sums = values_of<float>(tensor);
      for (std::size_t i = 0; i < count; i += 997) {
        const auto value = static_cast<float>(i);
        require(sums[i] == (value + (value + 1)) + (value + 2), str("element ", i, ": ", sums[i]));
      }
    }
  });
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

TEST(PeerMappings, AreOfRanksThatAreProcesses) {
  for (const Kind kind : {Kind::threads, Kind::processes}) {
    const auto failures = run_ranks(2, kind, [kind](int) {
      const bool exist = Communicator::current().state()->peer_mappings != nullptr;
      require(exist == (kind == Kind::processes), "threads have one page table");
    });
    for (const std::string& failure : failures) EXPECT_EQ(failure, "");
  }
}

// The full buffer of the larger side of an operation, and a shard of the other.
TEST(PeerMappings, MapsTheBuffersOfTheOperation) {
  const auto failures = run_ranks(3, Kind::processes, [](int) {
    constexpr std::int64_t shard_blocks = 20, block = PeerMappings::block_bytes / 4;
    const auto large = [] { return full({3 * shard_blocks * block}, 1.0, DType::float32, {}); };
    const auto small = [] { return full({shard_blocks * block}, 1.0, DType::float32, {}); };
    ProcessGroup& world = world_group();
    const auto check = [&](const char* name, std::int64_t shards, const auto& call) {
      const PeerMappings& mappings = *Communicator::current().state()->peer_mappings;
      const std::int64_t before = mappings.num_mapped_blocks();
      for (int time = 0; time < 2; ++time) call();
      const std::int64_t mapped = mappings.num_mapped_blocks() - before;
      // A buffer may begin and end within a block.
      require(mapped >= shards * shard_blocks && mapped <= shards * shard_blocks + 4,
              str(name, " maps ", mapped, " blocks for ", shards, " shards"));
      barrier(world);
    };
    std::vector<Tensor> kept;  // memory that is used again would be mapped already
    const auto keep = [&](Tensor tensor) { return kept.emplace_back(std::move(tensor)); };
    const auto buffers = [&](bool large_input, bool large_output) {
      return std::pair(keep(large_input ? large() : small()), keep(large_output ? large() : small()));
    };
    const auto gathered = buffers(false, true), scattered = buffers(true, false), turned = buffers(true, true);
    const Tensor summed = keep(small());
    check("all_gather", 2 * (1 + 3), [&] { all_gather(world, gathered.second, gathered.first); });
    check("reduce_scatter", 2 * (3 + 1),
          [&] { reduce_scatter(world, scattered.second, scattered.first, ReduceOp::sum); });
    check("all_to_all", 2 * (3 + 3), [&] { all_to_all(world, turned.second, turned.first); });
    const Tensor one = keep(small()), all = keep(large());
    const int rank = world.rank();
    const Tensor none;
    // The root maps the inputs of the others. They map its output, and the inputs of both peers.
    check("gather", rank == 0 ? 2 : 2 + 3, [&] { gather(world, rank == 0 ? all : none, one, 0); });
    const Tensor part = keep(small()), parts = keep(large());
    check("scatter", rank == 0 ? 2 : 2 + 3, [&] { scatter(world, part, rank == 0 ? parts : none, 0); });
    const Tensor spread = keep(small());
    check("broadcast", 2, [&] { broadcast(world, spread, 0); });
    const Tensor little = keep(full({2 * block / 3 - 1}, 1.0, DType::float32, {}));
    const std::int64_t before = Communicator::current().state()->peer_mappings->num_mapped_blocks();
    for (int time = 0; time < 2; ++time) all_reduce(world, little, ReduceOp::sum);
    require(Communicator::current().state()->peer_mappings->num_mapped_blocks() == before, "it maps a small buffer");
    check("all_reduce", 2, [&] { all_reduce(world, summed, ReduceOp::sum); });
  });
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

TEST(Copy, FillsDestinationsOfAnyAlignment) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{5}, std::size_t{4096}, std::size_t{10'007}}) {
    for (const std::size_t shift : {std::size_t{0}, std::size_t{12}}) {
      for (const int num_destinations : {1, 3, 20}) {
        for (const bool nontemporal : {false, true}) {
          std::vector<std::byte> from(bytes);
          for (std::size_t i = 0; i < bytes; ++i) from[i] = static_cast<std::byte>(i * 31 + 7);
          std::vector<std::vector<std::byte>> kept(static_cast<std::size_t>(num_destinations),
                                                   std::vector<std::byte>(bytes + 256, std::byte{0xee}));
          std::vector<std::byte*> destinations;
          for (std::size_t i = 0; i < kept.size(); ++i) {
            const auto address = reinterpret_cast<std::uintptr_t>(kept[i].data());
            // Equally aligned, or (with a shift) each at another offset from a cache line.
            destinations.push_back(kept[i].data() + (64 - address % 64) + shift * i % 64);
          }
          destinations.push_back(nullptr);
          destinations.push_back(from.data());
          copy_to_all(destinations, from.data(), bytes, nontemporal);
          for (std::size_t i = 0; i < kept.size(); ++i) {
            const auto before = static_cast<std::size_t>(destinations[i] - kept[i].data());
            EXPECT_EQ(std::vector<std::byte>(destinations[i], destinations[i] + bytes), from)
                << bytes << " bytes, destination " << i;
            for (std::size_t at = 0; at < kept[i].size(); ++at) {
              if (at >= before && at < before + bytes) continue;
              ASSERT_EQ(kept[i][at], std::byte{0xee}) << "a byte beside destination " << i;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::comm
