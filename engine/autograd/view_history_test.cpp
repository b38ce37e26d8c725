// Recorded changes of views and of their bases.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const device::Device cpu = {device::Kind::cpu, 0};

class ViewHistory : public testing::Test {
 protected:
  ViewHistory() : scope_(context_) { set_requires_grad(x_, true); }
  static std::vector<double> values(const Tensor& tensor) { return to_doubles(tensor); }
  template <class F>
  static std::string error_of(F f) {
    try {
      f();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  RankContext context_{0, 1};
  RankScope scope_;
  Tensor x_ = from_values(std::vector<double>{1, 2, 3, 4}, Dims{4}, DType::float64, cpu);
};

TEST_F(ViewHistory, AChangedViewChangesItsBaseAndOtherViews) {
  const Tensor y = ops::mul(x_, 1.0);
  const Tensor first = ops::slice(y, 0, 0, 3), last = ops::slice(y, 0, 1, 4);
  ops::mul_(first, 10.0);
  EXPECT_STREQ(grad_fn_name(y), "copy_slices");
  EXPECT_STREQ(grad_fn_name(last), "as_strided");
  ops::mul_(last, last);
  EXPECT_THAT(values(y), ElementsAre(10, 400, 900, 16));
  backward({ops::sum(first)});
  EXPECT_THAT(values(grad(x_)), ElementsAre(10, 400, 600, 0));
}

TEST_F(ViewHistory, AChangedBaseChangesItsViews) {
  const Tensor y = zeros({2, 2}, DType::float64, cpu);
  const Tensor column = ops::select(ops::transpose(y, 0, 1), 0, 1);
  EXPECT_FALSE(requires_grad(column));
  ops::add_(y, ops::view(x_, {2, 2}));
  EXPECT_TRUE(requires_grad(column));
  EXPECT_FALSE(is_leaf(column));
  backward({ops::sum(ops::mul(column, column))});
  EXPECT_THAT(values(grad(x_)), ElementsAre(0, 4, 0, 8));
}

TEST_F(ViewHistory, IsFreedAndRetainedWithTheGraph) {
  const Tensor y = ops::mul(x_, 1.0);
  ops::mul_(ops::slice(y, 0, 0, 2), ops::slice(x_, 0, 2, 4));
  const Tensor loss = ops::sum(y);
  backward({loss}, {}, true);
  backward({loss});
  EXPECT_THAT(values(grad(x_)), ElementsAre(6, 8, 4, 6));
  EXPECT_THAT(error_of([&] { backward({loss}); }), HasSubstr("the graph was freed by an earlier backward"));
}

TEST_F(ViewHistory, KeepsHooksOfTheHistoryBeforeTheChange) {
  const Tensor y = ops::mul(x_, 1.0);
  const Tensor part = ops::slice(y, 0, 0, 2);
  std::vector<double> seen;
  add_hook(part, [&seen](const Tensor& gradient) {
    seen = to_doubles(gradient);
    return Tensor();
  });
  ops::mul_(part, 3.0);
  std::vector<double> seen_after;
  add_hook(part, [&seen_after](const Tensor& gradient) {
    seen_after = to_doubles(gradient);
    return Tensor();
  });
  backward({ops::sum(ops::mul(part, 2.0))});
  EXPECT_THAT(seen_after, ElementsAre(2, 2));
  EXPECT_TRUE(seen.empty()) << "the gradient goes to the base";
  EXPECT_THAT(values(grad(x_)), ElementsAre(6, 6, 0, 0));
}

TEST_F(ViewHistory, RefusesViewsWithoutAHistoryOfTheirOwn) {
  const Tensor y = ops::mul(x_, 1.0);
  Tensor hidden;
  {
    const NoGrad off;
    hidden = ops::slice(y, 0, 0, 2);
    ops::mul_(ops::slice(x_, 0, 0, 1), 1.0);
  }
  const std::vector<Tensor> parts = ops::split(y, 2, 0);
  EXPECT_THAT(error_of([&] { ops::mul_(hidden, 2.0); }), HasSubstr("made with gradients off"));
  EXPECT_THAT(error_of([&] { ops::mul_(parts[1], 2.0); }), HasSubstr("an operation with several results"));
  EXPECT_THAT(error_of([&] { ops::mul_(ops::slice(x_, 0, 0, 1), 2.0); }), HasSubstr("a view of a leaf"));
  EXPECT_THAT(values(y), ElementsAre(1, 2, 3, 4));
  ops::mul_(y, 2.0);
  EXPECT_THAT(error_of([&] { ops::mul(parts[1], 2.0); }), HasSubstr("was changed in place while recording"));
  EXPECT_TRUE(requires_grad(hidden));
}

TEST_F(ViewHistory, LeavesAnUndefinedTargetToTheOperation) {
  const Tensor value = from_values(std::vector<double>{1}, Dims{1}, DType::float64, cpu);
  EXPECT_THAT(error_of([&] { ops::add_(Tensor(), value); }), HasSubstr("add_: an operand is undefined"));
  EXPECT_THAT(error_of([&] { ops::mul_(Tensor(), value); }), HasSubstr("mul_: an operand is undefined"));
}

TEST_F(ViewHistory, NamesTheOperationThatChangedASavedTensor) {
  const Tensor y = ops::mul(x_, 1.0), part = ops::slice(y, 0, 0, 2);
  context_.scenario_line = 4;
  const Tensor product = ops::mul(part, part);
  context_.scenario_line = 6;
  ops::add_(y, 1.0);
  ops::add_(y, x_);
  EXPECT_THAT(error_of([&] { backward({ops::sum(product)}); }),
              HasSubstr("backward of mul in line 4: tensor 1 that it saved, float64 (2,), was changed in place by add_ "
                        "in line 6: it was at version 0"));
}

TEST_F(ViewHistory, DestroysALongChainWithoutRecursion) {
  const Tensor y = ops::mul(x_, 1.0);
  for (int i = 0; i < 20000; ++i) ops::add_(ops::slice(y, 0, 0, 2), 1.0);
  backward({ops::sum(y)});
  EXPECT_THAT(values(grad(x_)), ElementsAre(1, 1, 1, 1));
}

}  // namespace
}  // namespace lockstep
