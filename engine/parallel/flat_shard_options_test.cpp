// Options of flat_shard one by one, odd shapes, and refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/mesh/sharded.hpp"
#include "engine/optim/optimizer.hpp"
#include "engine/parallel/flat_shard.hpp"
#include "engine/parallel/flat_summon.hpp"
#include "engine/parallel/shard_state.hpp"
#include "engine/parallel/test_support.hpp"

namespace lockstep::parallel {
namespace {

using namespace testing;
using ::testing::HasSubstr;

Tensor squares(const nn::ModulePtr& model, const Tensor& x) {
  const Tensor off = ops::sub(model->call(x).tensor(), 1.0);
  return ops::sum(ops::mul(off, off));
}

nn::ModulePtr linear(std::int64_t in, std::int64_t out, std::uint64_t seed) {
  return built("Linear", seed, {{in, out}, {}});
}

// The full values of all parameters, one after the other.
std::vector<double> full_values(const nn::ModulePtr& model) {
  SummonedParameters summoned(model, {.writeback = false});
  std::vector<double> values;
  for (const nn::NamedParameter& parameter : nn::named_parameters(model))
    for (const double value : to_doubles(parameter.tensor())) values.push_back(value);
  return values;
}

constexpr double no_gradient = -7777;  // stands for each missing gradient

std::vector<double> gradients_of(const nn::ModulePtr& model) {
  std::vector<double> values;
  for (const nn::NamedParameter& parameter : nn::named_parameters(model)) {
    const Tensor gradient = grad(parameter.tensor());
    for (const double value : gradient.defined() ? to_doubles(gradient) : std::vector<double>{no_gradient})
      values.push_back(value);
  }
  return values;
}

std::vector<double> full_gradients(const nn::ModulePtr& model) {
  SummonedParameters summoned(model, {.writeback = false, .gradients = true});
  return gradients_of(model);
}

// Backwards of the same inputs give a flat-sharded model the gradients of the plain one.
void require_gradients_of(const nn::ModulePtr& plain, const nn::ModulePtr& flat, const Tensor& x,
                          double tolerance = 0) {
  backward({squares(plain, x)});
  backward({squares(flat, x)});
  const auto expected = gradients_of(plain), found = full_gradients(flat);
  require(found.size() == expected.size(), "gradients of all parameters");
  for (std::size_t i = 0; i < expected.size(); ++i)
    require(std::abs(found[i] - expected[i]) <= tolerance * std::abs(expected[i]),
            str("gradient ", i, " is ", found[i], ", not ", expected[i]));
}

// The stretches of a (2, 2) weight and a bias of 2 on 3 ranks: 4 + 2 elements, 2 per rank.
TEST(FlatShardOptions, EveryRankHoldsItsStretches) {
  EXPECT_EQ(run(3,
                [](int rank) {
                  const nn::ModulePtr module = linear(2, 2, 1);
                  const std::vector<double> weight = to_doubles(module->parameters[0].tensor);
                  const std::vector<double> bias = to_doubles(module->parameters[1].tensor);
                  flat_shard(module);
                  const auto parameters = nn::named_parameters(module);
                  const Tensor& w = parameters[0].tensor();
                  const Tensor& b = parameters[1].tensor();
                  if (rank < 2) {
                    require(w.sizes() == Dims{2} && b.sizes() == Dims{0}, "rows of the weight");
                    require(
                        to_doubles(w) == std::vector<double>(weight.begin() + 2 * rank, weight.begin() + 2 * rank + 2),
                        "values of the weight");
                  } else {
                    require(w.sizes() == Dims{0} && to_doubles(b) == bias, "the bias");
                  }
                }),
            "");
}

TEST(FlatShardOptions, TakesUnitsOfAnySize) {
  for (const int world_size : {1, 3, 8})
    for (const std::int64_t size : {1, 5})
      EXPECT_EQ(run(world_size,
                    [size](int) {
                      const nn::ModulePtr plain = built("Linear", 3, {{size, std::int64_t{1}}, {{"bias", false}}});
                      const nn::ModulePtr flat = nn::clone_module(plain);
                      flat_shard(flat);
                      require_gradients_of(plain, flat, rows(5, {2, size}), 1e-6);
                    }),
                "")
          << world_size << " ranks, " << size;
}

TEST(FlatShardOptions, AModuleWithoutParametersIsAUnitWithoutCollectives) {
  EXPECT_EQ(run(2,
                [](int) {
                  const nn::ModulePtr module = built("ReLU", 0);
                  flat_shard(module);
                  const std::size_t before = comm::log().size();
                  module->call(rows(1, {2, 2}));
                  require(comm::log().size() == before, "it communicates");
                }),
            "");
}

// A buffer may lack a tensor, as a buffer of PyTorch that is None. It is neither moved nor sent nor cast.
TEST(FlatShardOptions, ABufferMayHaveNoTensor) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr model = linear(3, 2, 1);
                  model->add_buffer("without", Tensor());
                  model->add_buffer("shift", full({2}, 5.0 + rank, DType::float32, {}));
                  flat_shard(model, {.mixed_precision = {.buffer = DType::float64},
                                     .sync_module_states = true,
                                     .device = device::Device{}});
                  model->call(rows(2, {2, 3}));
                  require(!model->buffers[0].tensor.defined(), "a tensor in the first buffer");
                  const Tensor& shift = model->buffers[1].tensor;
                  require(shift.dtype() == DType::float64, "the type of the second buffer");
                  require(to_doubles(shift) == std::vector<double>{5.0, 5.0}, "values of another rank than the first");
                }),
            "");
}

// Frozen parameters of a unit of original parameters keep their values and get no gradient.
TEST(FlatShardOptions, FreezesSomeParametersOfAUnit) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr plain = linear(3, 3, 4);
                  set_requires_grad(plain->parameters[0].tensor, false);
                  const nn::ModulePtr flat = nn::clone_module(plain);
                  replicate(plain, {});
                  flat_shard(flat);
                  require_gradients_of(plain, flat, rows(static_cast<std::uint64_t>(rank), {2, 3}));
                }),
            "");
}

// A parameter of a unit without a gradient gets zeros, as the flat gradient is one tensor. A unit without any gets
// none.
TEST(FlatShardOptions, GivesZerosWhereAUnitGotSomeGradients) {
  EXPECT_EQ(run(2,
                [](int) {
                  const nn::ModulePtr model = branches(2);
                  flat_shard(model);
                  backward({run_branch(model, rows(1, {2, 3}), "a")});
                  const auto gradients = full_gradients(model);  // a.weight, a.bias, b.weight, b.bias
                  for (std::size_t i = 0; i < 16; ++i) require(gradients[i] != 0, "a has a gradient");
                  for (std::size_t i = 16; i < 32; ++i) require(gradients[i] == 0, "b has zeros");
                }),
            "");
}

TEST(FlatShardOptions, KeepsLowPrecisionGradientsOnRequest) {
  for (const bool keep : {false, true})
    EXPECT_EQ(run(2,
                  [keep](int) {
                    const nn::ModulePtr model = linear(4, 4, 1);
                    FlatShardOptions options;
                    options.mixed_precision.param = DType::bfloat16;
                    options.mixed_precision.keep_low_precision_gradients = keep;
                    flat_shard(model, options);
                    backward({squares(model, rows(1, {2, 4}))});
                    for (const nn::NamedParameter& parameter : nn::named_parameters(model)) {
                      require(parameter.tensor().dtype() == DType::float32, "the shard keeps its type");
                      if (parameter.tensor().num_elements() > 0)
                        require(grad(parameter.tensor()).dtype() == (keep ? DType::bfloat16 : DType::float32),
                                "gradient");
                    }
                  }),
              "");
}

// When the gather of a unit begins, the host has waited until fewer than `limit` earlier units may still be in use.
TEST(FlatShardOptions, WaitsForEarlierUnitsBeforeItGathers) {
  const auto units_in_use = [](int limit) {
    std::vector<nn::ModulePtr> layers;
    for (int i = 0; i < 6; ++i) layers.push_back(linear(2, 2, 1));
    const nn::ModulePtr model = nn::build("Sequential", {}, {}, layers);
    flat_shard(model, {.unit_types = {"Linear"}, .max_gathers_in_flight = limit});
    std::vector<std::size_t> seen;
    for (const nn::ModulePtr& layer : layers) {
      ShardGroup* group = shard_state_of(*layer)->group().get();
      group->before_all_gather.push_back([&seen, group] { seen.push_back(group->context->freed.size()); });
    }
    const NoGrad no_grad;
    model->call(rows(1, {2, 2}));
    return seen;
  };
  EXPECT_EQ(run(2,
                [&](int) {
                  const auto expect = [&](int limit, const std::vector<std::size_t>& expected) {
                    require(units_in_use(limit) == expected, str("a limit of ", limit));
                  };
                  expect(1, {0, 0, 0, 0, 0, 0});
                  expect(2, {0, 1, 1, 1, 1, 1});
                  expect(3, {0, 1, 2, 2, 2, 2});
                  expect(6, {0, 1, 2, 3, 4, 5});
                }),
            "");
}

TEST(FlatShardOptions, WritesBackWhatWasAssignedToASlot) {
  EXPECT_EQ(run(2,
                [](int) {
                  const nn::ModulePtr model = linear(2, 2, 1);
                  flat_shard(model);
                  nn::ParameterSlot& slot = model->parameters[0];
                  const Tensor view = slot.tensor;
                  slot.tensor = full(slot.tensor.sizes(), 3.0, DType::float32, {});
                  model->call(rows(1, {2, 2}));
                  nn::settle(model);
                  require(slot.tensor.same_as(view), "the view is back");
                  const auto values = full_values(model);
                  for (std::size_t i = 0; i < 4; ++i) require(values[i] == 3.0, "the assigned value");
                  slot.tensor = full({7}, 3.0, DType::float32, {});
                  require(error_of([&] {
                            model->call(rows(1, {2, 2}));
                          }).find("Cannot writeback") != std::string::npos,
                          "another shape");
                }),
            "");
}

TEST(FlatShardOptions, RefusesASlotWithoutATensor) {
  for (const bool original : {true, false})
    EXPECT_EQ(run(2,
                  [original](int) {
                    const nn::ModulePtr model = linear(2, 2, 1);
                    FlatShardOptions options;
                    options.original_parameters = original;
                    flat_shard(model, options);
                    model->call(rows(1, {2, 2}));
                    nn::settle(model);
                    // The slot of the flat parameter comes after those of the module's own parameters.
                    (original ? model->parameters.front() : model->parameters.back()).tensor = Tensor();
                    const std::string message = error_of([&] { model->call(rows(1, {2, 2})); });
                    require(message.find("Cannot writeback when the parameter shape changes") != std::string::npos &&
                                message.find("but got nothing") != std::string::npos,
                            message);
                  }),
              "")
        << (original ? "original parameters" : "a flat parameter");
}

TEST(FlatShardOptions, FollowsACastOfTheModule) {
  for (const bool original : {true, false})
    EXPECT_EQ(run(2,
                  [original](int) {
                    const nn::ModulePtr plain = linear(3, 2, 1);
                    const nn::ModulePtr flat = nn::clone_module(plain);
                    FlatShardOptions options;
                    options.original_parameters = original;
                    flat_shard(flat, options);
                    nn::cast_module(plain, DType::float64);
                    nn::cast_module(flat, DType::float64);
                    require_gradients_of(plain, flat, raw::cast(rows(1, {2, 3}), DType::float64));
                  }),
              "");
}

// ---- summoned parameters ----
TEST(FlatSummon, ShowsFullParametersAndWritesThemBack) {
  for (const bool original : {true, false})
    EXPECT_EQ(run(3,
                  [original](int) {
                    const nn::ModulePtr plain = linear(3, 2, 1);
                    const nn::ModulePtr flat = nn::clone_module(plain);
                    FlatShardOptions options;
                    options.original_parameters = original;
                    flat_shard(flat, options);
                    require(nn::named_parameters(flat).size() == (original ? 2U : 1U), "as optimizers see them");
                    {
                      SummonedParameters summoned(flat, {});
                      const auto shown = nn::named_parameters(flat);
                      require(shown.size() == 2 && shown[0].tensor().sizes() == Dims{2, 3}, "full sizes");
                      require(to_doubles(shown[0].tensor()) == to_doubles(plain->parameters[0].tensor), "values");
                      const NoGrad no_grad;
                      raw::fill_(detach(shown[0].tensor()), 5.0);
                      summoned.finish();
                    }
                    const auto values = full_values(flat);
                    for (std::size_t i = 0; i < 6; ++i) require(values[i] == 5.0, "written back");
                    require(values[6] == to_doubles(plain->parameters[1].tensor)[0], "the bias keeps its value");
                  }),
              "");
}

TEST(FlatSummon, WithoutRecursionShowsTheModulesOwnUnitAlone) {
  EXPECT_EQ(run(2,
                [](int) {
                  const nn::ModulePtr model = branches(1);
                  flat_shard(model, {.unit_types = {"Linear"}});  // the root has no parameter of its own
                  const auto sizes_of = [&model](const char* branch) {
                    return model->child(branch)->parameters[0].tensor.sizes();
                  };
                  const Dims stretch = sizes_of("a");
                  const std::size_t before = comm::log().size();
                  {
                    SummonedParameters summoned(model, {.recurse = false});
                    require(sizes_of("a") == stretch && comm::log().size() == before, "nothing is summoned");
                  }
                  SummonedParameters summoned(model->child("b"), {.recurse = false});
                  require(sizes_of("b") == Dims{4, 3} && sizes_of("a") == stretch, "b alone is full");
                  require(count(comm::Operation::all_gather, comm::Family::data_parallel, before) == 1, "one gather");
                }),
            "");
}

TEST(FlatSummon, RefusesNestingForwardAndBackward) {
  EXPECT_EQ(run(2,
                [](int) {
                  const nn::ModulePtr model = linear(2, 2, 1);
                  flat_shard(model);
                  {
                    SummonedParameters summoned(model, {});
                    require(error_of([&] {
                              SummonedParameters again(model, {});
                            }).find("when already unsharding parameters") != std::string::npos,
                            "nested");
                    require(error_of([&] {
                              model->call(rows(1, {2, 2}));
                            }).find("are summoned") != std::string::npos,
                            "forward");
                  }
                  std::string in_forward;
                  model->add_post_forward(
                      [&](nn::Module&, const nn::Inputs&, nn::Structure&) {
                        in_forward = error_of([&] { SummonedParameters summoned(model, {}); });
                      },
                      nn::Module::Place::user);
                  model->call(rows(1, {2, 2}));
                  require(in_forward.find("during forward/backward") != std::string::npos, in_forward);
                  require(error_of([&] {
                            SummonedParameters one(model, {.writeback = true, .rank0_only = true});
                          }).find("is not supported") != std::string::npos,
                          "rank0_only");
                }),
            "");
}

// ---- refusals ----
TEST(FlatShardOptions, RefusesWhatItCannotShard) {
  EXPECT_EQ(run(2,
                [](int) {
                  const auto refused = [](const nn::ModulePtr& model, const FlatShardOptions& options,
                                          const char* why) {
                    const std::string message = error_of([&] { flat_shard(model, options); });
                    require(message.find(why) != std::string::npos, str(why, " against ", message));
                  };
                  const auto model = [] { return built("CompositeModel", 0); };
                  FlatShardOptions hybrid;
                  hybrid.strategy = FlatStrategy::hybrid_shard;
                  refused(model(), hybrid, "requires explicit specification of a mesh of two axes");
                  FlatShardOptions two_axes;
                  two_axes.mesh = DeviceMesh({1, 2}, {"replicate", "shard"});
                  refused(model(), two_axes, "expects a mesh of one axis");
                  const nn::ModulePtr mixed = model();
                  nn::cast_module(mixed->child("u1"), DType::float64);
                  refused(mixed, {}, "uniform dtype");
                  const nn::ModulePtr frozen = model();
                  set_requires_grad(frozen->child("l1")->parameters[0].tensor, false);
                  FlatShardOptions flat;
                  flat.original_parameters = false;
                  refused(frozen, flat, "uniform `requires_grad`");
                  const nn::ModulePtr sharded = model();
                  fully_shard({sharded->child("u1")});
                  flat_shard(sharded);
                  require(error_of([&] {
                            sharded->call(rows(1, {2, 100}));
                          }).find("one of the two") != std::string::npos,
                          "two APIs below one root");
                  const nn::ModulePtr tied = model();
                  tied->child("l2")->parameters[0].tensor = tied->child("u1")->child("l1")->parameters[0].tensor;
                  FlatShardOptions units;
                  units.unit_types = {"UnitModule"};
                  refused(tied, units, "which is in another unit");
                }),
            "");
}

}  // namespace
}  // namespace lockstep::parallel
