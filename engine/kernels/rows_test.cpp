#include "engine/kernels/rows.hpp"

#include <vector>

#include <gtest/gtest.h>

namespace lockstep::kernels {
namespace {

// The offsets of one view's elements in iteration order.
template <int N>
std::vector<std::int64_t> walk(const Rows<N>& rows, int view) {
  std::vector<std::int64_t> offsets;
  for (std::int64_t row = 0; row < rows.num_rows; ++row) {
    std::int64_t start = 0, rest = row;
    for (int dim = rows.num_outer - 1; dim >= 0; --dim) {
      start += rest % rows.sizes[dim] * rows.strides[view][dim];
      rest /= rows.sizes[dim];
    }
    for (std::int64_t i = 0; i < rows.length; ++i) offsets.push_back(start + i * rows.step[view]);
  }
  return offsets;
}

TEST(Rows, MergesContiguousDims) {
  const Dims sizes = {2, 3, 4}, plain = {12, 4, 1};
  const Rows<2> rows = make_rows<2>(sizes, {&plain, &plain});
  EXPECT_EQ(rows.num_rows, 1);
  EXPECT_EQ(rows.length, 24);
  EXPECT_TRUE(rows.unit);
}

TEST(Rows, KeepsDimsThatOneViewCannotMerge) {
  const Dims sizes = {2, 3, 4}, plain = {12, 4, 1}, repeated = {0, 4, 1}, turned = {1, 2, 6};
  const Rows<2> broadcast = make_rows<2>(sizes, {&plain, &repeated});
  EXPECT_EQ(broadcast.num_rows, 2);
  EXPECT_EQ(broadcast.length, 12);
  EXPECT_TRUE(broadcast.unit);
  EXPECT_EQ(walk(broadcast, 1),
            (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  const Rows<2> strided = make_rows<2>(sizes, {&plain, &turned});
  EXPECT_FALSE(strided.unit);
  EXPECT_EQ(strided.num_rows * strided.length, 24);
  EXPECT_EQ(walk(strided, 1), (std::vector<std::int64_t>{0, 6, 12, 18, 2, 8, 14, 20, 4, 10, 16, 22,
                                                         1, 7, 13, 19, 3, 9, 15, 21, 5, 11, 17, 23}));
}

TEST(Rows, SkipsDimsOfSizeOne) {
  const Dims sizes = {1, 5, 1}, odd = {99, 1, 77};
  const Rows<1> rows = make_rows<1>(sizes, {&odd});
  EXPECT_EQ(rows.length, 5);
  EXPECT_EQ(rows.num_rows, 1);
  EXPECT_TRUE(rows.unit);
}

TEST(Rows, HandlesScalarsAndEmptyViews) {
  const Dims scalar, none = {3, 0}, strides = {1, 1};
  EXPECT_EQ(make_rows<1>(scalar, {&scalar}).num_rows, 1);
  EXPECT_EQ(make_rows<1>(scalar, {&scalar}).length, 1);
  EXPECT_EQ(make_rows<1>(none, {&strides}).num_rows, 0);
}

}  // namespace
}  // namespace lockstep::kernels
