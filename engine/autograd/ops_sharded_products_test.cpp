// Matrix products, linear layers, norms and embeddings of sharded operands, compared with the same calls on full
// tensors.
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/ops.hpp"
#include "engine/autograd/ops_sharded.hpp"
#include "engine/autograd/ops_sharded_testing.hpp"

namespace lockstep {
namespace {

using comm::testing_ranks::Kind;
using comm::testing_ranks::require;
using layout::partial;
using layout::replicate;
using layout::shard;
using layout::strided_shard;
using sharded_testing::require_close;
using sharded_testing::values;
using ::testing::Each;

// One call with sharded operands, compared with the same call on full operands: layout of the result, values,
// gradients, number of collectives in forward and backward.
struct Product {
  const char* name;
  std::function<Tensor(const std::vector<Tensor>&)> run;
  std::vector<Dims> sizes;
  std::vector<Placements> placements;
  Placements result;
  int num_backward;  // collectives
};

void compare(const DeviceMesh& mesh, const Product& product) {
  std::vector<Tensor> plain, sharded;
  for (std::size_t i = 0; i < product.sizes.size(); ++i) {
    plain.push_back(values(product.sizes[i], 0.2 + 0.3 * static_cast<double>(i)));
    sharded.push_back(distribute(plain.back(), mesh, product.placements[i]));
    set_requires_grad(plain.back(), true);
    set_requires_grad(sharded.back(), true);
  }
  std::size_t position = comm::log().size();
  const Tensor expected = product.run(plain), result = product.run(sharded);
  require(comm::log().size() == position, str(product.name, ": forward is local"));
  require(result.layout()->placements == product.result, str(product.name, ": ", describe_sharded(result)));
  require_close(detach(full_tensor(result)), expected, product.name);
  const Tensor weights = values(expected.sizes(), 1.1);
  const Tensor mine = distribute(weights, mesh, layout::gradient_layout(result.layout())->placements);
  backward({expected}, {weights});
  position = comm::log().size();
  backward({result}, {mine});
  require(static_cast<int>(comm::log().size() - position) == product.num_backward,
          str(product.name, ": ", comm::log().size() - position, " collectives in backward"));
  for (std::size_t i = 0; i < plain.size(); ++i) {
    require(grad(sharded[i]).layout()->placements == product.placements[i], str(product.name, ": gradient ", i));
    require_close(full_tensor(grad(sharded[i])), grad(plain[i]), str(product.name, ": gradient ", i));
  }
}

TEST(OpsSharded, ProductsAndNormsAgreeWithFullTensors) {
  const auto failures = comm::testing_ranks::run_ranks(4, Kind::threads, [](int) {
    const auto matmul = [](const std::vector<Tensor>& t) { return ops::matmul(t[0], t[1]); };
    const auto linear = [](const std::vector<Tensor>& t) { return ops::linear(t[0], t[1], &t[2]); };
    const auto norm = [](const std::vector<Tensor>& t) { return ops::layer_norm(t[0], 1, &t[1], &t[2]); };
    const auto rms = [](const std::vector<Tensor>& t) { return ops::rms_norm(t[0], 1, &t[1]); };
    const auto embedding = [](const std::vector<Tensor>& t) {
      const Tensor at = from_values(std::vector<std::int64_t>{3, 0, 3, 2, 1}, {5}, DType::int64, {});
      if (!t[0].is_sharded()) return ops::embedding(t[0], at);
      const DeviceMesh on(t[0].layout()->mesh);
      Placements placements;
      for (const layout::Placement& placement : t[0].layout()->placements)
        placements.push_back(placement.is_shard() ? replicate() : shard(0));
      return ops::embedding(t[0], distribute(at, on, placements));
    };
    const layout::Placement r = replicate(), s0 = shard(0), s1 = shard(1), s2 = shard(2), p = partial();
    const std::vector<Product> one_axis = {
        {"replicated", matmul, {{3, 4}, {4, 5}}, {{r}, {r}}, {r}, 0},
        {"rows", matmul, {{5, 4}, {4, 3}}, {{s0}, {r}}, {s0}, 1},
        {"columns", matmul, {{3, 4}, {4, 6}}, {{r}, {s1}}, {s1}, 1},
        {"inner", matmul, {{3, 5}, {5, 2}}, {{s1}, {s0}}, {p}, 0},
        {"batches", matmul, {{5, 2, 3}, {5, 3, 4}}, {{s0}, {s0}}, {s0}, 0},
        {"batches of one", matmul, {{2, 5, 2, 3}, {5, 3, 4}}, {{s1}, {s0}}, {s1}, 0},
        {"a batch and a matrix", matmul, {{6, 2, 3}, {3, 4}}, {{s0}, {r}}, {s0}, 1},
        {"columns of a matrix", matmul, {{2, 2, 3}, {3, 5}}, {{r}, {s1}}, {s2}, 1},
        {"colwise", linear, {{2, 3, 4}, {6, 4}, {6}}, {{r}, {s0}, {s0}}, {s2}, 1},
        {"colwise, replicated bias", linear, {{3, 4}, {6, 4}, {6}}, {{r}, {s0}, {r}}, {s1}, 2},
        {"rowwise", linear, {{2, 3, 5}, {6, 5}, {6}}, {{s2}, {s1}, {r}}, {p}, 0},
        {"sharded batch", linear, {{5, 4}, {3, 4}, {3}}, {{s0}, {r}, {r}}, {s0}, 2},
        {"norm of rows", norm, {{5, 4}, {4}, {4}}, {{s0}, {r}, {r}}, {s0}, 2},
        {"rms of a sequence", rms, {{2, 5, 4}, {4}}, {{s1}, {r}}, {s1}, 1},
        {"norm of replicated rows", norm, {{5, 4}, {4}, {4}}, {{r}, {r}, {r}}, {r}, 0},
        {"embedding of sharded indices", embedding, {{4, 3}}, {{r}}, {s0}, 1},
        {"embedding of sharded rows", embedding, {{5, 3}}, {{s0}}, {p}, 0},
        {"embedding of sharded columns", embedding, {{4, 3}}, {{s1}}, {s1}, 0},
    };
    const DeviceMesh line({4}, {"tp"});
    for (const Product& product : one_axis) compare(line, product);
    const DeviceMesh square({2, 2}, {"dp", "tp"});
    const std::vector<Product> two_axes = {
        {"batch by colwise", linear, {{5, 4}, {7, 4}, {7}}, {{s0, r}, {r, s0}, {r, s0}}, {s0, s1}, 3},
        {"batch by rowwise", linear, {{5, 7}, {3, 7}, {3}}, {{s0, s1}, {r, s1}, {r, r}}, {s0, p}, 2},
        {"columns sharded twice", matmul, {{3, 2}, {2, 9}}, {{r, r}, {s1, s1}}, {s1, s1}, 2},
        {"embedding of rows sharded twice", embedding, {{9, 3}}, {{strided_shard(0, 2), s0}}, {p, p}, 0},
        {"embedding of rows and columns", embedding, {{5, 3}}, {{s0, s1}}, {p, s1}, 0},
        {"strided inner", matmul, {{3, 9}, {9, 2}}, {{strided_shard(1, 2), s1}, {strided_shard(0, 2), s0}}, {p, p}, 0},
    };
    for (const Product& product : two_axes) compare(square, product);
  });
  EXPECT_THAT(failures, Each(""));
}

}  // namespace
}  // namespace lockstep
