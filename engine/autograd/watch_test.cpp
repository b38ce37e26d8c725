#include "engine/autograd/watch.hpp"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep {
namespace {

using ::testing::ElementsAre;

class WatchPassing : public ::testing::Test {
 protected:
  RankContext context{0, 1};
  RankScope scope{context};
  std::string calls;

  Tensor leaf(double value) const {
    const Tensor tensor = full({1}, value, DType::float32, {});
    set_requires_grad(tensor, true);
    return tensor;
  }
  Tensor watched(const Tensor& tensor, const char* name) {
    return watch_passing({tensor}, [this, name] { calls += name; })[0];
  }
};

// 1 + 2^-24 rounds to 1, so the sum depends on the order of 1, 2^-24 and 2^-24.
TEST_F(WatchPassing, KeepsTheOrderOfSums) {
  constexpr double small = 1.0 / (1 << 24);
  const auto gradient = [&](bool watches) {
    const Tensor x = leaf(1.0), h = ops::mul(x, 1.0);
    const Tensor inside = watches ? watched(h, "w") : h;
    const Tensor y = ops::add(ops::mul(inside, small), ops::mul(inside, small));
    backward({ops::sum(ops::add(h, y))});
    return to_doubles(grad(x))[0];
  };
  EXPECT_EQ(gradient(false), 1.0);
  EXPECT_EQ(gradient(true), 1.0);
  EXPECT_EQ(calls, "w");
}

TEST_F(WatchPassing, CallsOnceWhenAllGradientsHaveArrived) {
  const Tensor x = leaf(2.0);
  const Tensor a = watched(ops::mul(x, 3.0), "a");
  const Tensor b = watched(ops::mul(a, 5.0), "b");
  backward({ops::sum(ops::add(ops::mul(b, 7.0), ops::mul(b, 11.0)))});
  EXPECT_EQ(calls, "ba");
  EXPECT_THAT(to_doubles(grad(x)), ElementsAre(270.0));
}

TEST_F(WatchPassing, RunsALeafWithOtherUsesOnce) {
  const Tensor x = leaf(2.0);
  int times = 0;
  add_post_accumulate_hook(x, [&times](const Tensor&) { ++times; });
  const Tensor inside = watched(x, "w");
  backward({ops::sum(ops::add(ops::add(ops::mul(inside, 3.0), ops::mul(inside, 4.0)), ops::mul(x, 10.0)))});
  EXPECT_THAT(to_doubles(grad(x)), ElementsAre(17.0));
  EXPECT_EQ(times, 1);
  EXPECT_EQ(calls, "w");
}

TEST_F(WatchPassing, DoesNotCallWithoutGradients) {
  const Tensor x = leaf(2.0), z = leaf(3.0);
  const auto pair = watch_passing({ops::mul(x, 2.0), ops::mul(z, 2.0)}, [this] { calls += "p"; });
  const Tensor alone = watched(x, "n");
  backward({ops::sum(pair[1])});
  EXPECT_EQ(calls, "p");
  EXPECT_FALSE(grad(x).defined());
  EXPECT_THAT(to_doubles(grad(z)), ElementsAre(2.0));
}

TEST_F(WatchPassing, WatchesSeveralTensorsAtOnce) {
  const Tensor x = leaf(1.0), number = full({1}, 5.0, DType::float32, {});
  const auto watched =
      watch_passing({ops::mul(x, 2.0), number, ops::mul(x, 3.0), ops::mul(x, 4.0)}, [this] { calls += "w"; });
  EXPECT_TRUE(watched[1].same_as(number));
  backward({ops::sum(ops::add(watched[0], ops::mul(watched[2], 10.0)))});
  EXPECT_EQ(calls, "w");
  EXPECT_THAT(to_doubles(grad(x)), ElementsAre(32.0));
}

TEST_F(WatchPassing, PassesSumsToHooksOnWatchedTensors) {
  const Tensor x = leaf(2.0);
  const Tensor inside = watched(ops::mul(x, 1.0), "w");
  std::vector<double> seen;
  add_hook(inside, [&seen](const Tensor& gradient) {
    seen.push_back(item(gradient));
    return Tensor();
  });
  backward({ops::sum(ops::add(ops::mul(inside, 3.0), ops::mul(inside, 4.0)))});
  EXPECT_THAT(seen, ElementsAre(7.0));
  EXPECT_EQ(calls, "w");
  EXPECT_THAT(to_doubles(grad(x)), ElementsAre(7.0));
}

TEST_F(WatchPassing, CallsAgainInASecondBackward) {
  const Tensor x = leaf(2.0);
  const Tensor loss = ops::sum(ops::mul(watched(ops::mul(x, 3.0), "w"), 2.0));
  backward({loss}, {}, true);
  backward({loss});
  EXPECT_EQ(calls, "ww");
  EXPECT_THAT(to_doubles(grad(x)), ElementsAre(12.0));
}

// ---- operations ----
class Operations : public WatchPassing {
 protected:
  // "name(inputs)->results", the sizes of defined tensors, - for undefined ones.
  std::string seen;
  static std::string texts_of(const std::vector<Tensor>& tensors) {
    std::string text;
    for (const Tensor& tensor : tensors) text += tensor.defined() ? to_text(tensor.sizes()) : "-";
    return text;
  }
  SeenOperation note() {
    return [this](const char* name, const std::vector<Tensor>& inputs, const std::vector<Tensor>& results) {
      seen += str(name, texts_of(inputs), "->", texts_of(results), " ");
    };
  }
};

TEST_F(Operations, AreSeenWithOperandsAndResultsRecordedOrNot) {
  const Tensor x = full({2, 3}, 2.0, DType::float32, {}), weight = full({4, 3}, 1.0, DType::float32, {});
  set_requires_grad(weight, true);
  {
    const OperationWatch watch(note());
    const Tensor y = ops::linear(x, weight, nullptr);
    (void)ops::split(y, 3, 1);
    (void)ops::neg(x);
    {
      const NoGrad no_grad;
      (void)ops::relu(y);
    }
    const Tensor target = ops::clone(x);
    ops::mul_(target, 2.0);
  }
  EXPECT_EQ(seen,
            "linear(2, 3)(4, 3)->(2, 4) split(2, 4)->(2, 3)(2, 1) neg(2, 3)->(2, 3) relu(2, 4)->(2, 4) "
            "clone(2, 3)->(2, 3) mul_(2, 3)->(2, 3) ");
}

TEST_F(Operations, ResultsAreThoseThatTheModelGets) {
  const Tensor x = leaf(3.0);
  Tensor result;
  const OperationWatch watch(
      [&result](const char*, const std::vector<Tensor>&, const std::vector<Tensor>& results) { result = results[0]; });
  const Tensor y = ops::mul(x, 2.0);
  EXPECT_TRUE(result.same_as(y));
  EXPECT_STREQ(grad_fn_name(result), "mul");
}

TEST_F(Operations, OfBackwardAreNotSeen) {
  const Tensor x = leaf(3.0);
  const Tensor loss = ops::sum(ops::mul(x, x));
  const OperationWatch watch(note());
  backward({loss});
  EXPECT_EQ(seen, "");
  EXPECT_THAT(to_doubles(grad(x)), ElementsAre(6.0));
}

TEST_F(Operations, AreReportedAsComputedBeforeTheirTensorsAreSaved) {
  const Tensor x = leaf(3.0);
  const OperationWatch watch([this](const char* name, const auto&, const auto&) { seen += str(name, " "); },
                             [this](const char* name, const std::vector<Tensor>& inputs) {
                               seen += str("computed ", name, texts_of(inputs), " ");
                             });
  struct Stop {};
  const SavedTensorHooksScope hooks({[](const Tensor&) -> PackedTensor { throw Stop(); }, {}});
  (void)ops::neg(x);
  EXPECT_THROW((void)ops::mul(x, x), Stop);
  EXPECT_EQ(seen, "computed neg(1,) neg computed mul(1,)(1,) ");
}

TEST_F(Operations, AreSeenByTheInnermostWatch) {
  const Tensor x = leaf(3.0);
  const OperationWatch outer(note());
  (void)ops::neg(x);
  {
    const OperationWatch inner(
        [this](const char* name, const auto&, const auto&) { seen += str("inner ", name, " "); });
    (void)ops::exp(x);
  }
  (void)ops::abs(x);
  EXPECT_EQ(seen, "neg(1,)->(1,) inner exp abs(1,)->(1,) ");
}

TEST_F(Operations, AreCountedPerComputation) {
  const Tensor x = leaf(3.0);
  const ComputationCount outer;
  const Tensor y = ops::neg(x);
  {
    const ComputationCount inner;
    (void)ops::neg(ops::exp(y));
    (void)ops::view(y, Dims{1, 1});
    EXPECT_EQ(inner.counts(), (std::map<std::string, std::int64_t>{{"neg", 1}, {"exp", 1}}));
  }
  backward({ops::sum(y)});
  EXPECT_EQ(outer.counts(), (std::map<std::string, std::int64_t>{{"neg", 2}, {"exp", 1}, {"sum", 1}}));
}

}  // namespace
}  // namespace lockstep
