#include "engine/state/full_state.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/autograd.hpp"
#include "engine/comm/test_ranks.hpp"
#include "engine/core/error.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::state {
namespace {

using optim::Group;
using optim::make_optimizer;
using optim::Optimizer;
using optim::ParameterRef;

using comm::testing_ranks::Kind;
using comm::testing_ranks::require;
using ::testing::Each;

Tensor values(const Dims& sizes, double start) {
  std::vector<double> all;
  for (std::int64_t i = 0; i < num_elements(sizes); ++i) all.push_back(start + 0.25 * static_cast<double>(i));
  return from_values(all, sizes, DType::float32, {});
}

std::unique_ptr<Optimizer> optimizer_of(const char* type, const std::vector<Tensor>& tensors, double lr) {
  Group group;
  group.options.lr = lr;
  group.options.momentum = type == std::string_view("SGD") ? 0.5 : 0.0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    set_requires_grad(tensors[i], true);
    group.parameters.push_back({str("p", i), [t = tensors[i]] { return t; }});
  }
  return make_optimizer(type, {group});
}

void step_with(Optimizer& optimizer, double start) {
  double from = start;
  for (const ParameterRef& parameter : optimizer.groups()[0].parameters) {
    const Tensor p = parameter.get();
    const Tensor gradient = values(global_sizes(p), from);
    from -= 1.5;
    const auto& layout = p.layout();
    set_grad(p, layout ? make_sharded(raw::clone(local_shard_of(gradient, *layout)), layout) : gradient);
  }
  optimizer.step();
}

// Training on full parameters, and training on shards that resumes from its state, end with the same values.
void resumes(const char* type, bool from_rank_0, int rank) {
  const DeviceMesh mesh({2, 2}, {"dp", "tp"});
  const std::vector<Dims> sizes = {{5, 3}, {1}, {4, 2}, {7}};
  const std::vector<Placements> placements = {{layout::replicate(), layout::shard(0)},
                                              {layout::shard(0), layout::replicate()},
                                              {layout::shard(1), layout::shard(0)},
                                              {}};
  std::vector<Tensor> full, shards;
  for (std::size_t i = 0; i < sizes.size(); ++i) full.push_back(values(sizes[i], 1.0));
  const auto first = optimizer_of(type, full, 0.1);
  step_with(*first, 2.0);
  for (std::size_t i = 0; i < sizes.size(); ++i)
    shards.push_back(placements[i].empty() ? raw::clone(detach(full[i]))
                                           : distribute(detach(full[i]), mesh, placements[i]));
  const auto second = optimizer_of(type, shards, 99.0);
  const auto given = from_rank_0 && rank > 0 ? Optimizer::StateDict() : first->state_dict();
  second->load_state_dict(shard_state_dict(*second, given, from_rank_0));
  for (Optimizer* one : {first.get(), second.get()}) step_with(*one, -0.5);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto& layout = shards[i].layout();
    const Tensor expected = layout ? local_shard_of(detach(full[i]), *layout) : full[i];
    require(to_doubles(local_tensor(shards[i])) == to_doubles(expected), str(type, ": parameter ", i));
  }
  require(second->groups()[0].options.lr == 0.1, "the learning rate");
  for (const auto& [name, tensor] : second->state_tensors())
    require(tensor.is_sharded() == (name.rfind("p3/", 0) != 0), str(name, " is ", describe_sharded(tensor)));
}

TEST(FullOptimizerState, ResumesInAnyLayout) {
  for (const char* type : {"SGD", "Adam", "AdamW"})
    for (const bool from_rank_0 : {false, true}) {
      const auto failures =
          comm::testing_ranks::run_ranks(4, Kind::threads, [&](int rank) { resumes(type, from_rank_0, rank); });
      EXPECT_THAT(failures, Each("")) << type << from_rank_0;
    }
}

TEST(FullOptimizerState, RejectsOtherSizesOnEveryRank) {
  const auto failures = comm::testing_ranks::run_ranks(2, Kind::threads, [](int rank) {
    const DeviceMesh mesh = DeviceMesh::world();
    const auto first = optimizer_of("Adam", {values({6, 2}, 0.0)}, 0.1);
    step_with(*first, 1.0);
    const auto second = optimizer_of("Adam", {distribute(values({4, 2}, 0.0), mesh, {layout::shard(0)})}, 0.1);
    try {
      shard_state_dict(*second, rank == 0 ? first->state_dict() : Optimizer::StateDict(), true);
    } catch (const Error& error) {
      const std::string text = error.what();
      require(text.find("`p0/exp_avg` has full sizes (6, 2), its place in the state (4, 2)") != std::string::npos,
              text);
      return;
    }
    require(false, "nothing was refused");
  });
  EXPECT_THAT(failures, Each(""));
}

}  // namespace
}  // namespace lockstep::state
