#include "harness/cli/case_limits.hpp"

#include <gtest/gtest.h>

namespace lockstep::cli {
namespace {

constexpr std::int64_t mebi = 1 << 20;

TEST(CaseLimits, AreTheDefaultsOnALargeMachine) {
  const scenario::Case one;
  EXPECT_EQ(limits_of(one, 1024 * 1024 * mebi).memory_bytes, scenario::limits::memory_mb * mebi);
  EXPECT_EQ(limits_of(one, 1024 * 1024 * mebi).output_bytes, scenario::limits::output_mb * mebi);
}

TEST(CaseLimits, ShareHalfOfASmallMachine) {
  scenario::Case one;
  one.world_size = 2;
  one.stages = {{"first", 8}, {"second", 4}};
  EXPECT_EQ(limits_of(one, 8192 * mebi).memory_bytes, 512 * mebi);
  EXPECT_EQ(limits_of(one, 512 * mebi).memory_bytes, 256 * mebi) << "the least on any machine";
}

TEST(CaseLimits, FollowTheScenarioOnAnyMachine) {
  scenario::Case one;
  one.memory_mb = 4096;
  one.output_mb = 3;
  EXPECT_EQ(limits_of(one, 512 * mebi).memory_bytes, 4096 * mebi);
  EXPECT_EQ(limits_of(one, 512 * mebi).output_bytes, 3 * mebi);
}

TEST(CaseLimits, BoundTheRanksThatShareAGpu) {
  scenario::Case one;
  one.device = "cuda";
  one.world_size = 2;
  one.stages = {{"first", 8}, {"second", 4}};
  EXPECT_EQ(ranks_at_once(one, 3), 16);
  EXPECT_EQ(ranks_at_once(one, 1), 0) << "the case has the GPU alone";
  one.stages = {{"first", 40}};
  EXPECT_EQ(ranks_at_once(one, 3), 40) << "a large case runs without others";
  one.device = "sim";
  EXPECT_EQ(ranks_at_once(one, 3), 0);
}

TEST(CaseLimits, ReadTheMemoryOfTheMachine) { EXPECT_GT(machine_memory(), 64 * mebi); }

}  // namespace
}  // namespace lockstep::cli
