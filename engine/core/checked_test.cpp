#include "engine/core/checked.hpp"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/core/shape.hpp"

namespace lockstep {
namespace {

using testing::HasSubstr;
constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t huge = std::int64_t{1} << 32;

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Checked, MultipliesAndAdds) {
  EXPECT_EQ(checked_multiply(3, -4, "test"), -12);
  EXPECT_EQ(checked_multiply(most, 1, "test"), most);
  EXPECT_EQ(checked_add(most, -1, "test"), most - 1);
  EXPECT_EQ(bounded_product(std::size_t{3}, 4), std::size_t{12});
  EXPECT_EQ(bounded_bytes<double>(3), std::size_t{24});
}

TEST(Checked, NamesOperationAndFactorsOnOverflow) {
  const std::string product = error_of([] { checked_multiply(huge, huge, "unfold"); });
  EXPECT_THAT(product, HasSubstr("unfold: 4294967296 * 4294967296 does not fit in 64 bits"));
  EXPECT_THAT(product, HasSubstr("give smaller sizes"));
  EXPECT_THAT(error_of([] { checked_add(most, 1, "cat"); }), HasSubstr("cat: 9223372036854775807 + 1"));
}

TEST(Checked, ReportsABrokenBoundAsADefectOfTheEngine) {
  EXPECT_THROW(bounded_product(huge, huge), InternalError);
  EXPECT_THROW(bounded_bytes<double>(most), InternalError);
  EXPECT_THAT(error_of([] { bounded_product(huge, huge); }), HasSubstr("checked_test.cpp:"));
}

TEST(Checked, RefusesSizesWhoseProductOverflows) {
  const Dims wraps_to_zero = {huge, huge, 16};
  EXPECT_THAT(error_of([&] { num_elements(wraps_to_zero); }), HasSubstr("sizes (4294967296, 4294967296, 16)"));
  EXPECT_THROW(contiguous_strides({2, huge, huge, 16}), Error);
  // A size of 0 does not hide an overflow of the others, because strides are computed from them in any order.
  EXPECT_THROW(num_elements({0, huge, huge}), Error);
  EXPECT_THROW(num_elements({huge, huge, 0}), Error);
  EXPECT_EQ(num_elements({0, huge}), 0);
}

TEST(Checked, BoundsTheBytesOfATensor) {
  EXPECT_EQ(checked_bytes({2, 3}, 4, "empty"), std::size_t{24});
  EXPECT_EQ(checked_bytes({0, huge}, 4, "empty"), std::size_t{0});
  EXPECT_EQ(checked_bytes({max_tensor_bytes}, 1, "empty"), static_cast<std::size_t>(max_tensor_bytes));
  const std::string beyond = error_of([] { checked_bytes({max_tensor_bytes / 4 + 1}, 4, "empty"); });
  EXPECT_THAT(beyond, HasSubstr("empty: sizes (1152921504606846977,) of 4 bytes per element"));
  EXPECT_THROW(checked_bytes({0, max_tensor_bytes}, 4, "empty"), Error);  // a stride in bytes would not fit
  EXPECT_THAT(error_of([] { checked_bytes({3, -1}, 4, "empty"); }), HasSubstr("empty: size -1 at dim 1 of (3, -1)"));
}

}  // namespace
}  // namespace lockstep
