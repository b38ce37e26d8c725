// Layouts of flat parameters against numbers worked out by hand.
#include "harness/plan/flat_layout.hpp"

#include <gtest/gtest.h>

namespace lockstep::plan {
namespace {

const std::vector<Dims> three_sizes = {{3}, {2, 3}, {5}};

TEST(PlannedFlatLayout, PadsParametersTo16BytesAndTheEndToTheRanks) {
  const std::int64_t step = flat_step(DType::float32);
  EXPECT_EQ(step, 4);
  for (const auto& [num_ranks, padded] : {std::pair{1, 17}, {2, 18}, {3, 18}, {4, 20}}) {
    const FlatLayout flat(three_sizes, num_ranks, step);
    EXPECT_EQ(flat.padded(), padded) << num_ranks;
    EXPECT_EQ(flat.chunk(), padded / num_ranks);
    EXPECT_EQ(flat.begin(0), 0);
    EXPECT_EQ(flat.begin(1), 4);
    EXPECT_EQ(flat.begin(2), 12);
  }
}

TEST(PlannedFlatLayout, StepsFollowTheTypeOfTheComputation) {
  EXPECT_EQ(flat_step(DType::float64), 2);
  EXPECT_EQ(flat_step(DType::bfloat16), 8);
  EXPECT_EQ(FlatLayout(three_sizes, 2, flat_step(DType::float64)).padded(), 16);   // 0, 4, 10; ends at 15
  EXPECT_EQ(FlatLayout(three_sizes, 2, flat_step(DType::bfloat16)).padded(), 22);  // 0, 8, 16; ends at 21
}

TEST(PlannedFlatLayout, PacksWithoutSteps) {
  EXPECT_EQ(FlatLayout(three_sizes, 1, 1).padded(), 14);
  EXPECT_EQ(FlatLayout(three_sizes, 2, 1).chunk(), 7);
  EXPECT_EQ(FlatLayout(three_sizes, 4, 1).padded(), 16);
  EXPECT_EQ(FlatLayout({}, 4, 4).padded(), 0);
}

TEST(PlannedFlatLayout, PartsOfARankLieInItsChunk) {
  using Part = FlatLayout::Part;
  const FlatLayout flat(three_sizes, 4, 4);  // chunks 0..4, 5..9, 10..14, 15..19; parameters at 0..2, 4..9, 12..16
  const std::vector<std::vector<Part>> expected = {
      {{0, 3}, {}, {}, {}}, {{4, 1}, {0, 5}, {}, {}}, {{}, {}, {2, 3}, {0, 2}}};
  for (std::size_t parameter = 0; parameter < expected.size(); ++parameter)
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_EQ(flat.part(parameter, rank), expected[parameter][static_cast<std::size_t>(rank)])
          << parameter << ", rank " << rank;
}

TEST(PlannedFlatLayout, TheLastRanksMayHoldNothing) {
  const FlatLayout flat({{2}, {3}}, 4, 1);  // chunks of 2: 0..1, 2..3, 4, none
  EXPECT_EQ(flat.chunk(), 2);
  EXPECT_EQ(flat.part(1, 2), (FlatLayout::Part{0, 1}));
  EXPECT_EQ(flat.part(0, 3), FlatLayout::Part{});
  EXPECT_EQ(flat.part(1, 3), FlatLayout::Part{});
}

}  // namespace
}  // namespace lockstep::plan
