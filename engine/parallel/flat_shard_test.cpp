// Units of flat_shard against plain models and against fully_shard.
#include "engine/parallel/flat_shard.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/optim/optimizer.hpp"
#include "engine/parallel/flat_parameter_shards.hpp"
#include "engine/parallel/shard_state.hpp"
#include "engine/parallel/test_support.hpp"

namespace lockstep::parallel {
namespace {

using namespace testing;

Tensor squares(const nn::ModulePtr& model, const Tensor& x) {
  const Tensor off = ops::sub(model->call(x).tensor(), 1.0);
  return ops::sum(ops::mul(off, off));
}

// Losses of `steps` iterations of Adam, each rank with inputs of its own.
std::vector<double> losses_of(const nn::ModulePtr& model, int rank, int steps) {
  const auto adam = optim::make_optimizer("Adam", {optim::group_of(nn::named_parameters(model), {.lr = 1e-2})});
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    nn::zero_grad(model);
    const Tensor loss = squares(model, rows(static_cast<std::uint64_t>(100 * i + rank), {2, 100}));
    backward({loss});
    adam->step();
    losses.push_back(to_doubles(loss)[0]);
  }
  return losses;
}

struct Way {
  const char* name;
  FlatShardOptions options;
};

std::vector<Way> ways() {
  std::vector<Way> all;
  all.push_back({"one unit", {}});
  all.push_back({"units", {.unit_types = {"UnitModule"}}});
  all.push_back({"grad op", {.strategy = FlatStrategy::shard_grad_op, .unit_types = {"UnitModule"}}});
  all.push_back({"no shard", {.strategy = FlatStrategy::no_shard, .unit_types = {"UnitModule"}}});
  all.push_back({"flat", {.unit_types = {"UnitModule"}, .original_parameters = false}});
  all.push_back(
      {"after",
       {.unit_types = {"UnitModule"}, .backward_prefetch = BackwardPrefetch::after, .forward_prefetch = true}});
  return all;
}

// On 2 and 4 ranks the factors are powers of two, so every way gives the bits of replicate.
TEST(FlatShard, TrainsAsReplicateDoesBitForBit) {
  for (const int world_size : {1, 2, 4})
    for (const Way& way : ways())
      EXPECT_EQ(run(world_size,
                    [&](int rank) {
                      const nn::ModulePtr plain = built("CompositeParamModel", 0);
                      const nn::ModulePtr flat = nn::clone_module(plain);
                      replicate(plain, {});
                      flat_shard(flat, way.options);
                      const auto expected = losses_of(plain, rank, 4), found = losses_of(flat, rank, 4);
                      require(found == expected, str(way.name, ": ", found.back(), ", not ", expected.back()));
                    }),
                "")
          << world_size << " ranks, " << way.name;
}

}  // namespace
}  // namespace lockstep::parallel
