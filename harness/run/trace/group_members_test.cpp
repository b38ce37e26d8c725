#include "harness/run/trace/group_members.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::run {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// 2 x 3 x 2 ranks, the last axis fastest: rank 7 is at (1, 0, 1).
TEST(GroupMembers, FollowTheMesh) {
  const std::vector<layout::MeshShape> meshes = {layout::MeshShape({12}, {"world"}),
                                                 layout::MeshShape({2, 3, 2}, {"data", "shard", "tensor"})};
  EXPECT_THAT(members_of(meshes, 7, "data", 2), ElementsAre(1, 7));
  EXPECT_THAT(members_of(meshes, 7, "shard", 3), ElementsAre(7, 9, 11));
  EXPECT_THAT(members_of(meshes, 7, "tensor", 2), ElementsAre(6, 7));
  EXPECT_EQ(members_of(meshes, 7, "world", 12).size(), 12U);
  EXPECT_THAT(members_of(meshes, 7, "", 6), ElementsAre(1, 3, 5, 7, 9, 11));  // data and shard
  EXPECT_EQ(members_of(meshes, 7, "", 12).size(), 12U);
  EXPECT_THAT(members_of(meshes, 7, "shard", 2), IsEmpty());
  EXPECT_THAT(members_of(meshes, 7, "", 5), IsEmpty());
}

TEST(GroupMembers, TakeTheNewestMeshThatHasTheRank) {
  const std::vector<layout::MeshShape> meshes = {layout::MeshShape({4}, {"dp"}),
                                                 layout::MeshShape({4}, {"dp"}, {8, 6, 4, 2}),
                                                 layout::MeshShape({4}, {"dp"}, {1, 3, 5, 7})};
  EXPECT_THAT(members_of(meshes, 2, "dp", 4), ElementsAre(8, 6, 4, 2));
  EXPECT_THAT(members_of(meshes, 3, "dp", 4), ElementsAre(1, 3, 5, 7));
}

}  // namespace
}  // namespace lockstep::run
