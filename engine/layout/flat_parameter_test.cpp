#include "engine/layout/flat_parameter.hpp"

#include <algorithm>

#include <gtest/gtest.h>

namespace lockstep::layout {
namespace {

// The owner of each element of the flat parameter, counted one by one: (parameter, element), or (-1, 0) for padding.
std::vector<std::pair<int, std::int64_t>> elements_of(const std::vector<Dims>& sizes, int num_ranks,
                                                      std::int64_t alignment) {
  std::vector<std::pair<int, std::int64_t>> all;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    while (static_cast<std::int64_t>(all.size()) % alignment != 0) all.emplace_back(-1, 0);
    for (std::int64_t k = 0; k < num_elements(sizes[i]); ++k) all.emplace_back(static_cast<int>(i), k);
  }
  while (all.size() % static_cast<std::size_t>(num_ranks) != 0) all.emplace_back(-1, 0);
  return all;
}

// As PyTorch documents: 21, 35 and 25 floats aligned to 16 bytes are 85, and 3, 6 and 5 are 18 on 2 ranks, 20 on 4.
TEST(FlatParameter, HasTheSizesOfPyTorch) {
  const FlatParameter one = make_flat_parameter({{7, 3}, {5, 7}, {5, 5}}, 1, 4);
  EXPECT_EQ(one.padded(), 85);
  EXPECT_EQ(one.entries[1].offset, 24);
  EXPECT_EQ(one.entries[2].offset, 60);
  EXPECT_EQ(make_flat_parameter({{3}, {6}, {5}}, 2, 4).padded(), 18);
  EXPECT_EQ(make_flat_parameter({{3}, {6}, {5}}, 4, 4).padded(), 20);
  EXPECT_EQ(make_flat_parameter({{3}, {6}, {5}}, 4).padded(), 16);
}

TEST(FlatParameter, PutsEveryElementOnOneRank) {
  const std::vector<std::vector<Dims>> models = {
      {{7, 3}, {5, 7}, {5, 5}}, {{1}}, {{5}}, {{0, 3}, {2}}, {}, {{9, 2}, {1}}};
  for (const auto& sizes : models)
    for (const int num_ranks : {1, 2, 3, 4, 8})
      for (const std::int64_t alignment : {1, 4, 8}) {
        const FlatParameter flat = make_flat_parameter(sizes, num_ranks, alignment);
        const auto expected = elements_of(sizes, num_ranks, alignment);
        ASSERT_EQ(flat.padded(), static_cast<std::int64_t>(expected.size()));
        std::vector<std::pair<int, std::int64_t>> found(expected.size(), {-2, 0});
        for (std::size_t i = 0; i < sizes.size(); ++i)
          for (int rank = 0; rank < num_ranks; ++rank) {
            const Stretch stretch = stretch_of(flat, i, rank);
            for (std::int64_t k = 0; k < stretch.length; ++k)
              found[static_cast<std::size_t>(rank * flat.per_rank + stretch.offset + k)] = {static_cast<int>(i),
                                                                                            stretch.begin + k};
          }
        for (const FlatGap& gap : gaps_of(flat))
          for (std::int64_t k = 0; k < gap.length; ++k) found[static_cast<std::size_t>(gap.begin + k)] = {-1, 0};
        EXPECT_EQ(found, expected) << sizes.size() << " parameters, " << num_ranks << " ranks, alignment " << alignment;
      }
}

TEST(FlatParameter, RefusesMoreElementsThan64BitsCount) {
  const std::int64_t much = std::int64_t{1} << 62;
  EXPECT_ANY_THROW(make_flat_parameter({{much}, {much}, {1}}, 2));
}

// Every stretch of some shapes: each of its elements is in exactly one box, at its place in the stretch.
TEST(FlatParameter, BoxesOfAStretchTileIt) {
  for (const Dims& sizes : {Dims{}, Dims{7}, Dims{3, 4}, Dims{2, 3, 4}, Dims{1, 5, 1}, Dims{2, 1, 3, 2}, Dims{4, 1}}) {
    const std::int64_t total = num_elements(sizes);
    for (std::int64_t begin = 0; begin <= total; ++begin)
      for (std::int64_t length = 0; begin + length <= total; ++length) {
        std::vector<int> covered(static_cast<std::size_t>(length), 0);
        const std::vector<StretchBox> boxes = boxes_of_stretch(sizes, begin, length);
        EXPECT_LE(boxes.size(), static_cast<std::size_t>(length == 0 ? 0 : 2 * std::max(sizes.size(), 1) - 1));
        for (const StretchBox& box : boxes) {
          std::int64_t at = box.at;
          for (std::int64_t k = 0; k < num_elements(box.sizes); ++k, ++at) {
            std::int64_t rest = k, element = 0, stride = 1;  // the k-th element of the box, in row-major order
            for (int dim = sizes.size() - 1; dim >= 0; --dim) {
              element += (box.offsets[dim] + rest % box.sizes[dim]) * stride;
              rest /= box.sizes[dim];
              stride *= sizes[dim];
            }
            EXPECT_EQ(element - begin, at) << to_text(sizes) << " from " << begin << ", " << length;
            if (at >= 0 && at < length) ++covered[static_cast<std::size_t>(at)];
          }
        }
        EXPECT_EQ(covered, std::vector<int>(static_cast<std::size_t>(length), 1));
      }
  }
}

}  // namespace
}  // namespace lockstep::layout
