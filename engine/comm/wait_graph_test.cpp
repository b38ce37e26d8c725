// Ranks that wait for each other fail at once, with the full cycle in the message; ranks that can progress are not
// affected.
#include <chrono>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/communicator.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/comm/protocol.hpp"
#include "engine/comm/test_hosts.hpp"
#include "engine/comm/test_ranks.hpp"

namespace lockstep::comm {
namespace {

using namespace testing_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr device::Device sim{device::Kind::sim, 0};
// Generous for a loaded machine. Without the search, the ranks would wait until the deadline of 30 s.
constexpr double soon = 3.0;  // seconds

Tensor floats(std::int64_t count, device::Device at = {}) { return full({count}, 1.0, DType::float32, at); }
void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

class DeadlockSearch : public ::testing::TestWithParam<Kind> {
 protected:
  template <class... Fragments>
  void expect_deadlock(int size, const Body& body, Fragments... fragments) {
    const auto start = std::chrono::steady_clock::now();
    const std::vector<std::string> failures = run_ranks(size, GetParam(), body, 30.0);
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    for (const std::string& failure : failures)
      EXPECT_THAT(failure, AllOf(HasSubstr("deadlock: "), HasSubstr(fragments)...));
    EXPECT_LT(took, soon);
    RecordProperty("milliseconds", static_cast<int>(took * 1e3));
  }
  void expect_success(int size, const Body& body) {
    for (const std::string& failure : run_ranks(size, GetParam(), body, 60.0)) EXPECT_EQ(failure, "");
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, DeadlockSearch, ::testing::Values(Kind::threads, Kind::processes),
                         [](const auto& of) { return of.param == Kind::threads ? "threads" : "processes"; });

// ---- cycles

TEST_P(DeadlockSearch, NamesSendAgainstSend) {
  expect_deadlock(
      2,
      [](int rank) {
        RankContext::current().scenario_line = 10 + rank;
        send(world_group(), floats(4), 1 - rank);
      },
      "rank 0 waits for rank 1 in send of 4 float32 to rank 1 at line 10 (#0 of group [0 -> 1])",
      "rank 1 waits for rank 0 in send of 4 float32 to rank 0 at line 11 (#0 of group [1 -> 0])",
      "All of them send; one must receive first");
}

TEST_P(DeadlockSearch, NamesReceiveAgainstReceive) {
  expect_deadlock(
      2, [](int rank) { receive(world_group(), floats(4), 1 - rank); },
      "rank 0 waits for rank 1 in receive of 4 float32", "rank 1 waits for rank 0 in receive of 4 float32",
      "All of them receive; one must send first");
}

TEST_P(DeadlockSearch, NamesGroupsInCrossedOrderAndRanksWaitingForThem) {
  expect_deadlock(
      4,
      [](int rank) {
        ProcessGroup &pair = rank < 2 ? group_of({0, 1}, "tp") : world_group(), &trio = group_of({0, 1, 2, 3}, "dp");
        if (rank == 0) {
          sleep_ms(300);  // by then the others wait
          barrier(pair);
        }
        all_reduce(trio, floats(4), ReduceOp::sum);
        if (rank == 1) barrier(pair);
      },
      "rank 0 waits for rank 1 in barrier (#0 of group [0, 1], axis tp); "
      "rank 1 waits for rank 0 in all_reduce(sum) of 4 float32 (#0 of group [0, 1, 2, 3], axis dp). Waiting for the "
      "cycle: "
      "rank 2 waits for rank 0",
      "rank 3 waits for rank 0");
}

TEST_P(DeadlockSearch, NamesLongCycles) {
  expect_deadlock(
      5, [](int rank) { receive(world_group(), floats(4), (rank + 1) % 5); }, "rank 0 waits for rank 1 in receive",
      "rank 1 waits for rank 2 in receive", "rank 2 waits for rank 3 in receive", "rank 3 waits for rank 4 in receive",
      "rank 4 waits for rank 0 in receive");
}

TEST_P(DeadlockSearch, NamesGroupsOfTheSameRanksInAnotherOrder) {
  expect_deadlock(
      3,
      [](int rank) {
        all_reduce(group_of(rank == 2 ? std::vector<int>{0, 2, 1} : std::vector<int>{0, 1, 2}, "dp"), floats(4),
                   ReduceOp::sum);
      },
      "hold the same ranks in another order: every rank must name the ranks of a mesh in one order");
}

TEST_P(DeadlockSearch, IncludesHostsThatWaitForTheirStreams) {
  expect_deadlock(
      2,
      [](int rank) {
        const Work work = send(world_group(), floats(4, sim), 1 - rank, {.async = true});
        work.synchronize();
      },
      "rank 0 waits for rank 1 in send", "rank 1 waits for rank 0 in send");
  // The collective waits for an event of another stream of the rank.
  expect_deadlock(
      2,
      [](int rank) {
        device::Stream& first = device::stream(sim, device::Role::copy_in);
        const Work work = receive(world_group(), floats(4, sim), 1 - rank, {.async = true, .stream = &first});
        device::Stream& second = device::stream(sim, device::Role::compute);
        work.wait(second);
        send(world_group(), floats(4, sim), 1 - rank, {.stream = &second}).synchronize();
      },
      "rank 0 waits for rank 1 in receive", "rank 1 waits for rank 0 in receive");
}

TEST_P(DeadlockSearch, LeavesOtherGroupsUsable) {
  expect_success(4, [](int rank) {
    std::string failure;
    if (rank < 2) {
      try {
        send(group_of({0, 1}, "tp"), floats(4), 1 - rank);
      } catch (const CollectiveError& error) {
        failure = error.message();
      }
    }
    require((failure.find("deadlock: ") != std::string::npos) == (rank < 2), failure);
    barrier(world_group());
  });
}

// ---- no cycles

TEST_P(DeadlockSearch, IgnoresWaitsForALateRank) {
  expect_success(3, [](int rank) {
    if (rank == 2) sleep_ms(300);
    if (rank > 0) barrier(group_of({1, 2}));
    barrier(world_group());
  });
}

// The hosts continue while their streams wait for the other rank.
TEST_P(DeadlockSearch, IgnoresRanksWhoseHostContinues) {
  expect_success(2, [](int rank) {
    ProcessGroup &one = group_of({0, 1}, "one"), &other = group_of({1, 0}, "other");
    device::Stream &first = device::stream(sim, device::Role::all_gather),
                   &second = device::stream(sim, device::Role::reduce_scatter);
    const Tensor a = floats(4, sim), b = floats(4, sim);
    std::vector<Work> works;
    for (int turn = 0; turn < 2; ++turn) {
      // Rank 0 uses the groups in this order, rank 1 in the opposite order.
      const bool takes_one = (turn == 0) == (rank == 0);
      works.push_back(all_reduce(takes_one ? one : other, takes_one ? a : b, ReduceOp::sum,
                                 {.async = true, .stream = takes_one ? &first : &second}));
      sleep_ms(250);
    }
    for (const Work& work : works) work.synchronize();
    require(values_of<float>(a) == std::vector<float>(4, 2.0f), "one");
    require(values_of<float>(b) == std::vector<float>(4, 2.0f), "other");
  });
}

// Both hosts and one stream of each rank wait. The other stream is busy and then issues the awaited call.
TEST_P(DeadlockSearch, IgnoresRanksWhoseOtherStreamContinues) {
  expect_success(2, [](int rank) {
    device::Stream &busy = device::stream(sim, device::Role::compute),
                   &after = device::stream(sim, device::Role::copy_in);
    ProcessGroup &one = group_of({0, 1}, "one"), &other = group_of({1, 0}, "other");
    const Tensor a = floats(4, sim), b = floats(4, sim);
    device::Stream &mine = rank == 0 ? busy : after, &next = rank == 0 ? after : busy;
    device::delay(busy, 250);
    // The delay precedes `one` on rank 0 and `other` on rank 1.
    const Work first = all_reduce(one, a, ReduceOp::sum, {.async = true, .stream = &mine});
    const Work second = all_reduce(other, b, ReduceOp::sum, {.async = true, .stream = &next});
    (rank == 0 ? second : first).synchronize();
    (rank == 0 ? first : second).synchronize();
  });
}

TEST_P(DeadlockSearch, IgnoresADeferredCallThatIsWaitedForLater) {
  expect_success(2, [](int rank) {
    ProcessGroup& world = world_group();
    const Tensor early = floats(100'000);
    const Work work = all_reduce(world, early, ReduceOp::sum, {.async = true});
    if (rank == 0) sleep_ms(250);
    barrier(group_of({1, 0}));
    work.wait();
    if (rank == 1) sleep_ms(250);
    barrier(world);
    require(values_of<float>(early) == std::vector<float>(100'000, 2.0f), "the sum");
  });
}

// As the search sees a rank of another host for a moment, while the ferry writes its waits again.
TEST_P(DeadlockSearch, IgnoresABlockedRankWithoutWaits) {
  expect_success(2, [](int rank) {
    barrier(world_group());
    if (rank == 1) {
      RankControl& control = Communicator::current().state()->control();
      control.blocked_at.store(control.wait_changes.load() + 1);
      sleep_ms(300);  // rank 0 waits, and searches
    }
    barrier(world_group());
  });
}

// Many groups and streams, waits in another order than the calls, and pauses longer than the wait that starts a search.
TEST_P(DeadlockSearch, IgnoresRandomProgramsThatCanProgress) {
  constexpr int size = 4, rounds = 12;
  constexpr unsigned seed = 20251122;
  expect_success(size, [&](int rank) {
    const std::vector<std::vector<int>> lists = {{0, 1, 2, 3}, {0, 1}, {2, 3}, {3, 1}, {0, 2}, {3, 2, 1, 0}};
    std::mt19937 common(seed), own(seed + static_cast<unsigned>(rank) + 1);
    for (int round = 0; round < rounds; ++round) {
      std::vector<Work> works;
      std::vector<Tensor> tensors;
      const device::Device at = common() % 3 == 0 ? device::Device{} : sim;
      for (int call = 0; call < 6; ++call) {
        const std::vector<int>& members = lists[common() % lists.size()];
        const auto role = static_cast<device::Role>(common() % device::num_roles);
        const std::int64_t count = common() % 2 == 0 ? 8 : 40'000;
        if (std::find(members.begin(), members.end(), rank) == members.end()) continue;
        if (own() % 4 == 0) sleep_ms(static_cast<int>(own() % 120));
        tensors.push_back(floats(count, at));
        if (at == sim && own() % 3 == 0) device::delay(device::stream(sim, role), static_cast<double>(own() % 100));
        device::Stream& stream = device::stream(at, role);
        works.push_back(all_reduce(group_of(members, str("of ", members.front())), tensors.back(), ReduceOp::sum,
                                   {.async = true, .stream = &stream}));
      }
      if (at == sim) std::shuffle(works.begin(), works.end(), own);
      for (const Work& work : works) work.synchronize();
    }
  });
}

TEST(DeadlockSearchOf128, IgnoresOneLateRank) {
  const auto failures = run_ranks(
      128, Kind::threads,
      [](int rank) {
        if (rank == 100) sleep_ms(600);
        if (rank % 2 == 0) barrier(group_of({rank, rank + 1}));
        if (rank % 2 == 1) barrier(group_of({rank - 1, rank}));
        barrier(world_group());
      },
      60.0);
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

TEST(DeadlockSearchOf128, NamesACycleInABoundedText) {
  const auto failures = run_ranks(
      128, Kind::threads, [](int rank) { receive(world_group(), floats(4), (rank + 1) % 128); }, 60.0);
  for (const std::string& failure : failures)
    EXPECT_THAT(failure, AllOf(HasSubstr("rank 0 waits for rank 1 in receive"),
                               HasSubstr("and so on through 128 ranks"), HasSubstr("All of them receive")));
}

// The waits of another host are known late. A cycle counts when it has stayed the same for half a second.
TEST(DeadlockSearchBetweenHosts, NamesACycleThatStaysTheSame) {
  const auto failures = testing_hosts::run_hosts({0, 1}, [](int rank) {
    barrier(world_group());
    const auto start = std::chrono::steady_clock::now();
    std::string failure;
    try {
      send(world_group(), floats(4), 1 - rank);
    } catch (const CollectiveError& error) {
      failure = error.message();
    }
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    require(failure.find("deadlock: rank 0 waits for rank 1 in send") != std::string::npos, failure);
    require(took >= 0.5 && took < soon, str("found after ", took, " s"));
  });
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

}  // namespace
}  // namespace lockstep::comm
