// The order in which leaves get their gradients. The expected orders were recorded with PyTorch 2.15 (CPU), by
// register_post_accumulate_grad_hook on the same expressions.
#include <map>

#include <gtest/gtest.h>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep {
namespace {

class GradientOrder : public ::testing::Test {
 protected:
  RankContext context{0, 1};
  RankScope scope{context};
  std::string order;

  // A leaf whose hook appends its name when its gradient has been accumulated.
  Tensor leaf(const std::string& name, const Dims& sizes) {
    Tensor tensor = rand(sizes, DType::float32, {});
    set_requires_grad(tensor, true);
    add_post_accumulate_hook(tensor, [this, name](const Tensor&) { order += (order.empty() ? "" : " ") + name; });
    return tensor;
  }
  std::vector<Tensor> leaves(int count) {
    std::vector<Tensor> all;
    for (int i = 0; i < count; ++i) all.push_back(leaf(std::string(1, static_cast<char>('a' + i)), {3}));
    return all;
  }
  std::string of(const Tensor& result) { return of_roots({ops::sum(result)}); }
  std::string of_roots(const std::vector<Tensor>& roots) {
    order.clear();
    backward(roots);
    return order;
  }
  std::string of_linear(const Dims& x_sizes, bool has_bias) {
    const Tensor x = leaf("x", x_sizes), w = leaf("w", {2, 3}), b = leaf("b", {2});
    return of(ops::linear(x, w, has_bias ? &b : nullptr));
  }
  std::string of_matmul(const Dims& a_sizes, const Dims& b_sizes) {
    const Tensor a = leaf("a", a_sizes), b = leaf("b", b_sizes);
    return of(ops::matmul(a, b));
  }
  std::string of_attention(const Dims& sizes, double dropout) {
    const Tensor q = leaf("q", sizes), k = leaf("k", sizes), v = leaf("v", sizes);
    return of(ops::attention(q, k, v, true, dropout));
  }
};

TEST_F(GradientOrder, OfLinearIsBiasFirst) {
  EXPECT_EQ(of_linear({5, 3}, true), "b x w");
  EXPECT_EQ(of_linear({5, 3}, false), "x w");
  EXPECT_EQ(of_linear({4, 5, 3}, true), "b w x");
  EXPECT_EQ(of_linear({4, 5, 3}, false), "x w");
  EXPECT_EQ(of_linear({3}, true), "b w x");
  EXPECT_EQ(of_linear({3}, false), "x w");
}

TEST_F(GradientOrder, OfAProductDependsOnTheDims) {
  EXPECT_EQ(of_matmul({2, 3}, {3, 4}), "a b");
  EXPECT_EQ(of_matmul({3}, {3, 4}), "b a");
  EXPECT_EQ(of_matmul({2, 3}, {3}), "a b");
  EXPECT_EQ(of_matmul({3}, {3}), "a b");
  EXPECT_EQ(of_matmul({5, 2, 3}, {3, 4}), "b a");
  EXPECT_EQ(of_matmul({2, 3}, {5, 3, 4}), "a b");
  EXPECT_EQ(of_matmul({5, 2, 3}, {5, 3, 4}), "b a");
  EXPECT_EQ(of_matmul({5, 2, 3}, {3}), "b a");
  EXPECT_EQ(of_matmul({3}, {5, 3, 4}), "a b");
}

TEST_F(GradientOrder, OfNormsAndConvolutions) {
  const Tensor x = leaf("x", {5, 3}), w = leaf("w", {3}), b = leaf("b", {3});
  EXPECT_EQ(of(ops::layer_norm(x, 1, &w, &b)), "x w b");
  EXPECT_EQ(of(ops::rms_norm(x, 1, &w)), "w x");
  EXPECT_EQ(of(ops::rms_norm(x, 1, nullptr)), "x");
  const Tensor image = leaf("x", {2, 3, 4, 4}), filter = leaf("w", {2, 3, 2, 2}), shift = leaf("b", {2});
  EXPECT_EQ(of(ops::conv2d(image, filter, &shift)), "x w b");
}

// The norm is a separate node here, so an input that is a leaf comes last; the order of PyTorch is "x w b".
TEST_F(GradientOrder, OfBatchNormIsWeightFirst) {
  const Tensor x = leaf("x", {5, 3}), w = leaf("w", {3}), b = leaf("b", {3});
  const Tensor mean = zeros({3}, DType::float32, {}), variance = ones({3}, DType::float32, {});
  EXPECT_EQ(of(ops::batch_norm(x, &w, &b, nullptr, nullptr, true)), "w b x");
  EXPECT_EQ(of(ops::batch_norm(x, &w, &b, &mean, &variance, false)), "w b x");
}

TEST_F(GradientOrder, OfAttention) {
  EXPECT_EQ(of_attention({2, 2, 4, 3}, 0.0), "q k v");
  EXPECT_EQ(of_attention({2, 2, 4, 3}, 0.1), "v k q");
  EXPECT_EQ(of_attention({2, 4, 3}, 0.0), "v k q");
}

TEST_F(GradientOrder, OfTwoOperands) {
  const Tensor a = leaf("a", {3}), b = leaf("b", {3});
  const Tensor condition = ops::lt(detach(a), detach(b));
  for (const Tensor& result : {ops::add(a, b), ops::sub(a, b), ops::mul(a, b), ops::div(a, b),
                               ops::where(condition, a, b), ops::mse_loss(a, b), ops::add(ops::mul(a, b), a)})
    EXPECT_EQ(of(result), "a b") << grad_fn_name(result);
  EXPECT_EQ(of(ops::add(ops::pow(a, 2.0), b)), "b a");
  const Tensor to = ops::mul(a, 1.0);
  ops::add_(to, b);
  EXPECT_EQ(of(to), "b a");
}

// Leaves that become ready together have equal priority, so the heap determines their order.
TEST_F(GradientOrder, OfManyOperandsIsHeapOrder) {
  const std::map<int, std::string> expected = {{2, "a b"},       {3, "a b c"},       {4, "a c b d"},
                                               {5, "a c e b d"}, {6, "a c f e b d"}, {7, "a c f g e b d"}};
  const std::map<int, std::string> beside = {{2, "b a"},       {3, "b c a"},       {4, "b c d a"},
                                             {5, "b c e d a"}, {6, "b c f e d a"}, {7, "b c f g e d a"}};
  const std::map<int, std::string> among = {{2, "a b z"},       {3, "a b c z"},       {4, "a b d c z"},
                                            {5, "a b e d c z"}, {6, "a b e f d c z"}, {7, "a b f e c g d z"}};
  for (const auto& [count, names] : expected) {
    const std::vector<Tensor> all = leaves(count);
    const Tensor z = leaf("z", {3});
    EXPECT_EQ(of(ops::cat(all, 0)), names);
    EXPECT_EQ(of(ops::stack(all, 0)), names);
    const Tensor twice = ops::sum(ops::mul(all[0], 2.0));
    EXPECT_EQ(of_roots({ops::add(twice, ops::sum(ops::cat(all, 0)))}), beside.at(count));
    const Tensor others = ops::add(ops::sum(ops::mul(z, 2.0)), ops::sum(ops::mul(z, 3.0)));
    EXPECT_EQ(of_roots({ops::add(others, ops::sum(ops::cat(all, 0)))}), among.at(count));
  }
}

TEST_F(GradientOrder, OfGraphsIsLatestNodeFirst) {
  const std::vector<Tensor> all = leaves(5);
  const Tensor &a = all[0], &b = all[1], &c = all[2], &d = all[3], &e = all[4];
  const Tensor ab = ops::mul(a, b), cd = ops::mul(c, d);
  EXPECT_EQ(of(ops::add(ab, cd)), "c d a b");
  EXPECT_EQ(of(ops::cat({ops::mul(a, b), c, d, a}, 0)), "c d a b");
  EXPECT_EQ(of(ops::add(ops::mul(a, detach(ops::mul(b, c))), b)), "b a");
  const Tensor step = ops::mul(a, b);
  ops::add_(step, c);
  ops::mul_(step, a);
  EXPECT_EQ(of(step), "c a b");
  const Tensor left = ops::add(ops::mul(ops::add(a, b), c), d);
  EXPECT_EQ(of(ops::add(ops::mul(left, ops::add(e, a)), c)), "e d c a b");
}

TEST_F(GradientOrder, OfSeveralRootsIsOrderOfAllNodes) {
  const std::vector<Tensor> all = leaves(3);
  for (const bool swapped : {false, true}) {
    const Tensor first = ops::sum(ops::mul(all[0], all[1])), second = ops::sum(ops::mul(all[1], all[2]));
    EXPECT_EQ(of_roots(swapped ? std::vector<Tensor>{second, first} : std::vector<Tensor>{first, second}), "c a b");
  }
  std::vector<Tensor> scalars;
  for (int i = 0; i < 6; ++i) scalars.push_back(leaf(std::to_string(i), {}));
  EXPECT_EQ(of_roots(scalars), "0 2 5 4 1 3");
  EXPECT_EQ(of_roots({ops::mul(scalars[0], scalars[1]), scalars[2], scalars[3], scalars[4], scalars[0]}), "2 3 4 0 1");
}

// Watching a tensor does not change the order.
TEST_F(GradientOrder, OfWatchedTensorsIsUnchanged) {
  const std::vector<Tensor> all = leaves(4);
  const auto watched = [](const Tensor& tensor) { return watch_first_gradient({tensor}, [] {})[0]; };
  const Tensor ab = watched(ops::mul(all[0], all[1])), cd = watched(ops::mul(all[2], all[3]));
  EXPECT_EQ(of(watched(ops::add(ab, cd))), "c d a b");
}

}  // namespace
}  // namespace lockstep
