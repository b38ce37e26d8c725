// The deadline of a collective: from when it counts, and which ranks are named.
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/communicator.hpp"
#include "engine/comm/test_ranks.hpp"

namespace lockstep::comm {
namespace {

using namespace testing_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;

Tensor ones() { return full({4}, 1.0, DType::float32, {}); }

class Deadlines : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Deadlines, ::testing::Values(Kind::threads, Kind::processes),
                         [](const auto& of) { return of.param == Kind::threads ? "threads" : "processes"; });

TEST_P(Deadlines, NamesRanksThatMissTheDeadline) {
  std::vector<std::string> failures;
  const double took = seconds_of([&] {
    failures = run_ranks(
        3, GetParam(),
        [](int rank) {
          RankContext::current().scenario_line = 20;
          barrier(world_group());
          RankContext::current().scenario_line = 21 + rank;
          if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(600));
          all_reduce(world_group(), ones(), ReduceOp::sum, {.owner = "head"});
        },
        0.2);
  });
  for (const std::string& failure : failures)
    EXPECT_THAT(failure, AllOf(HasSubstr("rank 2 did not arrive within 0.2 s"),
                               HasSubstr("rank 0 in all_reduce(sum) of 4 float32 for head at line 21"),
                               HasSubstr("Called last: rank 2 barrier at line 20 (#0 of group [0, 1, 2]")));
  EXPECT_LT(took, 2.0);
}

// Ranks of a launcher that does not call announce_begin() have deadlines, too.
TEST_P(Deadlines, TheFirstCollectiveBeginsARank) {
  World world(2, GetParam());
  const std::vector<std::string> failures = run_ranks(
      world,
      [](int rank) {
        Communicator::current().state()->control().begun_ns.store(0);
        barrier(world_group());
        if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(700));
        all_reduce(world_group(), ones(), ReduceOp::sum);
      },
      0.2);
  EXPECT_THAT(failures[0], HasSubstr("rank 1 did not arrive within 0.2 s"));
}

// The time to launch a rank does not count: the deadline counts from the moment when all members have begun.
TEST_P(Deadlines, CountsADeadlineFromWhenAllHaveBegun) {
  const auto late_launch_of = [](int late) {
    return [late](int rank) {
      if (rank == late) std::this_thread::sleep_for(std::chrono::milliseconds(700));
    };
  };
  for (const int last : {0, 1}) {
    World world(3, GetParam());
    world.launch = late_launch_of(last);
    for (const std::string& failure : run_ranks(
             world, [](int) { all_reduce(world_group(), ones(), ReduceOp::sum); }, 0.2))
      EXPECT_EQ(failure, "") << "the last to begin is rank " << last;
  }
  World late(2, GetParam());
  late.launch = late_launch_of(1);
  const double took = seconds_of([&] {
    const auto failures = run_ranks(
        late,
        [](int rank) {
          if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(700));
          barrier(world_group());
        },
        0.2);
    EXPECT_THAT(failures[0], HasSubstr("rank 1 did not arrive within 0.2 s"));
  });
  EXPECT_GT(took, 0.9);
}

// Rank 0, which is no member, begins last.
TEST_P(Deadlines, CountsADeadlineFromWhenTheMembersHaveBegun) {
  World world(3, GetParam());
  world.launch = [](int rank) {
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  };
  const std::vector<std::string> failures = run_ranks(
      world,
      [](int rank) {
        if (rank == 0) return;
        barrier(group_of({1, 2}));
        if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(600));
        barrier(group_of({1, 2}));
      },
      0.2);
  EXPECT_THAT(failures[1], HasSubstr("rank 2 did not arrive within 0.2 s"));
}

}  // namespace
}  // namespace lockstep::comm
