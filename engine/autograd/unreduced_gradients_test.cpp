// Gradients that are sums over ranks: they are reduced once for all uses, and where they are needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/ops.hpp"
#include "engine/autograd/ops_sharded.hpp"
#include "engine/autograd/ops_sharded_testing.hpp"
#include "engine/autograd/watch.hpp"
#include "engine/comm/attribution.hpp"

namespace lockstep {
namespace {

using comm::Operation;
using comm::Phase;
using comm::testing_ranks::Kind;
using comm::testing_ranks::require;
using layout::replicate;
using layout::shard;
using sharded_testing::count_since;
using sharded_testing::require_close;
using sharded_testing::values;
using ::testing::Each;

// The collectives of a backward.
struct Seen {
  int all_reduce = 0, reduce_scatter = 0, all = 0;
};
Seen run_backward(const Tensor& loss) {
  const std::size_t position = comm::log().size();
  backward({loss});
  return {count_since(position, Operation::all_reduce, Phase::backward),
          count_since(position, Operation::reduce_scatter, Phase::backward),
          static_cast<int>(comm::log().size() - position)};
}

struct Case {
  Tensor x, weight;                  // full
  Tensor sharded_x, sharded_weight;  // x as given, the weight by columns
};
Case make(const DeviceMesh& mesh, const layout::Placement& given) {
  Case made{values({6, 4}), values({4, 9}, 0.7), {}, {}};
  made.sharded_x = distribute(made.x, mesh, {given});
  made.sharded_weight = distribute(made.weight, mesh, {shard(1)});
  for (const Tensor& one : {made.x, made.weight, made.sharded_x, made.sharded_weight}) set_requires_grad(one, true);
  return made;
}

Tensor squares(const Tensor& y) { return ops::sum(ops::mul(y, y)); }

void on_ranks(const std::function<void(const DeviceMesh&)>& body) {
  for (const int world_size : {2, 4})
    EXPECT_THAT(comm::testing_ranks::run_ranks(
                    world_size, Kind::threads, [&](int) { body(DeviceMesh::world("tp")); }, 10.0),
                Each(""))
        << world_size;
}

TEST(UnreducedGradients, OfThreeUsesAreReducedOnce) {
  on_ranks([](const DeviceMesh& mesh) {
    const Case all = make(mesh, replicate());
    const auto thrice = [](const Tensor& x, const Tensor& weight) {
      const Tensor y = ops::matmul(x, weight);
      return ops::add(ops::add(y, ops::matmul(ops::mul(x, 2.0), weight)), ops::mul(ops::matmul(x, weight), y));
    };
    backward({squares(thrice(all.x, all.weight))});
    const Tensor loss = ops::full_tensor(squares(thrice(all.sharded_x, all.sharded_weight)));
    const Seen seen = run_backward(loss);
    // One for x as operand of mul, whose derivative needs it, and one for the leaf.
    require(seen.all == 2 && seen.all_reduce == 2, str(seen.all, " collectives"));
    require(*grad(all.sharded_x).layout() == *all.sharded_x.layout(), "the gradient of a leaf is reduced");
    require_close(full_tensor(grad(all.sharded_x)), grad(all.x), "gradient of x");
    require_close(full_tensor(grad(all.sharded_weight)), grad(all.weight), "gradient of the weight");
  });
}

TEST(UnreducedGradients, AreScatteredOnTheWayToAShard) {
  on_ranks([](const DeviceMesh& mesh) {
    const Case all = make(mesh, shard(0));
    const auto twice = [](const Tensor& x, const Tensor& weight) {
      return ops::add(ops::matmul(x, weight), ops::matmul(x, ops::mul(weight, weight)));
    };
    backward({squares(twice(all.x, all.weight))});
    const Tensor gathered = ops::redistribute(all.sharded_x, {replicate()});
    const Seen seen = run_backward(ops::full_tensor(squares(twice(gathered, all.sharded_weight))));
    require(seen.all == 1 && seen.reduce_scatter == 1, str(seen.all, " collectives"));
    require_close(full_tensor(grad(all.sharded_x)), grad(all.x), "gradient of x");
  });
}

// One use gives a summand of each rank, another one the gradient itself.
TEST(UnreducedGradients, AreReducedBeforeTheyMeetReducedOnes) {
  on_ranks([](const DeviceMesh& mesh) {
    for (const bool product_first : {true, false}) {
      const Case all = make(mesh, replicate());
      const auto loss = [&](const Tensor& x, const Tensor& weight) {
        const auto of_product = [&] { return ops::full_tensor(squares(ops::matmul(x, weight))); };
        const auto direct = [&] { return ops::full_tensor(squares(x)); };
        const Tensor first = product_first ? of_product() : direct();
        return ops::add(first, product_first ? direct() : of_product());
      };
      backward({loss(all.x, all.weight)});
      const Seen seen = run_backward(loss(all.sharded_x, all.sharded_weight));
      require(seen.all == 1 && seen.all_reduce == 1, str(seen.all, " collectives"));
      require_close(full_tensor(grad(all.sharded_x)), grad(all.x), "gradient of x");
    }
  });
}

TEST(UnreducedGradients, AreReducedForHooksAndPassWatches) {
  on_ranks([](const DeviceMesh& mesh) {
    const Case all = make(mesh, shard(0));
    backward({squares(ops::matmul(all.x, all.weight))});
    const Tensor gathered = ops::redistribute(all.sharded_x, {replicate()});
    bool passed = false;
    const Tensor watched = watch_passing({gathered}, [&passed] { passed = true; })[0];
    Seen seen = run_backward(ops::full_tensor(squares(ops::matmul(watched, all.sharded_weight))));
    require(passed && seen.all == 1 && seen.reduce_scatter == 1, "a watch needs no value");

    set_grad(all.sharded_x, Tensor());
    const Tensor again = ops::redistribute(all.sharded_x, {replicate()});
    Tensor at_hook;
    add_hook(again, [&at_hook](const Tensor& gradient) {
      at_hook = gradient;
      return Tensor();
    });
    seen = run_backward(ops::full_tensor(squares(ops::matmul(again, all.sharded_weight))));
    require(seen.all == 1 && seen.all_reduce == 1, "a hook gets the reduced gradient");
    require(at_hook.layout()->placements == Placements{replicate()}, "its layout");
    require_close(local_tensor(at_hook), grad(all.x), "its value");
    require_close(full_tensor(grad(all.sharded_x)), grad(all.x), "gradient of x");
  });
}

// The reduction has the owner of the operation that needed it, wherever the gradient is consumed.
TEST(UnreducedGradients, CarryTheOwnerOfTheirOperation) {
  on_ranks([](const DeviceMesh& mesh) {
    const Case all = make(mesh, replicate());
    const Tensor h = ops::mul(all.sharded_x, 2.0);
    Tensor y;
    {
      const comm::AttributionScope scope({comm::Family::tensor_parallel, "net.layer"});
      y = ops::matmul(h, all.sharded_weight);
    }
    const Tensor loss = ops::full_tensor(squares(y));
    const std::size_t position = comm::log().size();
    backward({loss});
    require(comm::log().size() == position + 1 && comm::log()[position].owner == "net.layer", "owner");
  });
}

}  // namespace
}  // namespace lockstep
