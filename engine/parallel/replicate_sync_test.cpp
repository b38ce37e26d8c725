// Backwards without synchronization, and backwards that do not reach all parameters.
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

TEST(ReplicateSync, KeepsGradientsBackWithoutSynchronization) {
  for (const bool as_view : {false, true})
    EXPECT_EQ(run(3,
                  [as_view](int rank) {
                    const nn::ModulePtr model = built("Net", 5);
                    const nn::ModulePtr plain = built("Net", 5);
                    ReplicateOptions options;
                    options.gradient_as_bucket_view = as_view;
                    replicate(model, options);
                    const auto seed = [](int of, int microbatch) {
                      return static_cast<std::uint64_t>(10 * microbatch + of);
                    };
                    backward({loss_of(model, seed(rank, 0))});
                    const auto first = mean_gradients(
                        plain, 3, [&](const nn::ModulePtr& copy, int of) { return loss_of(copy, seed(of, 0)); });
                    // The flag of the forward counts: these backwards keep their gradients back, although
                    // synchronization is on again.
                    require(set_requires_gradient_sync(model, false) == 1, "one module");
                    const std::size_t from = comm::log().size();
                    for (const int microbatch : {1, 2}) {
                      const Tensor loss = loss_of(model, seed(rank, microbatch));
                      set_requires_gradient_sync(model, true);
                      backward({loss});
                      set_requires_gradient_sync(model, false);
                    }
                    require(count(Operation::all_reduce, Family::data_parallel, from) == 0,
                            "a backward without synchronization reduces");
                    require(differing_gradient(model, first).empty(), "gradients have changed");
                    set_requires_gradient_sync(model, true);
                    backward({loss_of(model, seed(rank, 3))});
                    // Each rank adds up the three gradients. Their mean is added to the existing gradient.
                    auto expected = mean_gradients(plain, 3, [&](const nn::ModulePtr& copy, int of) {
                      backward({loss_of(copy, seed(of, 1))});
                      backward({loss_of(copy, seed(of, 2))});
                      return loss_of(copy, seed(of, 3));
                    });
                    for (std::size_t i = 0; i < expected.size(); ++i)
                      for (std::size_t k = 0; k < expected[i].size(); ++k)
                        expected[i][k] = first[i][k] + expected[i][k];
                    require(differing_gradient(model, expected).empty(), differing_gradient(model, expected));
                  }),
              "")
        << as_view;
}

TEST(ReplicateSync, ReducesKeptBackGradientsOfUnreachedParameters) {
  for (const bool find_unused : {false, true})
    EXPECT_EQ(run(3,
                  [find_unused](int rank) {
                    const nn::ModulePtr model = branches(5), plain = branches(5);
                    ReplicateOptions options;
                    options.find_unused_parameters = find_unused;
                    replicate(model, options);
                    const auto x = [](int of, int microbatch) {
                      return rows(static_cast<std::uint64_t>(10 * microbatch + of), {2, 3});
                    };
                    set_requires_gradient_sync(model, false);
                    backward({run_branch(model, x(rank, 0), "a")});
                    set_requires_gradient_sync(model, true);
                    backward({run_branch(model, x(rank, 1), "b")});
                    const auto expected = mean_gradients(plain, 3, [&](const nn::ModulePtr& copy, int of) {
                      backward({run_branch(copy, x(of, 0), "a")});
                      return run_branch(copy, x(of, 1), "b");
                    });
                    require(differing_gradient(model, expected).empty(), differing_gradient(model, expected));
                  }),
              "")
        << find_unused;
}

TEST(ReplicateUnused, RaisesOnEveryRankInTheSameBackward) {
  for (const bool on_all : {true, false}) {
    const auto failures = comm::testing_ranks::run_ranks(3, Kind::threads, [on_all](int rank) {
      const nn::ModulePtr model = branches(5);
      replicate(model);
      backward({run_branch(model, rows(1, {2, 3}), on_all || rank == 2 ? "a" : "both")});
    });
    EXPECT_THAT(failures, Each(AllOf(HasSubstr("b.weight"), HasSubstr("b.bias")))) << on_all;
  }
}

TEST(ReplicateUnused, AveragesOnlyTheUsedParameters) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr model = branches(5);
                  model->add_child("c", nn::build("Linear", {{3, 4}, {}}, {}));  // unused on all ranks
                  ReplicateOptions options;
                  options.find_unused_parameters = true;
                  replicate(model, options);
                  const Tensor unused = model->child("c")->parameters[0].tensor;
                  set_grad(unused, full({4, 3}, 7.0, DType::float32, {}));
                  const Tensor x = ones({2, 3}, DType::float32, {});
                  const std::size_t from = comm::log().size();
                  backward({run_branch(model, x, rank == 0 ? "both" : "a")});
                  require(to_doubles(grad(unused)) == std::vector<double>(12, 7.0), "the unused gradient has changed");
                  require(!grad(model->child("c")->parameters[1].tensor).defined(),
                          "an unused parameter got a gradient");
                  require(to_doubles(grad(model->child("b")->parameters[0].tensor)) == std::vector<double>(12, 1.0),
                          "2 on one of two ranks");
                  require(to_doubles(grad(model->child("a")->parameters[0].tensor)) == std::vector<double>(12, 2.0),
                          "2 on both");
                  require(count(Operation::all_reduce, Family::data_parallel, from) == 2,
                          "one for the bucket and one for the map of used parameters");
                }),
            "");
}

}  // namespace
}  // namespace lockstep::parallel
