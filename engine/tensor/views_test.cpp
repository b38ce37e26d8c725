#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr device::Device cpu{device::Kind::cpu, 0};

class Views : public testing::Test {
 protected:
  Tensor counting(const Dims& sizes) {
    return view(arange(0, static_cast<double>(num_elements(sizes)), 1, DType::float32, cpu), sizes);
  }
  RankContext context_{0, 1};
  RankScope scope_{context_};
};

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST_F(Views, ShareTheStorage) {
  const Tensor base = counting({2, 3});
  for (const Tensor& other : {view(base, {3, 2}), transpose(base, 0, 1), slice(base, 0, 0, 1), select(base, 1, 1),
                              unsqueeze(base, 0), alias(base)}) {
    EXPECT_EQ(other.storage(), base.storage());
    EXPECT_FALSE(other.same_as(base));
    EXPECT_EQ(other.dtype(), base.dtype());
  }
}

TEST_F(Views, ViewInfersOneSize) {
  const Tensor base = counting({2, 6});
  EXPECT_EQ(view(base, {-1, 4}).sizes(), (Dims{3, 4}));
  EXPECT_EQ(view(base, {-1}).sizes(), Dims{12});
  EXPECT_EQ(view(base, {2, 1, 6, -1}).sizes(), (Dims{2, 1, 6, 1}));
  EXPECT_EQ(view(counting({1}), {}).num_dims(), 0);
  EXPECT_EQ(view(zeros({0, 3}, DType::float32, cpu), {5, 0}).sizes(), (Dims{5, 0}));
}

TEST_F(Views, ViewRefusesOtherElementCounts) {
  const Tensor base = counting({2, 6});
  EXPECT_THAT(message_of([&] {
                view(base, {5, 2});
              }),
              AllOf(HasSubstr("(5, 2) hold 10"), HasSubstr("(2, 6) holds 12")));
  EXPECT_THAT(message_of([&] { view(base, {-1, 5}); }), HasSubstr("do not divide"));
  EXPECT_THROW(view(base, {-1, -1}), Error);
  EXPECT_THROW(view(base, {-2, 6}), Error);
  EXPECT_THROW(view(zeros({0}, DType::float32, cpu), {-1, 0}), Error);
}

TEST_F(Views, ViewSplitsAndMergesStridedDims) {
  const Tensor base = counting({4, 6});
  const Tensor columns = slice(base, 1, 0, 4);  // strides (6, 1): dim 1 can be split, but not merged with dim 0
  EXPECT_EQ(view(columns, {4, 2, 2}).strides(), (Dims{6, 2, 1}));
  EXPECT_EQ(to_doubles(view(columns, {2, 2, 4})), to_doubles(columns));
  EXPECT_THAT(message_of([&] { view(columns, {16}); }), AllOf(HasSubstr("without a copy"), HasSubstr("reshape")));
  EXPECT_THROW(view(columns, {8, 2}), Error);
  EXPECT_FALSE(is_viewable_as(columns, {8, 2}));
  EXPECT_TRUE(is_viewable_as(columns, {4, -1, 2}));
  EXPECT_THROW(is_viewable_as(columns, {3, 2}), Error);
  const Tensor transposed = transpose(counting({2, 3, 4}), 0, 1);  // (3, 2, 4), strides (4, 12, 1)
  EXPECT_THROW(view(transposed, {6, 4}), Error);
  EXPECT_EQ(to_doubles(view(transposed, {3, 2, 2, 2})), to_doubles(transposed));
  EXPECT_EQ(to_doubles(view(transposed, {3, 1, 2, 4, 1})), to_doubles(transposed));
  const Tensor wide = expand(counting({1, 3}), {4, 3});
  EXPECT_EQ(to_doubles(view(wide, {2, 2, 3})), to_doubles(wide));
  EXPECT_THROW(view(wide, {12}), Error);
}

TEST_F(Views, TransposeAndPermute) {
  const Tensor base = counting({2, 3});
  EXPECT_THAT(to_doubles(transpose(base, 0, 1)), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_EQ(transpose(base, -1, 0).sizes(), (Dims{3, 2}));
  const Tensor cube = counting({2, 3, 4});
  const Tensor transposed = permute(cube, {2, 0, 1});
  EXPECT_EQ(transposed.sizes(), (Dims{4, 2, 3}));
  EXPECT_EQ(transposed.strides(), (Dims{1, 12, 4}));
  EXPECT_EQ(to_doubles(transposed)[1 * 6 + 1 * 3 + 2], 1 * 12 + 2 * 4 + 1);
  EXPECT_EQ(to_doubles(permute(transposed, {1, 2, 0})), to_doubles(cube));
  EXPECT_THROW(transpose(base, 0, 2), Error);
  EXPECT_THAT(message_of([&] { permute(cube, {0, 1}); }), HasSubstr("2 dims are named"));
  EXPECT_THAT(message_of([&] { permute(cube, {0, 1, -2}); }), HasSubstr("dim 1 is named twice"));
}

TEST_F(Views, SliceClampsAsInPython) {
  const Tensor base = counting({5});
  EXPECT_THAT(to_doubles(slice(base, 0, 1, 3)), ElementsAre(1, 2));
  EXPECT_THAT(to_doubles(slice(base, 0, -2, 99)), ElementsAre(3, 4));
  EXPECT_THAT(to_doubles(slice(base, 0, -99, -4)), ElementsAre(0));
  EXPECT_THAT(to_doubles(slice(base, 0, 4, 2)), ElementsAre());
  EXPECT_THAT(to_doubles(slice(counting({2, 3}), 1, 1, 3)), ElementsAre(1, 2, 4, 5));
  EXPECT_THROW(slice(select(base, 0, 0), 0, 0, 1), Error);
}

TEST_F(Views, SelectDropsTheDim) {
  const Tensor base = counting({2, 3});
  EXPECT_THAT(to_doubles(select(base, 0, -1)), ElementsAre(3, 4, 5));
  EXPECT_THAT(to_doubles(select(base, 1, 2)), ElementsAre(2, 5));
  EXPECT_EQ(item(select(select(base, 1, 2), 0, 1)), 5);
  EXPECT_THAT(message_of([&] { select(base, 1, 3); }), AllOf(HasSubstr("index 3"), HasSubstr("dim 1 of (2, 3)")));
  EXPECT_THROW(select(base, 1, -4), Error);
}

TEST_F(Views, ExpandRepeatsSizesOfOne) {
  const Tensor column = counting({2, 1});
  EXPECT_THAT(to_doubles(expand(column, {2, 3})), ElementsAre(0, 0, 0, 1, 1, 1));
  EXPECT_THAT(to_doubles(expand(column, {2, -1, 2})).size(), 8u);
  EXPECT_THAT(to_doubles(expand(counting({2}), {2, 2})), ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(expand(column, {-1, 4}).sizes(), (Dims{2, 4}));
  EXPECT_THROW(expand(column, {3, 3}), Error);
  EXPECT_THROW(expand(column, {2}), Error);
  EXPECT_THROW(expand(column, {-1, 2, 1}), Error);
  EXPECT_EQ(expand(column, {2, 0}).num_elements(), 0);
}

TEST_F(Views, SqueezeAndUnsqueeze) {
  const Tensor base = counting({2, 1, 3});
  EXPECT_EQ(squeeze(base, 1).sizes(), (Dims{2, 3}));
  EXPECT_EQ(squeeze(base, 0).sizes(), (Dims{2, 1, 3}));
  EXPECT_EQ(unsqueeze(base, 0).sizes(), (Dims{1, 2, 1, 3}));
  EXPECT_EQ(unsqueeze(base, -1).sizes(), (Dims{2, 1, 3, 1}));
  EXPECT_EQ(to_doubles(unsqueeze(transpose(base, 0, 2), 1)), to_doubles(transpose(base, 0, 2)));
  EXPECT_EQ(unsqueeze(view(counting({1}), {}), 0).sizes(), Dims{1});
  EXPECT_THROW(unsqueeze(base, 4), Error);
}

TEST_F(Views, AsStridedStaysInTheStorage) {
  const Tensor base = counting({12});
  EXPECT_THAT(to_doubles(as_strided(base, {2, 2}, {6, 1}, 1)), ElementsAre(1, 2, 7, 8));
  EXPECT_THAT(to_doubles(as_strided(slice(base, 0, 5, 6), {2}, {11}, 0)), ElementsAre(0, 11));
  EXPECT_THAT(message_of([&] {
                as_strided(base, {2, 2}, {6, 1}, 5);
              }),
              AllOf(HasSubstr("number 12"), HasSubstr("holds 12")));
  EXPECT_THROW(as_strided(base, {2}, {1, 1}, 0), Error);
  EXPECT_THROW(as_strided(base, {2}, {1}, -1), Error);
  EXPECT_THROW(as_strided(base, {2}, {-1}, 5), Error);
  EXPECT_THROW(as_strided(base, {-2}, {1}, 5), Error);
  EXPECT_EQ(as_strided(base, {0, 99}, {1, 1}, 12).num_elements(), 0);
}

TEST_F(Views, RefuseSizesAndStridesThatOverflow) {
  constexpr std::int64_t large = std::int64_t{1} << 31;
  EXPECT_THAT(message_of([&] {
                expand(counting({1, 1, 1}), {large, large, 2});
              }),
              HasSubstr("expand: sizes (2147483648, 2147483648, 2)"));
  // (large * 4) * (large * 2) overflows to 0, which is a valid element of the storage.
  EXPECT_THAT(message_of([&] {
                as_strided(counting({2}), {large * 4, 1}, {large * 2, 1}, 0);
              }),
              HasSubstr("as_strided: 8589934592 * 4294967296 does not fit in 64 bits"));
  EXPECT_THAT(message_of([&] {
                as_strided(counting({2}), {large, large}, {0, 0}, 0);
              }),
              HasSubstr("as_strided: sizes (2147483648, 2147483648) of "));
  EXPECT_THAT(message_of([&] { view(counting({0}), {large, large, 4, 0}); }), HasSubstr("view: "));
  EXPECT_THAT(message_of([&] { arange(0, 1e300, 1, DType::float32, {}); }), HasSubstr("1e+300 elements"));
}

TEST_F(Views, WorkOnMeta) {
  const Tensor base = empty({2, 6}, DType::float32, {device::Kind::meta, 0});
  EXPECT_EQ(transpose(view(base, {3, 4}), 0, 1).sizes(), (Dims{4, 3}));
  EXPECT_EQ(expand(unsqueeze(select(base, 0, 0), 0), {5, 6}).sizes(), (Dims{5, 6}));
}

TEST_F(Views, DescribeNamesTypeSizesAndDevice) {
  EXPECT_EQ(describe(counting({2, 3})), "float32 (2, 3) on cpu");
  EXPECT_EQ(describe(zeros({}, DType::bfloat16, {device::Kind::sim, 1})), "bfloat16 () on sim:1");
}

}  // namespace
}  // namespace lockstep
