#include "engine/core/schedule_policy.hpp"

#include <set>

#include <gtest/gtest.h>

#include "engine/core/error.hpp"

namespace lockstep::schedule {
namespace {

const ActorName first{0, ""}, second{1, ""}, third{1, "sim/all_gather"};
const ActorName* const all[] = {&first, &second, &third};

// The numbers of the actors that a policy chooses at `steps` decisions in which all can run.
std::vector<std::size_t> choices(Policy& policy, std::uint64_t steps) {
  std::vector<std::size_t> chosen = {0};
  for (std::uint64_t step = 1; step <= steps; ++step)
    chosen.push_back(policy.choose({step, all[chosen.back()], static_cast<std::uint32_t>(step), all, 0}));
  return chosen;
}

TEST(SchedulePolicy, RandomRepeatsItsSeedAndReachesAllActors) {
  EXPECT_EQ(choices(*random_policy(5), 50), choices(*random_policy(5), 50));
  EXPECT_NE(choices(*random_policy(5), 50), choices(*random_policy(6), 50));
  const std::vector<std::size_t> chosen = choices(*random_policy(5), 50);
  EXPECT_EQ(std::set<std::size_t>(chosen.begin(), chosen.end()).size(), 3u);
}

TEST(SchedulePolicy, PctOfDepthOneNeverLeavesTheHighestActor) {
  std::set<std::size_t> highest;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<std::size_t> chosen = choices(*pct_policy(1, seed, 40), 40);
    const std::set<std::size_t> later(chosen.begin() + 1, chosen.end());
    EXPECT_EQ(later.size(), 1u) << "seed " << seed;
    highest.insert(*later.begin());
  }
  EXPECT_EQ(highest.size(), 3u);
}

TEST(SchedulePolicy, PctChangesActorsAtMostDepthMinusOneTimes) {
  int num_changes = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<std::size_t> chosen = choices(*pct_policy(3, seed, 40), 40);
    int changes = 0;
    for (std::size_t i = 2; i < chosen.size(); ++i) changes += chosen[i] != chosen[i - 1] ? 1 : 0;
    EXPECT_LE(changes, 2) << "seed " << seed;
    num_changes += changes;
  }
  EXPECT_GT(num_changes, 0);
}

// Two actors that ask again and again for what the third one does.
TEST(SchedulePolicy, PctLetsNoActorStarveBehindOthersThatPoll) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::unique_ptr<Policy> policy = pct_policy(1, seed, 40);
    std::set<std::size_t> chosen;
    std::size_t current = 0;
    for (std::uint64_t step = 1; step <= 3; ++step) {
      current = policy->choose({step, all[current], static_cast<std::uint32_t>(step), all, 0, true});
      chosen.insert(current);
    }
    EXPECT_EQ(chosen.size(), 3u) << "seed " << seed;
  }
}

TEST(SchedulePolicy, ReplayTakesItsSwitchesAndElseTheFallback) {
  const std::unique_ptr<Policy> policy =
      replay_policy({{"rank 0", 2, "rank 1 sim/all_gather"}, {"rank 0", 4, "rank 7"}});
  EXPECT_EQ(policy->choose({1, &first, 1, all, 0}), 0u);
  EXPECT_EQ(policy->choose({2, &first, 2, all, 0}), 2u);
  EXPECT_EQ(policy->choose({3, &second, 2, all, 1}), 1u);
  EXPECT_EQ(policy->choose({4, &first, 4, all, 0}), 0u);  // an actor that cannot run
}

TEST(SchedulePolicy, SwitchesAreReadAsTheyAreWritten) {
  const Switch change{"rank 1 sim/all_gather", 12, "rank 0"};
  EXPECT_EQ(to_text(change), "rank 1 sim/all_gather #12 -> rank 0");
  EXPECT_EQ(switch_from_text(to_text(change)), change);
  for (const char* text :
       {"", "rank 1", "rank 1 #x -> rank 0", "rank 1 #3 -> stream", "#3 -> rank 1", "rank 1 -> rank 0 #3"})
    EXPECT_THROW(switch_from_text(text), Error) << text;
}

}  // namespace
}  // namespace lockstep::schedule
