// Sequence parallelism, prepared inputs and outputs, modules that are called several times or recomputed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/nn/checkpoint.hpp"
#include "engine/nn/models.hpp"
#include "engine/parallel/activation_checkpoint.hpp"
#include "engine/parallel/tensor_parallel_testing.hpp"

namespace lockstep::parallel {
namespace {

using comm::Phase;
using layout::replicate;
using layout::shard;
using nn::Inputs;
using nn::ModulePtr;
using testing::counts_since;
using testing::error_of;
using ::testing::HasSubstr;
using testing::require;
using testing::require_close;
using testing::require_counts;
using testing::shard_of;

ModulePtr norm_of(const char* type, std::int64_t dim) {
  const ModulePtr norm = nn::build(type, {{dim}, {}}, {DType::float64, {}});
  const NoGrad no_grad;  // other values than ones and zeros
  for (const nn::NamedParameter& parameter : nn::named_parameters(norm))
    raw::copy_(parameter.tensor(), testing::random_values(5, parameter.tensor().sizes()));
  return norm;
}

// A norm over shards of the sequence, of uneven sizes and with fewer positions than ranks.
TEST(SequenceParallelNorm, HasTheGradientOfAllPositionsOnEveryRank) {
  for (const int world_size : {2, 3, 4})
    for (const char* type : {"LayerNorm", "RMSNorm"})
      for (const std::int64_t length : {8, 17, 3})
        EXPECT_EQ(testing::run(world_size,
                               [&](int rank) {
                                 const DeviceMesh mesh = DeviceMesh::world("tp");
                                 const ModulePtr plain = norm_of(type, 6), styled = norm_of(type, 6);
                                 tensor_parallel(styled, mesh, {{"", styled, SequenceParallel{}}}, "m");
                                 const Tensor full = testing::random_values(3, {2, length, 6});
                                 const Tensor x = raw::clone(full), mine = distribute(full, mesh, {shard(1)});
                                 set_requires_grad(x, true);
                                 set_requires_grad(mine, true);
                                 const Tensor expected = plain->call(x).tensor();
                                 std::size_t position = comm::log().size();
                                 const Tensor y = styled->call(mine).tensor();
                                 require_counts(counts_since(position, Phase::forward, "m"), {}, "forward");
                                 require(y.is_sharded() && y.layout()->placements == Placements{shard(1)}, "output");
                                 require_close(full_tensor(detach(y)), expected, "values");
                                 const Tensor weights = testing::random_values(11, full.sizes());
                                 backward({expected}, {weights});
                                 position = comm::log().size();
                                 backward({y}, {distribute(weights, mesh, {shard(1)})});
                                 const auto parameters = nn::named_parameters(styled);
                                 require_counts(counts_since(position, Phase::backward, "m"),
                                                {.all_reduce = static_cast<int>(parameters.size())}, "backward");
                                 const auto of_plain = nn::named_parameters(plain);
                                 for (std::size_t i = 0; i < parameters.size(); ++i)
                                   require_close(local_tensor(grad(parameters[i].tensor())), grad(of_plain[i].tensor()),
                                                 str("gradient on rank ", rank));
                                 require_close(full_tensor(grad(mine)), grad(x), "gradient of the input");
                               }),
                  "")
            << type << " " << length << " on " << world_size;
}

TEST(SequenceParallelNorm, TakesPlainShardsAndGivesThemOnRequest) {
  EXPECT_EQ(testing::run(
                2,
                [](int) {
                  const DeviceMesh mesh = DeviceMesh::world("tp");
                  const ModulePtr plain = norm_of("LayerNorm", 6), styled = norm_of("LayerNorm", 6);
                  tensor_parallel(styled, mesh, {{"", styled, SequenceParallel{.dim = 0, .keep_sharded = false}}}, "m");
                  const Tensor x = testing::random_values(3, {4, 6});
                  const Tensor y = styled->call(shard_of(x, mesh, shard(0))).tensor();
                  require(!y.is_sharded(), "keeps sharded");
                  require_close(detach(y), shard_of(plain->call(x).tensor(), mesh, shard(0)), "values");
                  // A sharded input in another layout is redistributed.
                  const std::size_t position = comm::log().size();
                  styled->call(distribute(x, mesh, {shard(1)}));
                  require_counts(counts_since(position, Phase::forward, "m"), {.all_to_all = 1}, "exchange");
                }),
            "");
}

// Norm used k times in one forward: the gradients of all uses are summed before one all-reduce per parameter.
TEST(SequenceParallelNorm, ReducesOncePerBackwardHoweverOftenItIsCalled) {
  EXPECT_EQ(testing::run(3,
                         [](int) {
                           const DeviceMesh mesh = DeviceMesh::world("tp");
                           const ModulePtr plain = norm_of("LayerNorm", 6), styled = norm_of("LayerNorm", 6);
                           tensor_parallel(styled, mesh, {{"", styled, SequenceParallel{}}}, "m");
                           const Tensor x = testing::random_values(3, {2, 7, 6});
                           const auto thrice = [](const ModulePtr& m, const Tensor& input) {
                             const Tensor once = m->call(input).tensor();
                             return m->call(ops::add(m->call(once).tensor(), once)).tensor();
                           };
                           const Tensor expected = thrice(plain, x),
                                        y = thrice(styled, distribute(x, mesh, {shard(1)}));
                           const Tensor weights = testing::random_values(11, x.sizes());
                           backward({expected}, {weights});
                           const std::size_t position = comm::log().size();
                           backward({y}, {distribute(weights, mesh, {shard(1)})});
                           require_counts(counts_since(position, Phase::backward, "m"), {.all_reduce = 2}, "backward");
                           for (std::size_t i = 0; i < 2; ++i)
                             require_close(local_tensor(grad(styled->parameters[i].tensor)),
                                           grad(plain->parameters[i].tensor), "gradient");
                         }),
            "");
}

// ---- prepare_input, prepare_output ----
ModulePtr two_inputs() {
  return std::make_shared<nn::Composed>("Two", [](nn::Composed&, const Inputs& in) -> nn::Structure {
    const Tensor scale = in.named.empty() ? Tensor() : in.named[0].second.tensor();
    const Tensor x = in.positional[0].tensor(), y = in.positional[1].tensor();
    const Tensor sum = ops::add(x, y);
    return nn::Structure::list({scale.defined() ? ops::mul(sum, scale) : sum, x});
  });
}

TEST(PrepareInput, RedistributesPositionalAndNamedInputs) {
  EXPECT_EQ(
      testing::run(
          2,
          [](int) {
            const DeviceMesh mesh = DeviceMesh::world("tp");
            const ModulePtr module = two_inputs();
            PrepareInput style{.positional = {Conversion{shard(0), replicate()}, Conversion{replicate(), replicate()}},
                               .named = {{"scale", {shard(0), replicate()}}}};
            tensor_parallel(module, mesh, {{"", module, style}}, "m");
            const Tensor x = testing::random_values(1, {4, 3}), y = testing::random_values(2, {4, 3}),
                         scale = testing::random_values(4, {4, 3});
            const Tensor mine = shard_of(x, mesh, shard(0));
            set_requires_grad(mine, true);
            std::size_t position = comm::log().size();
            const nn::Structure out = module->call(Inputs{{mine, y}, {{"scale", shard_of(scale, mesh, shard(0))}}});
            require_counts(counts_since(position, Phase::forward, "m"), {.all_gather = 2}, "forward");
            const Tensor product = out.items()[0].tensor();
            require(product.is_sharded(), "inputs become sharded tensors");
            require_close(detach(ops::to_local(product)), raw::mul(raw::add(x, y), scale), "values");
            position = comm::log().size();
            backward({ops::sum(ops::full_tensor(product))});
            require_counts(counts_since(position, Phase::backward, "m"), {}, "backward is a slice");
            require_close(grad(mine), shard_of(scale, mesh, shard(0)), "gradient");
            // The number of positional inputs must be that of the placements.
            require(error_of([&] {
                      module->call(Inputs{{mine}, {}});
                    }).find("module inputs and input_layouts should have same length! m gets 1") != std::string::npos,
                    "length");
          }),
      "");
}

TEST(PrepareInput, LeavesInputsWithoutPlacementAlone) {
  EXPECT_EQ(testing::run(2,
                         [](int) {
                           const DeviceMesh mesh = DeviceMesh::world("tp");
                           const ModulePtr module = two_inputs();
                           tensor_parallel(module, mesh,
                                           {{"", module,
                                             PrepareInput{.positional = {Conversion{shard(0), replicate()}, {}},
                                                          .named = {},
                                                          .keep_sharded = false}}},
                                           "m");
                           const Tensor x = testing::random_values(1, {4, 3}), y = testing::random_values(2, {4, 3});
                           const nn::Structure out = module->call(Inputs{{shard_of(x, mesh, shard(0)), y}, {}});
                           require(!out.items()[0].tensor().is_sharded(), "plain tensors");
                           require_close(out.items()[0].tensor(), raw::add(x, y), "values");
                         }),
            "");
}

TEST(PrepareOutput, RedistributesEachItemOfAList) {
  EXPECT_EQ(testing::run(2,
                         [](int) {
                           const DeviceMesh mesh = DeviceMesh::world("tp");
                           const ModulePtr module = two_inputs();
                           const PrepareOutput style{
                               .outputs = {Conversion{replicate(), shard(1)}, Conversion{shard(0), replicate()}}};
                           tensor_parallel(module, mesh, {{"", module, style}}, "m");
                           const Tensor x = testing::random_values(1, {4, 3}), y = testing::random_values(2, {4, 3});
                           const std::size_t position = comm::log().size();
                           const nn::Structure out = module->call(Inputs{{x, y}, {}});
                           require_counts(counts_since(position, Phase::forward, "m"), {.all_gather = 1}, "forward");
                           require_close(out.items()[0].tensor(), shard_of(raw::add(x, y), mesh, shard(1)), "first");
                           require(out.items()[1].tensor().sizes() == Dims({8, 3}), "second");
                           const std::string error = error_of([&] {
                             const ModulePtr other = testing::built("Linear", 1, {{4, 4}, {}});
                             tensor_parallel(other, mesh, {{"", other, style}}, "o");
                             other->call(testing::rows(1, {2, 4}));
                           });
                           require(error.find("module outputs and output_layouts should have same length! o gives 1") !=
                                       std::string::npos,
                                   error);
                         }),
            "");
}

// ---- recomputation ----
enum class Region { inside, composable, wrapper };

// Two layers, rowwise after colwise, between sharded sequences. The checkpoint covers the second, the model or none.
void compare_recomputed(Region region) {
  const DeviceMesh mesh = DeviceMesh::world("tp");
  const auto build = [] {
    RankContext::current().generator().seed(9);
    return nn::build("Sequential", {}, {DType::float64, {}},
                     {nn::build("Linear", {{6, 5}, {}}, {DType::float64, {}}), nn::build("ReLU", {}, {}),
                      nn::build("Linear", {{5, 6}, {}}, {DType::float64, {}})});
  };
  const ModulePtr plain = build(), styled = build();
  const ModulePtr first = styled->child("0"), last = styled->child("2");
  if (region == Region::inside) activation_checkpoint(last);
  tensor_parallel(styled, mesh, {{"0", first, Colwise{.input = shard(0)}}, {"2", last, Rowwise{.output = shard(0)}}},
                  "m");
  if (region == Region::composable) activation_checkpoint(styled);
  if (region == Region::wrapper) activation_checkpoint(styled, {.form = CheckpointForm::wrapper});
  const Tensor full = testing::random_values(3, {4, 6}), weights = testing::random_values(4, {4, 6});
  const Tensor x = raw::clone(full), mine = shard_of(full, mesh, shard(0));
  set_requires_grad(x, true);
  set_requires_grad(mine, true);
  backward({plain->call(x).tensor()}, {weights});
  const Tensor y = styled->call(mine).tensor();
  const std::size_t position = comm::log().size();
  backward({y}, {shard_of(weights, mesh, shard(0))});
  int gathers = 0, scatters = 0;
  for (std::size_t i = position; i < comm::log().size(); ++i) {
    const comm::LogEntry& entry = comm::log()[i];
    require(entry.phase == Phase::backward && entry.owner.starts_with("m."), entry.owner);
    gathers += entry.operation == comm::Operation::all_gather;
    scatters += entry.operation == comm::Operation::reduce_scatter;
  }
  // A region around the first layer gathers its input again; it ends before the reduce-scatter of the second.
  require(gathers == (region == Region::inside ? 1 : 2) && scatters == 1, str(gathers, " and ", scatters));
  const auto actual = nn::named_parameters(styled), expected = nn::named_parameters(plain);
  for (std::size_t i = 0; i < actual.size(); ++i)
    require_close(full_tensor(grad(actual[i].tensor())), grad(expected[i].tensor()), actual[i].path);
  require_close(grad(mine), shard_of(grad(x), mesh, shard(0)), "gradient of the input");
}

TEST(TensorParallelRecomputed, GivesTheGradientsOfThePlainModel) {
  for (const Region region : {Region::inside, Region::composable, Region::wrapper})
    EXPECT_EQ(testing::run(2, [&](int) { compare_recomputed(region); }), "") << static_cast<int>(region);
}

}  // namespace
}  // namespace lockstep::parallel
