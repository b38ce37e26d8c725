// The start-up of replicated modules, ignored modules and broadcast buffers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/parallel/replicate.hpp"
#include "engine/parallel/test_support.hpp"

namespace lockstep::parallel {
namespace {

using namespace testing;
using comm::Family;
using comm::Operation;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

TEST(ReplicateStart, RaisesOnEveryRankWhenParametersDiffer) {
  const auto failures_of = [](const std::function<nn::ModulePtr(int)>& make) {
    return comm::testing_ranks::run_ranks(3, Kind::threads, [&](int rank) {
      const nn::ModulePtr model = make(rank);
      replicate(model);
      model->call(rows(1, {1, 2}));
    });
  };
  const auto linear = [](std::int64_t out, bool bias) { return built("Linear", 1, {{2, out, bias}, {}}); };
  EXPECT_THAT(failures_of([&](int rank) { return linear(3, rank != 1); }),
              Each(AllOf(HasSubstr("rank 0 has 2 and rank 1 has 1"), HasSubstr("only the first has bias"))));
  EXPECT_THAT(failures_of([&](int rank) { return linear(rank == 2 ? 4 : 3, true); }),
              Each(HasSubstr("`weight` is float32 (3, 2) on rank 0 and float32 (4, 2) on rank 2")));
  EXPECT_THAT(failures_of([&](int rank) {
                const nn::ModulePtr model = linear(3, true);
                if (rank == 1) nn::cast_module(model, DType::float64);
                return model;
              }),
              Each(HasSubstr("`weight` is float32 (3, 2) on rank 0 and float64 (3, 2) on rank 1")));
  EXPECT_THAT(failures_of([&](int rank) {
                const nn::ModulePtr model = linear(3, true);
                if (rank == 1) set_requires_grad(model->parameters[1].tensor, false);
                return model;
              }),
              Each(HasSubstr("`bias` is float32 (3,) on rank 0 and float32 (3,) frozen on rank 1")));
  EXPECT_THAT(failures_of([&](int rank) {
                const nn::ModulePtr model = linear(3, true);
                if (rank == 2) model->parameters[1].name = "offset";
                return model;
              }),
              Each(HasSubstr("number 1 is `bias` on rank 0 and `offset` on rank 2")));
}

TEST(ReplicateStart, BroadcastsFrozenParametersButReducesOnlyTheOthers) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr model = built("Net", 1 + static_cast<std::uint64_t>(rank));
                  const nn::ModulePtr first = built("Net", 1);
                  const Tensor frozen = model->child("fc2")->parameters[0].tensor;
                  set_requires_grad(frozen, false);
                  replicate(model);
                  backward({loss_of(model, static_cast<std::uint64_t>(rank))});
                  require(to_doubles(frozen) == to_doubles(first->child("fc2")->parameters[0].tensor),
                          "rank 0's values");
                  require(!grad(frozen).defined(), "a frozen parameter has a gradient");
                  require(comm::log().back().bytes == (18 - 4) * 4, "the frozen parameter is reduced");
                }),
            "");
}

TEST(ReplicateStart, LeavesIgnoredModulesAlone) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr model = built("Net", 1 + static_cast<std::uint64_t>(rank));
                  const auto own = to_doubles(model->child("fc1")->parameters[0].tensor);
                  ReplicateOptions options;
                  options.ignored = {model->child("fc1")};
                  replicate(model, options);
                  require(model->applied.at("replicate").parameter_names ==
                              std::vector<std::string>({"fc2.weight", "fc2.bias", "fc3.weight", "fc3.bias"}),
                          "names");
                  backward({loss_of(model, static_cast<std::uint64_t>(rank))});
                  require(to_doubles(model->child("fc1")->parameters[0].tensor) == own, "values");
                  const auto all = [&](const char* layer) {
                    const auto bytes = to_bytes(grad(model->child(layer)->parameters[0].tensor));
                    return comm::exchange(comm::world_group(),
                                          std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
                  };
                  require(all("fc1")[0] != all("fc1")[1], "the ignored gradients are averaged");
                  require(all("fc2")[0] == all("fc2")[1], "the other gradients are not averaged");
                }),
            "");
}

TEST(ReplicateStart, BroadcastsBuffersBeforeEachForward) {
  EXPECT_EQ(run(3,
                [](int rank) {
                  const nn::ModulePtr model = built("MLP", 5, {{3}, {{"buffer", true}}});
                  ReplicateOptions options;
                  options.broadcast_buffers = true;
                  replicate(model, options);
                  const Tensor x = rows(1, {2, 3});
                  const auto value = [&] { return to_doubles(model->buffers[0].tensor); };
                  // The buffer in the slot is broadcast, not an earlier one.
                  model->buffers[0].tensor = full({3}, 10.0 + rank, DType::float32, {});
                  const Tensor y = model->call(x).tensor();
                  require(value() == std::vector<double>(3, 10.0), "the buffer of rank 0");
                  // The second forward does not write to buffers that the first one saved for its backward.
                  const Tensor product = ops::mul(y, model->buffers[0].tensor);
                  raw::fill_(model->buffers[0].tensor, 0.0);
                  model->buffers[0].tensor = full({3}, 20.0 + rank, DType::float32, {});
                  const Tensor saved = ops::mul(y, model->buffers[0].tensor);
                  const Tensor again = model->call(x).tensor();
                  require(value() == std::vector<double>(3, 20.0), "the buffer of rank 0");
                  backward({ops::sum(ops::add(saved, again))});
                  require(count(Operation::broadcast, Family::data_parallel) == 2, "one per forward");
                  const nn::ModulePtr bare = built("Net", 5);
                  replicate(bare, options);
                  backward({loss_of(bare, 1)});
                }),
            "");
}

}  // namespace
}  // namespace lockstep::parallel
