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

}  // namespace
}  // namespace lockstep
