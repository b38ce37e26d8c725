#include <vector>

#include <gtest/gtest.h>

#include "engine/core/error.hpp"
#include "engine/kernels/kokkos_team_internal.hpp"

namespace lockstep::kernels {
namespace {

template <class Body>
void run(std::int64_t count, const Body& body) {
  teams_in_turn("test", count, sizeof(int[8]), &body,
                [](const void* of, const HostTeam& team) { (*static_cast<const Body*>(of))(team); });
}

class TeamsInTurn : public testing::Test {
 protected:
  void SetUp() override {
    if (!can_take_turns) GTEST_SKIP() << "a sanitizer permits no jumps from one stack to another";
  }
};

int* values_of(const HostTeam& team) { return reinterpret_cast<int*>(team.scratch()); }

TEST_F(TeamsInTurn, RunEveryThreadOfEveryTeamOnce) {
  constexpr std::int64_t count = 5;
  std::vector<int> runs;
  run(count, [&](const HostTeam& team) {
    ASSERT_LT(team.rank(), team.size());
    runs.resize(static_cast<std::size_t>(count * team.size()));
    ++runs[static_cast<std::size_t>(team.index() * team.size() + team.rank())];
  });
  ASSERT_GT(runs.size(), static_cast<std::size_t>(count)) << "teams of one thread";
  for (const int times : runs) EXPECT_EQ(times, 1);
  run(0, [](const HostTeam&) { ADD_FAILURE() << "there is no team"; });
}

TEST_F(TeamsInTurn, GoToTheNextThreadAtABarrierAndTurnRound) {
  std::vector<int> ranks;
  run(2, [&](const HostTeam& team) {
    ranks.push_back(team.rank());
    team.barrier();
    ranks.push_back(team.rank());
  });
  const std::vector<int> up_first = {0, 1, 2, 2, 1, 0, 2, 1, 0, 0, 1, 2};
  const std::vector<int> down_first = {2, 1, 0, 0, 1, 2, 0, 1, 2, 2, 1, 0};
  EXPECT_TRUE(ranks == up_first || ranks == down_first) << testing::PrintToString(ranks);
}

// Each thread writes a value and adds up those of all.
std::vector<int> sums(bool with_first_barrier, bool with_second_barrier) {
  std::vector<int> found;
  run(4, [&](const HostTeam& team) {
    int* const values = values_of(team);
    for (int round = 1; round <= 2; ++round) {
      values[team.rank()] = round;
      if (with_first_barrier) team.barrier();
      int sum = 0;
      for (int i = 0; i < team.size(); ++i) sum += values[i];
      found.push_back(sum);
      if (with_second_barrier) team.barrier();
    }
  });
  return found;
}
TEST_F(TeamsInTurn, ShowAMissingBarrier) {
  const auto expected = [](const std::vector<int>& found) {
    int threes = 0, sixes = 0;
    for (const int sum : found) threes += sum == 3, sixes += sum == 6;
    return threes == 12 && sixes == 12;
  };
  EXPECT_TRUE(expected(sums(true, true)));
  EXPECT_FALSE(expected(sums(false, true)));
  EXPECT_FALSE(expected(sums(true, false)));
}

TEST_F(TeamsInTurn, RefuseThreadsAtDifferentBarriers) {
  EXPECT_THROW(run(2,
                   [](const HostTeam& team) {
                     if (team.rank() == 0) team.barrier();
                   }),
               InternalError);
  EXPECT_THROW(run(2,
                   [](const HostTeam& team) {
                     if (team.rank() > 0) team.barrier();
                   }),
               InternalError);
  EXPECT_NO_THROW(run(2, [](const HostTeam& team) { team.barrier(); })) << "after a failure";
}

}  // namespace
}  // namespace lockstep::kernels
