// Compares optimizers and clipping on sharded parameters with the same on full parameters.
#include "engine/mesh/sharded.hpp"

#include <cmath>
#include <functional>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/autograd.hpp"
#include "engine/comm/test_ranks.hpp"
#include "engine/core/error.hpp"
#include "engine/optim/clip.hpp"
#include "engine/optim/optimizer.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::optim {
namespace {

using comm::testing_ranks::Kind;
using comm::testing_ranks::require;
using layout::replicate;
using layout::shard;
using layout::strided_shard;
using ::testing::Each;

constexpr double inf = std::numeric_limits<double>::infinity();

Tensor values(const Dims& sizes, double start) {
  std::vector<double> all;
  for (std::int64_t i = 0; i < num_elements(sizes); ++i)
    all.push_back(start + 0.31 * static_cast<double>(i % 5) - 0.2 * static_cast<double>(i % 3));
  return from_values(all, sizes, DType::float32, {});
}

// Pairs of equal parameters: a full one, and a sharded or plain one.
struct Twins {
  std::vector<Tensor> full, sharded;

  void add(const Dims& sizes, const DeviceMesh& mesh, const Placements& placements) {
    full.push_back(values(sizes, 0.5 + 0.1 * static_cast<double>(full.size())));
    sharded.push_back(placements.empty() ? raw::clone(full.back()) : distribute(full.back(), mesh, placements));
    set_requires_grad(full.back(), true);
    set_requires_grad(sharded.back(), true);
  }
  void set_gradients(double start) {
    for (std::size_t i = 0; i < full.size(); ++i) {
      const Tensor gradient = values(full[i].sizes(), start - 0.3 * static_cast<double>(i));
      set_grad(full[i], gradient);
      const auto& layout = sharded[i].layout();
      set_grad(sharded[i],
               layout ? make_sharded(raw::clone(local_shard_of(gradient, *layout)), layout) : raw::clone(gradient));
    }
  }
  static Group group(const std::vector<Tensor>& tensors, const Options& options) {
    Group made;
    made.options = options;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      made.parameters.push_back({str("p", i), [tensor = tensors[i]] { return tensor; }});
    return made;
  }
};

Twins twins(const DeviceMesh& mesh) {
  Twins made;
  made.add({9, 4}, mesh, {shard(0), replicate()});
  made.add({7}, mesh, {});
  made.add({9, 3}, mesh, {strided_shard(0, 2), shard(0)});
  made.add({1, 6}, mesh, {replicate(), shard(0)});  // an empty shard on half of the ranks
  made.add({4, 4}, mesh, {replicate(), replicate()});
  made.add({2, 5}, mesh, {shard(0), shard(1)});
  return made;
}

TEST(ShardedOptimizers, MatchFullOptimizersWithoutCommunication) {
  const auto failures = comm::testing_ranks::run_ranks(4, Kind::threads, [](int) {
    const DeviceMesh mesh({2, 2}, {"dp", "tp"});
    for (const char* type : {"SGD", "Adam", "AdamW"}) {
      Twins pair = twins(mesh);
      Options options;
      options.lr = 0.1;
      options.weight_decay = 0.01;
      if (type[0] == 'S') options.momentum = 0.9;
      const auto reference = make_optimizer(type, {Twins::group(pair.full, options)});
      const auto test = make_optimizer(type, {Twins::group(pair.sharded, options)});
      const std::size_t position = comm::log().size();
      for (int step = 0; step < 3; ++step) {
        pair.set_gradients(0.2 * step);
        reference->step();
        test->step();
      }
      require(comm::log().size() == position, "no communication");
      const auto agree = [&](const Tensor& sharded, const Tensor& full, const std::string& name) {
        const auto& layout = sharded.layout();
        require(to_bytes(sharded) == to_bytes(layout ? raw::contiguous(local_shard_of(full, *layout)) : full), name);
      };
      for (std::size_t i = 0; i < pair.full.size(); ++i)
        agree(pair.sharded[i], pair.full[i], str(type, ", parameter ", i));
      const auto states = test->state_tensors(), expected = reference->state_tensors();
      require(states.size() == expected.size() && !states.empty(), "states");
      for (std::size_t i = 0; i < states.size(); ++i) {
        const std::string& name = states[i].first;
        const std::size_t number = static_cast<std::size_t>(name[1] - '0');
        require(name == expected[i].first, name);
        require(states[i].second.layout() == pair.sharded[number].layout(), str(name, " is not sharded so"));
        agree(states[i].second, expected[i].second, name);
      }
      test->zero_grad(false);
      require(to_doubles(full_tensor(grad(pair.sharded[2]))) == std::vector<double>(27, 0.0), "zeroed");
      test->zero_grad();
      require(!grad(pair.sharded[0]).defined(), "removed");
      // State with another layout is rejected.
      auto state = test->state_dict();
      test->load_state_dict(state);
      for (auto& [name, tensors] : state.state)
        for (auto& [key, tensor] : tensors)
          if (name == "p0" && key != "step") tensor = raw::clone(tensor);
      std::string error;
      try {
        test->load_state_dict(state);
      } catch (const Error& refused) {
        error = refused.what();
      }
      require(error.find("as (Shard(0), Replicate) on dp 2 x tp 2") != std::string::npos, error);
    }
  });
  EXPECT_THAT(failures, Each(""));
}

int all_reduces_since(std::size_t position) {
  int count = 0;
  for (std::size_t i = position; i < comm::log().size(); ++i) {
    require(comm::log()[i].family == comm::Family::tensor_parallel, "family");
    require(comm::log()[i].operation == comm::Operation::all_reduce, "operation");
    ++count;
  }
  return count;
}

TEST(ShardedOptimizers, RejectPartialParameters) {
  const auto failures = comm::testing_ranks::run_ranks(2, Kind::threads, [](int) {
    const DeviceMesh mesh({2}, {"tp"});
    const Tensor sums = distribute(values({4}, 1.0), mesh, {layout::partial()});
    set_requires_grad(sums, true);
    set_grad(sums, distribute(values({4}, 0.5), mesh, {replicate()}));
    const auto sgd = make_optimizer("SGD", {Twins::group({sums}, {})});
    std::string error;
    try {
      sgd->step();
    } catch (const Error& refused) {
      error = refused.what();
    }
    require(error.find("SGD: `p0` is float32 (4,) as (Partial(sum)) on tp 2") != std::string::npos, error);
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(ShardedClip, ClipsByTheFullNorm) {
  const auto failures = comm::testing_ranks::run_ranks(4, Kind::threads, [](int) {
    const DeviceMesh mesh({2, 2}, {"dp", "tp"});
    for (const double kind : {2.0, 1.0, 3.0, inf}) {
      Twins pair = twins(mesh);
      pair.set_gradients(0.7);
      const double expected = item(clip_grad_norm(pair.full, 1.0, kind));
      const std::size_t position = comm::log().size();
      const Tensor norm = clip_grad_norm(pair.sharded, 1.0, kind);
      require(!norm.is_sharded() && norm.num_dims() == 0, "a plain scalar");
      require(std::fabs(item(norm) - expected) <= 1e-5 * expected, str("norm ", item(norm), " for ", expected));
      require(all_reduces_since(position) == 2, "one all_reduce per shard axis");
      const auto all = comm::exchange(comm::world_group(), str(item(norm)));
      require(all == std::vector<std::string>(4, all.front()), "the same on all ranks");
      for (std::size_t i = 0; i < pair.full.size(); ++i) {
        require(grad(pair.sharded[i]).is_sharded() == pair.sharded[i].is_sharded(), "gradients keep their layout");
        const std::vector<double> x = to_doubles(full_tensor(grad(pair.sharded[i]))),
                                  y = to_doubles(grad(pair.full[i]));
        for (std::size_t k = 0; k < x.size(); ++k)
          require(std::fabs(x[k] - y[k]) <= 1e-5 * (1e-3 + std::fabs(y[k])), str("gradient ", i));
      }
    }
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(ShardedClip, ReducesOverShardAxesOnly) {
  const auto failures = comm::testing_ranks::run_ranks(4, Kind::threads, [](int) {
    const DeviceMesh mesh({2, 2}, {"dp", "tp"});
    const auto cost = [&](const std::vector<Placements>& all) {
      Twins pair;
      for (const Placements& placements : all) pair.add({5, 4}, mesh, placements);
      pair.set_gradients(0.7);
      const double expected = item(clip_grad_norm(pair.full, 1.0));
      const std::size_t position = comm::log().size();
      require(std::fabs(item(clip_grad_norm(pair.sharded, 1.0)) - expected) <= 1e-5 * expected, "norm");
      return all_reduces_since(position);
    };
    require(cost({{replicate(), replicate()}, {}}) == 0, "replicated");
    require(cost({{shard(0), replicate()}, {replicate(), replicate()}, {}}) == 1, "one axis");
    require(cost({{replicate(), shard(1)}}) == 1, "the other");
    require(cost({{shard(0), replicate()}, {replicate(), shard(1)}}) == 2, "both");

    Twins pair;
    pair.add({4}, mesh, {shard(0), replicate()});
    set_grad(pair.sharded[0], Tensor());
    require(item(clip_grad_norm(pair.sharded, 1.0)) == 0.0, "no gradient");
  });
  EXPECT_THAT(failures, Each(""));
}

}  // namespace
}  // namespace lockstep::optim
