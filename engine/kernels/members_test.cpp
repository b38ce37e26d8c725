#include "engine/kernels/members.hpp"

#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "engine/kernels/test_views.hpp"

namespace lockstep::kernels {
namespace {

// The tree as its definition says it: the left part is the largest power of two below the count.
template <class C, class Op>
C tree(const std::vector<C>& values, std::size_t first, std::size_t count, const Op& op) {
  if (count == 1) return values[first];
  std::size_t left = 1;
  while (left * 2 < count) left *= 2;
  return op(tree(values, first, left, op), tree(values, first + left, count - left, op));
}

template <class T, class C, class Op>
void check(DType dtype, MemberOp named, const Op& op, int divisor = 1) {
  constexpr std::size_t length = 1003, begin = 3;
  for (const std::size_t members : {1, 2, 3, 5, 6, 7, 8, 9, 13, 16, 17, 23, 41, 64}) {
    std::vector<std::vector<T>> inputs;
    for (std::size_t m = 0; m < members; ++m) inputs.push_back(mixed_values<T>(length, static_cast<std::uint32_t>(m)));
    std::vector<T> expected(length);
    for (std::size_t i = begin; i < length - 1; ++i) {
      std::vector<C> column;
      for (const std::vector<T>& input : inputs) column.push_back(static_cast<C>(input[i]));
      C result = tree(column, 0, members, op);
      if (divisor != 1) result /= static_cast<C>(divisor);
      expected[i] = static_cast<T>(result);
    }
    // The first output is a buffer of its own, the second one is an input.
    std::vector<T> out(length);
    std::vector<const std::byte*> from;
    for (const std::vector<T>& input : inputs) from.push_back(reinterpret_cast<const std::byte*>(input.data()));
    std::byte* const to[] = {reinterpret_cast<std::byte*>(out.data()), reinterpret_cast<std::byte*>(inputs[0].data())};
    const T before = inputs[0][0], after = inputs[0][length - 1];
    reduce_members(Space::portable, {dtype, named, from, to, divisor}, begin, length - begin - 1);
    EXPECT_EQ(std::memcmp(out.data(), expected.data(), length * sizeof(T)), 0) << members << " members";
    expected[0] = before;
    for (std::size_t i = 0; i < begin; ++i) expected[i] = inputs[0][i];
    expected[length - 1] = after;
    EXPECT_EQ(std::memcmp(inputs[0].data(), expected.data(), length * sizeof(T)), 0) << members << " members, in place";
  }
}

const auto plus = [](auto a, auto b) { return static_cast<decltype(a)>(a + b); };
const auto times = [](auto a, auto b) { return static_cast<decltype(a)>(a * b); };
const auto larger = [](auto a, auto b) { return a > b ? a : b; };
const auto smaller = [](auto a, auto b) { return a < b ? a : b; };

TEST(Members, AreAddedAsAPairwiseTree) {
  check<float, float>(DType::float32, MemberOp::sum, plus);
  check<double, double>(DType::float64, MemberOp::sum, plus);
  check<Half, float>(DType::float16, MemberOp::sum, plus);
  check<BFloat16, float>(DType::bfloat16, MemberOp::sum, plus);
  check<std::int64_t, std::uint64_t>(DType::int64, MemberOp::sum, plus);
  check<std::int32_t, std::uint32_t>(DType::int32, MemberOp::sum, plus);
}

TEST(Members, HaveMeansThatDivideOnce) {
  check<float, float>(DType::float32, MemberOp::sum, plus, 3);
  check<BFloat16, float>(DType::bfloat16, MemberOp::sum, plus, 7);
}

TEST(Members, AreMultipliedAndComparedInTheSameOrder) {
  check<float, float>(DType::float32, MemberOp::product, times);
  check<BFloat16, float>(DType::bfloat16, MemberOp::product, times);
  check<std::int64_t, std::uint64_t>(DType::int64, MemberOp::product, times);
  check<float, float>(DType::float32, MemberOp::max, larger);
  check<float, float>(DType::float32, MemberOp::min, smaller);
  check<std::int32_t, std::int32_t>(DType::int32, MemberOp::max, larger);
  check<std::int32_t, std::int32_t>(DType::int32, MemberOp::min, smaller);
  check<std::uint8_t, std::uint8_t>(DType::boolean, MemberOp::max, larger);
  check<std::uint8_t, std::uint8_t>(DType::boolean, MemberOp::min, smaller);
}

TEST(Members, KeepANotANumberOfAnyMember) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (const MemberOp op : {MemberOp::max, MemberOp::min}) {
    for (int place = 0; place < 3; ++place) {
      float values[3] = {1, 2, 3};
      values[place] = nan;
      float out = 0;
      const std::byte* const from[] = {reinterpret_cast<const std::byte*>(&values[0]),
                                       reinterpret_cast<const std::byte*>(&values[1]),
                                       reinterpret_cast<const std::byte*>(&values[2])};
      std::byte* const to[] = {reinterpret_cast<std::byte*>(&out)};
      reduce_members(Space::portable, {DType::float32, op, from, to}, 0, 1);
      EXPECT_NE(out, out) << "member " << place;
    }
  }
}

TEST(Members, AreAtMostSixtyFour) {
  float value = 1;
  const std::vector<const std::byte*> from(65, reinterpret_cast<const std::byte*>(&value));
  std::byte* const to[] = {reinterpret_cast<std::byte*>(&value)};
  EXPECT_THROW(reduce_members(Space::portable, {DType::float32, MemberOp::sum, from, to}, 0, 1), InternalError);
}

}  // namespace
}  // namespace lockstep::kernels
