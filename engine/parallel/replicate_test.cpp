#include "engine/parallel/replicate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/optim/optimizer.hpp"
#include "engine/parallel/replicate_testing.hpp"

namespace lockstep::parallel {
namespace {

using namespace testing;
using comm::Family;
using comm::Operation;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

class Replicate : public ::testing::TestWithParam<int> {};

// Every setting gives the bits of the mean of plain gradients, over iterations with an optimizer.
TEST_P(Replicate, GradientsAreTheMeanOfPlainOnesBitForBit) {
  const int world_size = GetParam();
  for (const bool as_view : {false, true})
    for (const bool find_unused : {false, true})
      EXPECT_EQ(
          run(world_size,
              [&](int rank) {
                const nn::ModulePtr plain = built("Net", 3);
                const nn::ModulePtr model = built("Net", 3 + static_cast<std::uint64_t>(rank));  // rank 0's hold
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
INSTANTIATE_TEST_SUITE_P(WorldSizes, Replicate, ::testing::Values(1, 2, 3, 4));

TEST(ReplicateRanks, ProcessesGiveTheSameBits) {
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

TEST(ReplicateRanks, AMeshOfTwoAxesSumsAxisByAxis) {
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
                  require(count(Operation::all_reduce, Family::data_parallel) == 2, "one all_reduce an axis");
                }),
            "");
}

TEST(ReplicateRanks, CountsItsCollectives) {
  EXPECT_EQ(
      run(2,
          [](int rank) {
            const nn::ModulePtr model = built("Net", 5);
            replicate(model);
            require(comm::log().empty(), "replicate() itself communicates nothing");
            for (int iteration = 0; iteration < 3; ++iteration)
              backward({loss_of(model, static_cast<std::uint64_t>(rank))});
            require(count(Operation::all_gather, Family::start_up) == 1, "the count of parameters");
            require(count(Operation::broadcast, Family::start_up) == 4, "shapes, values, order, sizes");
            require(count(Operation::all_reduce, Family::data_parallel) == 3, "a bucket an iteration");
            for (const comm::LogEntry& entry : comm::log())
              require(entry.phase == (entry.family == Family::start_up ? comm::Phase::forward : comm::Phase::backward),
                      "phases");
            require(comm::log()[2].bytes == 3 * 6 * 4, "the values in one broadcast");
          }),
      "");
}

TEST(ReplicateRanks, CutsBucketsInTheOrderOfReadinessAtTheSecondForward) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr model = built("Net", 5);
                  ReplicateOptions options;
                  options.bucket_cap_mb = 24.0 / 1024 / 1024;  // a layer has 24 bytes
                  options.gradient_as_bucket_view = true;
                  replicate(model, options);
                  backward({loss_of(model, static_cast<std::uint64_t>(rank))});
                  require(count(Operation::all_reduce, Family::data_parallel) == 1, "one bucket at first");
                  const auto storage = [&](const char* layer) {
                    return grad(model->child(layer)->parameters[0].tensor).storage();
                  };
                  require(storage("fc1") == storage("fc3"), "all in one bucket");
                  nn::zero_grad(model);
                  const std::size_t from = comm::log().size();
                  backward({loss_of(model, static_cast<std::uint64_t>(rank))});
                  require(count(Operation::all_reduce, Family::data_parallel, from) == 3, "a bucket a layer");
                  require(storage("fc1") != storage("fc3"), "buckets apart");
                  require(grad(model->child("fc3")->parameters[1].tensor).storage() == storage("fc3"),
                          "a layer together");
                }),
            "");
}

TEST(ReplicateRanks, OverlapsTheRestOfBackward) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr model = built("Net", 5);
                  ReplicateOptions options;
                  options.bucket_cap_mb = 1e-6;  // every parameter alone
                  replicate(model, options);
                  backward({loss_of(model, static_cast<std::uint64_t>(rank))});
                  std::vector<int> issued;
                  for (const char* layer : {"fc3", "fc2", "fc1"})
                    model->child(layer)->add_pre_backward([&issued](nn::Module&) {
                      issued.push_back(count(Operation::all_reduce, Family::data_parallel));
                    });
                  backward({loss_of(model, static_cast<std::uint64_t>(rank))});
                  require(issued == std::vector<int>({1, 3, 5}), "two buckets start with every layer that is done");
                }),
            "");
}

TEST(ReplicateRanks, KeepsGradientsBackWithoutSynchronisation) {
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
                    // The flag counts at the forward: this backward keeps its gradients back though it is on again by
                    // then.
                    require(set_requires_gradient_sync(model, false) == 1, "one module");
                    const std::size_t from = comm::log().size();
                    for (const int microbatch : {1, 2}) {
                      const Tensor loss = loss_of(model, seed(rank, microbatch));
                      set_requires_gradient_sync(model, true);
                      backward({loss});
                      set_requires_gradient_sync(model, false);
                    }
                    require(count(Operation::all_reduce, Family::data_parallel, from) == 0, "nothing is reduced");
                    require(differing_gradient(model, first).empty(), "gradients stay as they were");
                    set_requires_gradient_sync(model, true);
                    backward({loss_of(model, seed(rank, 3))});
                    // The three are added on each rank, averaged, and then added to what was there.
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

TEST(ReplicateRanks, ReducesWhatWasKeptBackForParametersThatTheLastMicrobatchLeavesOut) {
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

TEST(ReplicateRanks, AnUnusedParameterIsAnErrorOnEveryRankAtOnce) {
  for (const bool on_all : {true, false}) {
    const auto failures = comm::testing_ranks::run_ranks(3, Kind::threads, [on_all](int rank) {
      const nn::ModulePtr model = branches(5);
      replicate(model);
      backward({run_branch(model, rows(1, {2, 3}), on_all || rank == 2 ? "a" : "both")});
    });
    EXPECT_THAT(failures, Each(AllOf(HasSubstr("b.weight"), HasSubstr("b.bias")))) << on_all;
  }
}

TEST(ReplicateRanks, FindingUnusedParametersLeavesThemAndAveragesTheOthers) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr model = branches(5);
                  model->add_child("c", nn::build("Linear", {{3, 4}, {}}, {}));  // nobody uses it
                  ReplicateOptions options;
                  options.find_unused_parameters = true;
                  replicate(model, options);
                  const Tensor unused = model->child("c")->parameters[0].tensor;
                  set_grad(unused, full({4, 3}, 7.0, DType::float32, {}));
                  const Tensor x = ones({2, 3}, DType::float32, {});
                  const std::size_t from = comm::log().size();
                  backward({run_branch(model, x, rank == 0 ? "both" : "a")});
                  require(to_doubles(grad(unused)) == std::vector<double>(12, 7.0), "untouched");
                  require(!grad(model->child("c")->parameters[1].tensor).defined(), "still none");
                  require(to_doubles(grad(model->child("b")->parameters[0].tensor)) == std::vector<double>(12, 1.0),
                          "2 on one of two ranks");
                  require(to_doubles(grad(model->child("a")->parameters[0].tensor)) == std::vector<double>(12, 2.0),
                          "2 on both");
                  require(count(Operation::all_reduce, Family::data_parallel, from) == 2, "the bucket and the map");
                }),
            "");
}

TEST(ReplicateRanks, DifferentParametersAreAnErrorOnEveryRank) {
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

TEST(ReplicateRanks, BroadcastsFrozenParametersAndLeavesThemOut) {
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
                  require(!grad(frozen).defined(), "no gradient");
                  require(comm::log().back().bytes == (18 - 4) * 4, "only the others are reduced");
                }),
            "");
}

TEST(ReplicateRanks, IgnoredModulesKeepTheirOwnValuesAndGradients) {
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
                  require(all("fc1")[0] != all("fc1")[1], "the ignored ones are each rank's own");
                  require(all("fc2")[0] == all("fc2")[1], "the others are averaged");
                }),
            "");
}

TEST(ReplicateRanks, EachReplicatedChildHasItsOwnReducer) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr plain = built("Net", 5);
                  const nn::ModulePtr model = built("Net", 5);
                  for (const char* layer : {"fc1", "fc2", "fc3"}) replicate(model->child(layer));
                  replicate(model);  // what its children have is left to them
                  require(model->applied.at("replicate").parameter_names.empty(), "nothing is left");
                  const auto expected = mean_gradients(plain, 2, [](const nn::ModulePtr& copy, int of) {
                    return loss_of(copy, static_cast<std::uint64_t>(of));
                  });
                  backward({loss_of(model, static_cast<std::uint64_t>(rank))});
                  require(differing_gradient(model, expected).empty(), differing_gradient(model, expected));
                  require(count(Operation::all_reduce, Family::data_parallel) == 3, "one a layer");
                  require(set_requires_gradient_sync(model, false) == 4, "the flag goes down the tree");
                  require(set_requires_gradient_sync(model, false, false) == 1, "or not");
                }),
            "");
}

TEST(ReplicateRanks, AChildThatIsReplicatedLaterTakesItsParametersOver) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr model = built("Net", 5), plain = built("Net", 5);
                  replicate(model);
                  loss_of(model, 1);
                  replicate(model->child("fc2"));
                  const auto expected = mean_gradients(plain, 2, [](const nn::ModulePtr& copy, int of) {
                    return loss_of(copy, static_cast<std::uint64_t>(of));
                  });
                  backward({loss_of(model, static_cast<std::uint64_t>(rank))});
                  require(differing_gradient(model, expected).empty(), differing_gradient(model, expected));
                }),
            "");
}

TEST(ReplicateRanks, FollowsParametersThatAreFrozenAndThawed) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr model = built("Net", 5), plain = built("Net", 5);
                  const auto freeze = [&](bool frozen) {
                    for (const nn::ModulePtr& of : {model, plain})
                      for (const nn::ParameterSlot& slot : of->child("fc1")->parameters)
                        set_requires_grad(slot.tensor, !frozen);
                  };
                  replicate(model);
                  for (const bool frozen : {true, false, true}) {
                    freeze(frozen);
                    nn::zero_grad(model);
                    backward({loss_of(model, static_cast<std::uint64_t>(rank))});
                    freeze(false);
                    const auto expected = mean_gradients(plain, 2, [](const nn::ModulePtr& copy, int of) {
                      return loss_of(copy, static_cast<std::uint64_t>(of));
                    });
                    require(grad(model->child("fc1")->parameters[0].tensor).defined() == !frozen, "fc1");
                    const Tensor gradient = grad(model->child("fc3")->parameters[0].tensor);
                    const auto ours = to_doubles(gradient);
                    require(std::equal(ours.begin(), ours.end(), expected[4].begin(),
                                       [](double a, float b) { return static_cast<float>(a) == b; }),
                            "fc3.weight.grad");
                  }
                }),
            "");
}

TEST(ReplicateRanks, BroadcastsBuffersBeforeEachForward) {
  EXPECT_EQ(run(3,
                [](int rank) {
                  const nn::ModulePtr model = built("MLP", 5, {{3}, {{"buffer", true}}});
                  ReplicateOptions options;
                  options.broadcast_buffers = true;
                  replicate(model, options);
                  const Tensor x = rows(1, {2, 3});
                  const auto value = [&] { return to_doubles(model->buffers[0].tensor); };
                  // A buffer that was put in anew is the one that counts.
                  model->buffers[0].tensor = full({3}, 10.0 + rank, DType::float32, {});
                  const Tensor y = model->call(x).tensor();
                  require(value() == std::vector<double>(3, 10.0), "rank 0's");
                  // What the first forward saved is not changed under its backward by the second.
                  const Tensor product = ops::mul(y, model->buffers[0].tensor);
                  raw::fill_(model->buffers[0].tensor, 0.0);
                  model->buffers[0].tensor = full({3}, 20.0 + rank, DType::float32, {});
                  const Tensor saved = ops::mul(y, model->buffers[0].tensor);
                  const Tensor again = model->call(x).tensor();
                  require(value() == std::vector<double>(3, 20.0), "rank 0's again");
                  backward({ops::sum(ops::add(saved, again))});
                  require(count(Operation::broadcast, Family::data_parallel) == 2, "one a forward");
                  const nn::ModulePtr bare = built("Net", 5);
                  replicate(bare, options);
                  backward({loss_of(bare, 1)});
                }),
            "");
}

TEST(ReplicateRanks, FollowsCastsAndExchangedParameters) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr model = built("Net", 5);
                  replicate(model);
                  backward({loss_of(model, 1)});
                  nn::cast_module(model, DType::float64);
                  nn::zero_grad(model);
                  const auto step = [&] {
                    const Tensor x = raw::cast(rows(1, {3, 2}), DType::float64);
                    backward({ops::sum(ops::mul(model->call(x).tensor(), 1.0 + rank))});
                  };
                  step();
                  const Tensor bias = model->child("fc3")->parameters[1].tensor;
                  require(grad(bias).dtype() == DType::float64, "type");
                  require(to_doubles(grad(bias)) == std::vector<double>({4.5, 4.5}), "mean of 3 and 6");
                  nn::load_state_dict(model, {{"fc3.bias", zeros({2}, DType::float64, {})}}, false, true);
                  step();
                  const Tensor assigned = model->child("fc3")->parameters[1].tensor;
                  require(to_doubles(grad(assigned)) == std::vector<double>({4.5, 4.5}), "of the assigned one");
                }),
            "");
}

TEST(ReplicateRanks, AModuleMayRunTwiceAndItsGraphBeUsedAgain) {
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

TEST(ReplicateRanks, AFailedBackwardDoesNotSpoilTheNext) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr plain = built("Net", 5);
                  const nn::ModulePtr model = built("Net", 5);
                  replicate(model);
                  const auto handle =
                      model->child("fc1")->add_pre_backward([](nn::Module&) { throw Error("on purpose"); });
                  require(error_of([&] { backward({loss_of(model, 1)}); }) == "on purpose", "the error comes through");
                  model->child("fc1")->remove_hook(handle);
                  const auto expected = mean_gradients(plain, 2, [](const nn::ModulePtr& copy, int of) {
                    return loss_of(copy, static_cast<std::uint64_t>(of));
                  });
                  backward({loss_of(model, static_cast<std::uint64_t>(rank))});
                  require(differing_gradient(model, expected).empty(), differing_gradient(model, expected));
                }),
            "");
}

TEST(ReplicateRanks, AModuleIsGoneWhenItsLastHolderLetsGo) {
  EXPECT_EQ(run(2,
                [](int) {
                  std::weak_ptr<nn::Module> module, child;
                  Tensor parameter;
                  {
                    const nn::ModulePtr model = built("Net", 5);
                    replicate(model->child("fc1"));
                    replicate(model);
                    backward({loss_of(model, 1)});
                    module = model;
                    child = model->child("fc1");
                    parameter = model->child("fc2")->parameters[0].tensor;
                  }
                  require(module.expired() && child.expired(), "reducers do not keep their modules alive");
                  require(!has_accumulator(parameter), "nor their parameters bound");
                }),
            "");
}

TEST(ReplicateRanks, StateDictsKeepNamesAndValuesAndCopiesAreFree) {
  EXPECT_EQ(run(2,
                [](int) {
                  const nn::ModulePtr plain = built("Net", 5);
                  const nn::ModulePtr model = nn::clone_module(plain);
                  replicate(model);
                  model->call(rows(1, {1, 2}));
                  const nn::StateDict ours = nn::state_dict(model), theirs = nn::state_dict(plain);
                  require(ours.size() == theirs.size(), "keys");
                  for (std::size_t i = 0; i < ours.size(); ++i)
                    require(
                        ours[i].first == theirs[i].first && to_doubles(ours[i].second) == to_doubles(theirs[i].second),
                        ours[i].first);
                  const nn::ModulePtr copy = nn::clone_module(model);
                  require(copy->applied.empty(), "a copy is plain");
                  const std::size_t from = comm::log().size();
                  backward({loss_of(copy, 1)});
                  require(comm::log().size() == from, "and reduces nothing");
                }),
            "");
}

}  // namespace
}  // namespace lockstep::parallel
