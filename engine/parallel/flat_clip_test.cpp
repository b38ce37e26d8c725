// The norm of flat-sharded gradients against the plain model, against sums by hand, and against PyTorch's figures.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/optim/clip.hpp"
#include "engine/optim/optimizer.hpp"
#include "engine/parallel/flat_shard.hpp"
#include "engine/parallel/flat_summon.hpp"
#include "engine/parallel/tensor_parallel_testing.hpp"

namespace lockstep::parallel {
namespace {

using namespace testing;

constexpr double infinity = std::numeric_limits<double>::infinity();

nn::ModulePtr stack(std::uint64_t seed) {
  RankContext::current().generator().seed(seed);
  auto model = nn::build("Sequential", {}, {},
                         {nn::build("Linear", {{5, 5}, {}}, {}), nn::build("MLP", {{5}, {{"mult", 3}}}, {}),
                          nn::build("MLP", {{5}, {}}, {})});
  nn::name_parameters(model);
  return model;
}

Tensor squares(const nn::ModulePtr& model, const Tensor& x) {
  const Tensor off = ops::sub(model->call(x).tensor(), 1.0);
  return ops::sum(ops::mul(off, off));
}

double norm_by_hand(const nn::ModulePtr& plain, double kind) {
  double total = 0.0;
  for (const nn::NamedParameter& entry : nn::named_parameters(plain))
    for (const double value : to_doubles(grad(entry.tensor())))
      total = std::isinf(kind) ? std::max(total, std::fabs(value)) : total + std::pow(std::fabs(value), kind);
  return std::isinf(kind) ? total : std::pow(total, 1.0 / kind);
}

void require_near(double found, double expected, const std::string& what) {
  require(std::fabs(found - expected) <= 3e-6 * std::fabs(expected) && expected != 0.0,
          str(what, " is ", found, ", not ", expected));
}

int num_reductions(std::size_t from) { return count(comm::Operation::all_reduce, comm::Family::tensor_parallel, from); }

// A sharded unit, a unit that is not sharded, a parameter that no unit manages, and the root.
void shard_in_all_ways(const nn::ModulePtr& model, bool original_parameters) {
  flat_shard(model->children[2].module, {.strategy = FlatStrategy::no_shard});
  FlatShardOptions options;
  options.unit_types = {"MLP"};
  options.original_parameters = original_parameters;
  options.ignored_parameters = {model->children[0].module->parameter_slot("weight")->tensor};
  flat_shard(model, options);
}

void require_clipped_as(const nn::ModulePtr& flat, const nn::ModulePtr& plain) {
  const SummonedParameters summoned(flat, {.writeback = false, .gradients = true});
  const auto found = nn::named_parameters(flat), expected = nn::named_parameters(plain);
  require(found.size() == expected.size(), "parameters");
  for (std::size_t i = 0; i < found.size(); ++i)
    require_close(grad(found[i].tensor()), grad(expected[i].tensor()), found[i].path, 1e-6);
}

// All ranks have the same inputs, so the mean of the gradients is that of the plain model.
TEST(FlatClip, NormIsThatOfThePlainModel) {
  for (const int world_size : {1, 2, 3, 4, 8})
    for (const bool original_parameters : {true, false})
      for (const double kind : {1.0, 2.0, 3.0, infinity})
        EXPECT_EQ(run(world_size,
                      [&](int) {
                        const nn::ModulePtr plain = stack(3), flat = stack(3);
                        shard_in_all_ways(flat, original_parameters);
                        const Tensor x = rows(5, {4, 5});
                        for (const nn::ModulePtr& model : {plain, flat}) backward({squares(model, x)});
                        const double expected = norm_by_hand(plain, kind);
                        const std::size_t before = comm::log().size();
                        const Tensor norm = clip_flat_grad_norm(flat, 0.25, kind);
                        require(num_reductions(before) == (world_size > 1 ? 1 : 0), "one all_reduce");
                        require_near(to_doubles(norm)[0], expected, "the norm");
                        std::vector<Tensor> parameters;
                        for (const auto& entry : nn::named_parameters(plain)) parameters.push_back(entry.tensor());
                        optim::clip_grad_norm(parameters, 0.25, kind);
                        require_clipped_as(flat, plain);
                      }),
                  "")
            << world_size << " ranks, kind " << kind << ", original parameters " << original_parameters;
}

// SGD over five iterations, clipped to 0.5; the norms before clipping as PyTorch 2.15 printed them.
TEST(FlatClip, NormsOfTrainingAreThoseOfPyTorch) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  RankContext::current().generator().seed(42);
                  const nn::ModulePtr model = nn::build(
                      "Sequential", {}, {}, {nn::build("MLP", {{17}, {}}, {}), nn::build("MLP", {{17}, {}}, {})});
                  nn::name_parameters(model);
                  flat_shard(model, {.unit_types = {"MLP"}});
                  const auto sgd = optim::make_optimizer(
                      "SGD", {optim::group_of(nn::named_parameters(model), {.lr = 1e-2, .momentum = 0.9})});
                  RankContext::current().generator().seed(static_cast<std::uint64_t>(42 + rank + 1));
                  for (const double expected :
                       {71.97893524169922, 72.04176330566406, 72.68925476074219, 71.75818634033203, 72.8599853515625}) {
                    sgd->zero_grad();
                    backward({squares(model, randn({8, 17}, DType::float32, {}))});
                    require_near(to_doubles(clip_flat_grad_norm(model, 0.5))[0], expected, "the norm");
                    sgd->step();
                  }
                }),
            "");
}

// A unit of one element leaves three of four ranks with nothing. They take part in the reduction all the same.
TEST(FlatClip, RanksWithEmptyStretchesTakePart) {
  EXPECT_EQ(run(4,
                [](int) {
                  RankContext::current().generator().seed(1);
                  const nn::ModulePtr model = nn::build("Linear", {{1, 1}, {{"bias", false}}}, {});
                  nn::name_parameters(model);
                  flat_shard(model);
                  require_near(1.0 + to_doubles(clip_flat_grad_norm(model, 1.0))[0], 1.0, "no gradients: the norm");
                  backward({ops::sum(model->call(full({2, 1}, 3.0, DType::float32, {})).tensor())});
                  require_near(to_doubles(clip_flat_grad_norm(model, 1.0))[0], 6.0, "the norm");
                }),
            "");
}

TEST(FlatClip, ReplicatesAreCountedOnce) {
  EXPECT_EQ(run(4,
                [](int) {
                  const nn::ModulePtr plain = stack(3), hybrid = stack(3), whole = stack(3);
                  flat_shard(hybrid, {.mesh = DeviceMesh({2, 2}, {"replicate", "shard"}),
                                      .strategy = FlatStrategy::hybrid_shard,
                                      .unit_types = {"MLP"}});
                  flat_shard(whole, {.strategy = FlatStrategy::no_shard, .unit_types = {"MLP"}});
                  const Tensor x = rows(5, {4, 5});
                  for (const nn::ModulePtr& model : {plain, hybrid, whole}) backward({squares(model, x)});
                  const double expected = norm_by_hand(plain, 2.0);
                  std::size_t before = comm::log().size();
                  require_near(to_doubles(clip_flat_grad_norm(hybrid, 0.5))[0], expected, "hybrid: the norm");
                  require(num_reductions(before) == 1, "one all_reduce, over the shard axis");
                  before = comm::log().size();
                  require_near(to_doubles(clip_flat_grad_norm(whole, 0.5))[0], expected, "no_shard: the norm");
                  require(num_reductions(before) == 0, "no all_reduce");
                }),
            "");
}

// With tensor parallelism a rank has a stretch of a shard, or of a replica, of each parameter.
TEST(FlatClip, NormIsWholeOnTwoAxes) {
  for (const bool original_parameters : {true, false})
    EXPECT_EQ(run(4,
                  [original_parameters](int) {
                    const DeviceMesh mesh({2, 2}, {"dp", "tp"});
                    const nn::ModulePtr plain = stack(3)->children[1].module, model = stack(3)->children[1].module;
                    tensor_parallel(model, mesh.slice({"tp"}),
                                    {{"in_proj", model->child("in_proj"), Colwise{}},
                                     {"out_proj", model->child("out_proj"), Rowwise{}}});
                    FlatShardOptions options;
                    options.mesh = mesh.slice({"dp"});
                    options.original_parameters = original_parameters;
                    flat_shard(model, options);
                    const Tensor x = rows(5, {4, 5});
                    for (const nn::ModulePtr& one : {plain, model}) backward({squares(one, x)});
                    const std::size_t before = comm::log().size();
                    require_near(to_doubles(clip_flat_grad_norm(model, 0.5))[0], norm_by_hand(plain, 2.0), "the norm");
                    require(num_reductions(before) == 2, "one all_reduce per axis");
                  }),
              "");
}

TEST(FlatClip, RefusesOtherThanTheRoot) {
  EXPECT_EQ(run(2,
                [](int) {
                  const nn::ModulePtr model = stack(3);
                  const std::string message = "should only be called on the root FSDP instance";
                  require(error_of([&] { clip_flat_grad_norm(model, 1.0); }).find(message) != std::string::npos,
                          "a plain module");
                  flat_shard(model, {.unit_types = {"MLP"}});
                  backward({squares(model, rows(5, {4, 5}))});
                  require(error_of([&] { clip_flat_grad_norm(model->children[1].module, 1.0); }).find(message) !=
                              std::string::npos,
                          "a unit below the root");
                  require(
                      error_of([&] { clip_flat_grad_norm(model, -1.0); }).find("max_norm is -1") != std::string::npos,
                      "a negative norm");
                }),
            "");
}

}  // namespace
}  // namespace lockstep::parallel
