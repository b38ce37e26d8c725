#include "engine/core/shape.hpp"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

TEST(Dims, HoldsUpToEight) {
  Dims dims{1, 2, 3};
  dims.insert(0, 7);
  dims.erase(2);
  EXPECT_EQ(dims, (Dims{7, 1, 3}));
  dims.insert(3, 9);
  EXPECT_EQ(dims, (Dims{7, 1, 3, 9}));
  EXPECT_EQ(dims.back(), 9);
  EXPECT_NE(dims, (Dims{7, 1, 3}));
  Dims full(8, 1);
  EXPECT_THROW(full.push_back(1), Error);
  EXPECT_TRUE(Dims().empty());
}

TEST(Shape, CountsElements) {
  EXPECT_EQ(num_elements({}), 1);
  EXPECT_EQ(num_elements({2, 3, 4}), 24);
  EXPECT_EQ(num_elements({2, 0, 4}), 0);
}

TEST(Shape, ContiguousStrides) {
  EXPECT_EQ(contiguous_strides({2, 3, 4}), (Dims{12, 4, 1}));
  EXPECT_EQ(contiguous_strides({}), Dims{});
  EXPECT_EQ(contiguous_strides({2, 0, 4}), (Dims{4, 4, 1}));
  EXPECT_TRUE(is_contiguous({2, 3}, {3, 1}));
  EXPECT_FALSE(is_contiguous({2, 3}, {1, 2}));
  EXPECT_TRUE(is_contiguous({1, 3}, {99, 1}));  // the stride of a size of 1 is never used
  EXPECT_TRUE(is_contiguous({0, 3}, {1, 1}));
  EXPECT_FALSE(is_contiguous({3}, {2}));
  EXPECT_FALSE(is_contiguous({3}, {0}));
}

TEST(Shape, Broadcasts) {
  EXPECT_EQ(broadcast_sizes({2, 1, 4}, {3, 1}, "add"), (Dims{2, 3, 4}));
  EXPECT_EQ(broadcast_sizes({}, {3}, "add"), Dims{3});
  EXPECT_EQ(broadcast_sizes({0}, {1}, "add"), Dims{0});
  try {
    broadcast_sizes({2, 3}, {2, 4}, "mul");
    FAIL() << "3 and 4 were broadcast";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("mul: sizes (2, 3) and (2, 4)"));
    EXPECT_THAT(error.what(), HasSubstr("dim -1 is 3 and 4"));
  }
}

TEST(Shape, NormalizesDims) {
  EXPECT_EQ(normalize_dim(-1, 3, "sum"), 2);
  EXPECT_EQ(normalize_dim(2, 3, "sum"), 2);
  EXPECT_EQ(normalize_dim(0, 0, "sum"), 0);
  EXPECT_THROW(normalize_dim(3, 3, "sum"), Error);
  EXPECT_THROW(normalize_dim(-4, 3, "sum"), Error);
}

TEST(Shape, Text) {
  EXPECT_EQ(to_text(Dims{2, 3}), "(2, 3)");
  EXPECT_EQ(to_text(Dims{4}), "(4,)");
  EXPECT_EQ(to_text(Dims{}), "()");
}

}  // namespace
}  // namespace lockstep
