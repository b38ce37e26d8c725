#include "engine/layout/mesh_shape.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.hpp"

namespace lockstep::layout {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(MeshShape, OrdersRanksRowMajor) {
  const MeshShape mesh({2, 3}, {"dp", "tp"});
  EXPECT_THAT(mesh.ranks(), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(mesh.coordinates_of(4), ElementsAre(1, 1));
  EXPECT_EQ(mesh.rank_at({1, 2}), 5);
  EXPECT_EQ(mesh.text(), "dp 2 x tp 3");
}

TEST(MeshShape, MapsCoordinatesToRanksAndBack) {
  const MeshShape mesh({2, 3, 2}, {"a", "b", "c"}, {11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0});
  for (int rank = 0; rank < 12; ++rank) EXPECT_EQ(mesh.rank_at(mesh.coordinates_of(rank)), rank);
  EXPECT_THAT(mesh.coordinates_of(11), ElementsAre(0, 0, 0));
}

TEST(MeshShape, ListsRanksAlongAnAxis) {
  const MeshShape mesh({2, 2, 2}, {"pp", "dp", "tp"});
  EXPECT_THAT(mesh.axis_members("pp", 6), ElementsAre(2, 6));
  EXPECT_THAT(mesh.axis_members("dp", 6), ElementsAre(4, 6));
  EXPECT_THAT(mesh.axis_members("tp", 6), ElementsAre(6, 7));
}

TEST(MeshShape, SlicesByName) {
  const MeshShape mesh({2, 2, 2}, {"pp", "dp", "tp"});
  const MeshShape inner = mesh.slice({"dp", "tp"}, 5);
  EXPECT_THAT(inner.ranks(), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(inner.names(), ElementsAre("dp", "tp"));
  const MeshShape transposed = mesh.slice({"tp", "pp"}, 3);
  EXPECT_THAT(transposed.ranks(), ElementsAre(2, 6, 3, 7));
  EXPECT_EQ(mesh.slice({"dp"}, 1), MeshShape({2}, {"dp"}, {1, 3}));
}

TEST(MeshShape, KnowsTheMeshOfItsSlice) {
  const MeshShape mesh({2, 2, 2}, {"pp", "dp", "tp"});
  EXPECT_EQ(mesh.root(), mesh);
  const MeshShape dp = mesh.slice({"dp", "tp"}, 5).slice({"dp"}, 5);
  EXPECT_EQ(dp.root(), mesh);
  // A mesh of the same axes and ranks is equal, although it is no slice.
  const MeshShape same({2}, {"dp"}, {5, 7});
  EXPECT_EQ(dp, same);
  EXPECT_EQ(same.root(), same);
}

TEST(MeshShape, NamesAxesByNumberByDefault) { EXPECT_THAT(MeshShape({2, 1}).names(), ElementsAre("0", "1")); }

TEST(MeshShape, RefusesInvalidMeshes) {
  EXPECT_THAT(error_of([] { MeshShape({2, 2}, {"dp", "dp"}); }), HasSubstr("axis name `dp` is given twice"));
  EXPECT_THAT(error_of([] { MeshShape({2, 2}, {"dp"}); }), HasSubstr("1 axis names for 2 axes"));
  EXPECT_THAT(error_of([] {
                MeshShape({2, 2}, {"a", "b"}, {0, 1, 2});
              }),
              HasSubstr("sizes (2, 2) make 4 places for 3 ranks"));
  EXPECT_THAT(error_of([] { MeshShape({2}, {"a"}, {3, 3}); }), HasSubstr("rank 3 is listed twice"));
  EXPECT_THAT(error_of([] { MeshShape({2}, {"a"}, {-1, 3}); }), HasSubstr("there is no rank -1"));
  EXPECT_THAT(error_of([] { MeshShape({0}, {"a"}, {}); }), HasSubstr("size 0"));
  EXPECT_THAT(error_of([] { MeshShape({2}, {"a"}).coordinates_of(2); }), HasSubstr("rank 2 is not in the mesh"));
  EXPECT_THAT(error_of([] { MeshShape({2}, {"a"}).axis("b"); }), HasSubstr("no axis `b` (use one of a)"));
  EXPECT_THAT(error_of([] {
                MeshShape({2, 2}, {"a", "b"}).rank_at({0, 2});
              }),
              HasSubstr("coordinate 2 on axis `b` of size 2 (give a coordinate from 0 to 1)"));
  EXPECT_THAT(error_of([] {
                MeshShape({2, 2}, {"a", "b"}).rank_at({0, -1});
              }),
              HasSubstr("coordinate -1 on axis `b` of size 2"));
  EXPECT_THAT(error_of([] { MeshShape({2, 2}, {"a", "b"}).rank_at({0}); }), HasSubstr("1 coordinates for 2 axes"));
  EXPECT_THAT(error_of([] { MeshShape({2}, {"a"}).slice({"a", "a"}, 0); }), HasSubstr("`a` is given twice"));
}

}  // namespace
}  // namespace lockstep::layout
