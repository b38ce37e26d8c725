#include "engine/comm/culprits.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

RecordedCollective call(std::uint64_t group, std::uint64_t sequence, std::vector<int> members, CollectiveState state) {
  RecordedCollective made;
  made.group_id = group;
  made.sequence = sequence;
  made.operation = "barrier";
  made.members = std::move(members);
  made.state = state;
  return made;
}

std::vector<RankHistory> stories_of(std::vector<std::vector<RecordedCollective>> calls) {
  std::vector<RankHistory> stories(calls.size());
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    stories[rank].rank = static_cast<int>(rank);
    stories[rank].collectives = std::move(calls[rank]);
  }
  return stories;
}

constexpr auto done = CollectiveState::done, waits = CollectiveState::waiting;

TEST(AwaitedRanks, AreThoseThatHaveNotCalled) {
  const std::vector<int> all = {0, 1, 2};
  const auto found = awaited_ranks(stories_of({{call(7, 0, all, done), call(7, 1, all, waits)},
                                               {call(7, 0, all, done), call(7, 1, all, waits)},
                                               {call(7, 0, all, done)}}));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 2);
  EXPECT_THAT(found[0].by, ElementsAre(0, 1));
  EXPECT_THAT(found[0].text, StartsWith("ranks 0, 1 wait for it in barrier"));
}

TEST(AwaitedRanks, AreAtTheEndOfAChainOfWaits) {
  const auto found = awaited_ranks(
      stories_of({{call(1, 0, {0, 1}, waits)}, {call(2, 0, {1, 2}, waits)}, {}, {call(3, 0, {3}, done)}}));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 2);
  EXPECT_THAT(found[0].by, ElementsAre(1));
  EXPECT_THAT(found[0].behind, ElementsAre(0, 1));
}

TEST(AwaitedRanks, ExcludeWaitsOfDeadRanks) {
  auto stories = stories_of({{call(7, 0, {0, 1}, waits)}, {}});
  stories[0].ended = stories[0].died = true;
  EXPECT_THAT(awaited_ranks(stories), IsEmpty());
}

TEST(AwaitedRanks, ExcludeCallsThatNoThreadWaitsFor) {
  const auto found =
      awaited_ranks(stories_of({{call(1, 0, {0, 1}, CollectiveState::issued)}, {}, {call(2, 0, {0, 2}, waits)}}));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 0);
  EXPECT_THAT(found[0].behind, ElementsAre(2));
}

// The flight recorder of rank 0 holds later calls only.
TEST(AwaitedRanks, ExcludeThoseThatHaveArrivedLongBefore) {
  RecordedCollective old = call(7, 0, {0, 1, 2}, waits);
  old.arrived = {0, 1};
  const auto found = awaited_ranks(stories_of({{call(8, 2000, {0}, done)}, {old}, {}}));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 2);
  EXPECT_THAT(found[0].by, ElementsAre(1));
  EXPECT_THAT(found[0].behind, ElementsAre(0, 1)) << "rank 0 may wait for its old call";
}

TEST(AwaitedRanks, ExcludeRanksWithoutAStory) {
  EXPECT_THAT(awaited_ranks(stories_of({{call(7, 0, {0, 1, 5}, waits)}, {call(7, 0, {0, 1, 5}, waits)}})), IsEmpty());
}

TEST(AwaitedRanks, AreEmptyWhenNoRankWaitsOrAllDo) {
  EXPECT_THAT(awaited_ranks(stories_of({{call(1, 0, {0, 1}, done)}, {call(1, 0, {0, 1}, done)}})), IsEmpty());
  EXPECT_THAT(awaited_ranks(stories_of({{call(1, 0, {0, 1}, waits)}, {call(2, 0, {0, 1}, waits)}})), IsEmpty());
  EXPECT_THAT(awaited_ranks(stories_of({{}, {}})), IsEmpty());
}

}  // namespace
}  // namespace lockstep::comm
