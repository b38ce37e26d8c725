// Values, collectives and buckets of replicated modules.
#include "engine/parallel/replicate.hpp"

#include <gtest/gtest.h>

#include "engine/optim/optimizer.hpp"
#include "engine/parallel/test_support.hpp"

namespace lockstep::parallel {
namespace {

using namespace testing;
using comm::Family;
using comm::Operation;

class ReplicateWorldSizes : public ::testing::TestWithParam<int> {};

// Over several optimizer steps, under every setting.
TEST_P(ReplicateWorldSizes, GivesTheBitsOfTheMean) {
  const int world_size = GetParam();
  for (const bool as_view : {false, true})
    for (const bool find_unused : {false, true})
      EXPECT_EQ(
          run(world_size,
              [&](int rank) {
                const nn::ModulePtr plain = built("Net", 3);
                const nn::ModulePtr model =
                    built("Net", 3 + static_cast<std::uint64_t>(rank));  // replicate broadcasts those of rank 0
                ReplicateOptions options;
                options.gradient_as_bucket_view = as_view;
                options.find_unused_parameters = find_unused;
                options.bucket_cap_mb = 1e-5;
                replicate(model, options);
                optim::Options adam;
                adam.lr = 1e-2;
                const auto ours = optim::make_optimizer("Adam", {optim::group_of(nn::named_parameters(model), adam)});
                const auto theirs = optim::make_optimizer("Adam", {optim::group_of(nn::named_parameters(plain), adam)});
                for (std::uint64_t step = 0; step < 4; ++step) {
                  const auto seed = [&](int of) { return 100 * step + static_cast<std::uint64_t>(of); };
                  const auto expected = mean_gradients(
                      plain, world_size, [&](const nn::ModulePtr& copy, int of) { return loss_of(copy, seed(of)); });
                  backward({loss_of(model, seed(rank))});
                  const std::string differs = differing_gradient(model, expected);
                  require(differs.empty(), str("step ", step, ": ", differs));
                  const auto parameters = nn::named_parameters(plain);
                  for (std::size_t i = 0; i < parameters.size(); ++i)
                    set_grad(parameters[i].tensor(),
                             from_values(std::vector<double>(expected[i].begin(), expected[i].end()),
                                         parameters[i].tensor().sizes(), DType::float32, {}));
                  ours->step();
                  theirs->step();
                  ours->zero_grad(step % 2 == 0);
                  const auto mine = nn::named_parameters(model);
                  for (std::size_t i = 0; i < mine.size(); ++i)
                    require(to_doubles(mine[i].tensor()) == to_doubles(parameters[i].tensor()),
                            mine[i].path + " differs after the step");
                }
              }),
          "")
          << "as_view " << as_view << " find_unused " << find_unused;
}
INSTANTIATE_TEST_SUITE_P(Ranks, ReplicateWorldSizes, ::testing::Values(1, 2, 3, 4));

TEST(Replicate, GivesTheSameBitsInProcesses) {
  EXPECT_EQ(run(
                3,
                [](int rank) {
                  const nn::ModulePtr plain = built("Net", 5);
                  const nn::ModulePtr model = built("Net", 5);
                  replicate(model);
                  const auto expected = mean_gradients(plain, 3, [](const nn::ModulePtr& copy, int of) {
                    return loss_of(copy, static_cast<std::uint64_t>(of));
                  });
                  backward({loss_of(model, static_cast<std::uint64_t>(rank))});
                  require(differing_gradient(model, expected).empty(), differing_gradient(model, expected));
                },
                Kind::processes),
            "");
}

TEST(Replicate, SumsAxisByAxisOnA2dMesh) {
  EXPECT_EQ(run(4,
                [](int rank) {
                  const nn::ModulePtr plain = built("Net", 5);
                  const nn::ModulePtr model = built("Net", 5);
                  ReplicateOptions options;
                  options.mesh = DeviceMesh({2, 2}, {"outer", "inner"});
                  replicate(model, options);
                  const auto expected = mean_gradients(plain, 4, [](const nn::ModulePtr& copy, int of) {
                    return loss_of(copy, static_cast<std::uint64_t>(of));
                  });
                  backward({loss_of(model, static_cast<std::uint64_t>(rank))});
                  require(differing_gradient(model, expected).empty(), differing_gradient(model, expected));
                  require(count(Operation::all_reduce, Family::data_parallel) == 2, "one all_reduce per axis");
                }),
            "");
}

TEST(Replicate, MakesTheExpectedCollectives) {
  EXPECT_EQ(
      run(2,
          [](int rank) {
            const nn::ModulePtr model = built("Net", 5);
            replicate(model);
            require(comm::log().empty(), "replicate() does not communicate");
            for (int iteration = 0; iteration < 3; ++iteration)
              backward({loss_of(model, static_cast<std::uint64_t>(rank))});
            require(count(Operation::all_gather, Family::start_up) == 1, "the number of parameters");
            require(count(Operation::broadcast, Family::start_up) == 4, "shapes, values, order, sizes");
            require(count(Operation::all_reduce, Family::data_parallel) == 3, "one bucket per iteration");
            for (const comm::LogEntry& entry : comm::log())
              require(entry.phase == (entry.family == Family::start_up ? comm::Phase::forward : comm::Phase::backward),
                      "phase");
            require(comm::log()[2].bytes == 3 * 6 * 4, "the values in one broadcast");
          }),
      "");
}

TEST(Replicate, OrdersBucketsByReadinessFromTheSecondForward) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr model = built("Net", 5);
                  ReplicateOptions options;
                  options.bucket_cap_mb = 24.0 / 1024 / 1024;  // a layer has 24 bytes
                  options.gradient_as_bucket_view = true;
                  replicate(model, options);
                  backward({loss_of(model, static_cast<std::uint64_t>(rank))});
                  require(count(Operation::all_reduce, Family::data_parallel) == 1,
                          "the first backward has one bucket");
                  const auto storage = [&](const char* layer) {
                    return grad(model->child(layer)->parameters[0].tensor).storage();
                  };
                  require(storage("fc1") == storage("fc3"), "all layers share a bucket");
                  nn::zero_grad(model);
                  const std::size_t from = comm::log().size();
                  backward({loss_of(model, static_cast<std::uint64_t>(rank))});
                  require(count(Operation::all_reduce, Family::data_parallel, from) == 3, "one bucket per layer");
                  require(storage("fc1") != storage("fc3"), "layers have different buckets");
                  require(grad(model->child("fc3")->parameters[1].tensor).storage() == storage("fc3"),
                          "a layer has one bucket");
                }),
            "");
}

TEST(Replicate, OverlapsBackward) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr model = built("Net", 5);
                  ReplicateOptions options;
                  options.bucket_cap_mb = 1e-6;  // one bucket per parameter
                  replicate(model, options);
                  backward({loss_of(model, static_cast<std::uint64_t>(rank))});
                  std::vector<int> issued;
                  for (const char* layer : {"fc3", "fc2", "fc1"})
                    model->child(layer)->add_pre_backward([&issued](nn::Module&) {
                      issued.push_back(count(Operation::all_reduce, Family::data_parallel));
                    });
                  backward({loss_of(model, static_cast<std::uint64_t>(rank))});
                  require(issued == std::vector<int>({1, 3, 5}), "each finished layer starts two buckets");
                }),
            "");
}

TEST(Replicate, AllowsTwoForwardsAndARetainedGraph) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr plain = built("Net", 5);
                  const nn::ModulePtr model = built("Net", 5);
                  replicate(model);
                  const auto twice = [](const nn::ModulePtr& module, int of) {
                    return ops::add(loss_of(module, static_cast<std::uint64_t>(of)),
                                    loss_of(module, static_cast<std::uint64_t>(of + 7)));
                  };
                  auto expected = mean_gradients(plain, 2, twice);
                  const Tensor loss = twice(model, rank);
                  backward({loss}, {}, true);
                  require(differing_gradient(model, expected).empty(), differing_gradient(model, expected));
                  backward({loss});
                  for (auto& gradient : expected)
                    for (float& value : gradient) value += value;
                  require(differing_gradient(model, expected).empty(), differing_gradient(model, expected));
                }),
            "");
}

TEST(Replicate, RecoversFromAFailedBackward) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr plain = built("Net", 5);
                  const nn::ModulePtr model = built("Net", 5);
                  replicate(model);
                  const auto handle =
                      model->child("fc1")->add_pre_backward([](nn::Module&) { throw Error("on purpose"); });
                  require(error_of([&] { backward({loss_of(model, 1)}); }) == "on purpose", "another error");
                  model->child("fc1")->remove_hook(handle);
                  const auto expected = mean_gradients(plain, 2, [](const nn::ModulePtr& copy, int of) {
                    return loss_of(copy, static_cast<std::uint64_t>(of));
                  });
                  backward({loss_of(model, static_cast<std::uint64_t>(rank))});
                  require(differing_gradient(model, expected).empty(), differing_gradient(model, expected));
                }),
            "");
}

}  // namespace
}  // namespace lockstep::parallel
