#include "engine/device/arena.hpp"

#include <cstring>
#include <thread>

#include "gtest/gtest.h"
#include <sys/wait.h>
#include <unistd.h>

#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/device/stream.hpp"

namespace lockstep::device {
namespace {

constexpr Device cpu{Kind::cpu, 0};

TEST(HostWorld, SeparatesTheRegionsOfRanks) {
  const auto world = HostWorld::create(3, Sharing::threads, 1 << 20, 1 << 16);
  std::vector<HostWorld::Region> areas = {world->control()};
  for (int rank = 0; rank < 3; ++rank) {
    areas.push_back(world->arena(Kind::cpu, rank));
    areas.push_back(world->arena(Kind::sim, rank));
  }
  EXPECT_EQ(world->world_size(), 3);
  EXPECT_EQ(areas[0].bytes, 1u << 16);
  for (std::size_t i = 0; i < areas.size(); ++i) {
    std::memset(areas[i].base, static_cast<int>(i + 1), areas[i].bytes);
    EXPECT_EQ(areas[i].bytes, i > 0 ? 1u << 20 : 1u << 16);
    for (std::size_t j = 0; j < areas.size(); ++j) EXPECT_EQ(areas[j].contains(areas[i].base), i == j);
  }
  for (std::size_t i = 0; i < areas.size(); ++i) {
    EXPECT_EQ(static_cast<int>(areas[i].base[0]), static_cast<int>(i + 1));
    EXPECT_EQ(static_cast<int>(areas[i].base[areas[i].bytes - 1]), static_cast<int>(i + 1));
  }
}

TEST(HostWorld, ZeroesTheControlRegion) {
  const auto world = HostWorld::create(1, Sharing::processes, 1 << 20, 1 << 16);
  for (std::size_t i = 0; i < world->control().bytes; ++i) ASSERT_EQ(world->control().base[i], std::byte{0});
}

TEST(HostWorld, SharesPagesBetweenProcesses) {
  const auto world = HostWorld::create(2, Sharing::processes, 1 << 20, 1 << 16);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    world->arena(Kind::cpu, 1).base[12345] = std::byte{77};
    world->control().base[5] = std::byte{78};
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(world->arena(Kind::cpu, 1).base[12345], std::byte{77});
  EXPECT_EQ(world->control().base[5], std::byte{78});
}

TEST(HostWorld, SharesTheControlRegionOfThreadRanksWithTheLauncher) {
  const auto world = HostWorld::create(2, Sharing::threads, 1 << 20, 1 << 16);
  const pid_t child = ::fork();  // the ranks run as threads of a child
  ASSERT_GE(child, 0);
  if (child == 0) {
    world->control().base[5] = std::byte{79};
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(world->control().base[5], std::byte{79});
}

TEST(HostWorld, Supports128Ranks) {
  const auto world = HostWorld::create(128, Sharing::processes);
  EXPECT_EQ(world->world_size(), 128);
  world->arena(Kind::sim, 127).base[world->arena(Kind::sim, 127).bytes - 1] = std::byte{1};
  world->arena(Kind::cpu, 0).base[0] = std::byte{2};
  EXPECT_EQ(world->arena(Kind::sim, 127).base[world->arena(Kind::sim, 127).bytes - 1], std::byte{1});
}

TEST(HostWorld, ReservesOnlyAddressesForAbsentPeers) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  // write() reads the byte and fails if its page is not mapped.
  const auto is_mapped = [&](const std::byte* place) { return ::write(ends[1], place, 1) == 1; };
  for (const int present : {0, 1, 2}) {
    const auto world = HostWorld::create(3, Sharing::threads, 1 << 20, 1 << 16, present);
    EXPECT_EQ(world->world_size(), 3);
    EXPECT_TRUE(is_mapped(world->control().base));
    for (const int rank : {0, 1, 2}) {
      for (const HostWorld::Region& area : {world->arena(Kind::cpu, rank), world->arena(Kind::sim, rank)}) {
        EXPECT_EQ(area.bytes, 1u << 20);
        EXPECT_EQ(is_mapped(area.base), rank == present);
        EXPECT_EQ(is_mapped(area.base + area.bytes - 1), rank == present);
      }
    }
  }
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(HostWorld, KnowsWhetherItsRanksAreProcesses) {
  for (const Sharing sharing : {Sharing::threads, Sharing::processes})
    EXPECT_EQ(HostWorld::create(1, sharing, 1 << 20, 1 << 16)->sharing(), sharing);
}

TEST(HostWorld, RejectsZeroRanks) { EXPECT_THROW(HostWorld::create(0, Sharing::threads), Error); }

TEST(HostWorld, ReportsWhyAMappingFails) {
  try {
    HostWorld::create(2, Sharing::threads, std::size_t{1} << 50);
#if !defined(__SANITIZE_THREAD__)
    FAIL() << "2 PiB of addresses were mapped";
#endif
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("2 ranks"), std::string::npos) << error.what();
    EXPECT_FALSE(error.remedy().empty());
  }
}

TEST(HostWorld, GivesRanksTheirOwnArenas) {
  const auto world = HostWorld::create(2, Sharing::threads, 1 << 20, 1 << 16);
  const auto run_rank = [&](int rank) {
    RankContext context(rank, 2, world.get());
    RankScope scope(context);
    const Device sim{Kind::sim, rank};
    const MemoryPtr on_cpu = allocate(cpu, 100);
    const MemoryPtr on_sim = allocate(sim, 100);
    launch(current_stream(cpu), "look", {Access{on_cpu.get(), 0, 100, Mode::write}}, [&](const Pointers& p) {
      EXPECT_TRUE(world->arena(Kind::cpu, rank).contains(p.at(0)));
      std::memset(p.at(0), rank + 1, 100);
    });
    launch(current_stream(sim), "look", {Access{on_sim.get(), 0, 100, Mode::write}},
           [&](const Pointers& p) { EXPECT_TRUE(world->arena(Kind::sim, rank).contains(p.at(0))); });
    synchronize_all();
    std::byte first{};
    read_to_host(&first, *on_cpu, 99, 1);
    EXPECT_EQ(static_cast<int>(first), rank + 1);
  };
  std::thread other(run_rank, 1);
  run_rank(0);
  other.join();
}

}  // namespace
}  // namespace lockstep::device
