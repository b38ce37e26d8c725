// Every style, with every placement of inputs and outputs, compared with the plain module: values, gradients,
// collectives of both passes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/parallel/tensor_parallel_testing.hpp"

namespace lockstep::parallel {
namespace {

using layout::Placement;
using layout::replicate;
using layout::shard;
using testing::built;
using testing::Counts;
using testing::require;
using testing::require_close;
using testing::require_counts;
using testing::shard_of;

constexpr Counts none{};
constexpr Counts one_gather{.all_gather = 1};
constexpr Counts one_reduce{.all_reduce = 1};
constexpr Counts one_scatter{.reduce_scatter = 1};
constexpr Counts one_exchange{.all_to_all = 1};

// One call of a styled module.
struct StyledRun {
  std::string name;
  std::string type;  // Linear or Embedding
  Dims weight;       // (out, in) or (rows, columns)
  Style style;
  Dims input;        // global sizes
  Placement given;   // of the input
  Placement result;  // of the output
  Counts forward, backward;
  bool sharded_input = false;
};

nn::ModulePtr module_of(const StyledRun& run, std::uint64_t seed) {
  RankContext::current().generator().seed(seed);
  if (run.type == "Linear") return nn::build("Linear", {{run.weight[1], run.weight[0]}, {}}, {DType::float64, {}});
  return nn::build("Embedding", {{run.weight[0], run.weight[1]}, {}}, {DType::float64, {}});
}

Tensor input_of(const StyledRun& run) {
  if (run.type == "Linear") return testing::random_values(3, run.input);
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < num_elements(run.input); ++i) indices.push_back((i * 5 + 2) % run.weight[0]);
  return from_values(indices, run.input, DType::int64, {});
}

// The gradient of a parameter, full on every rank.
void require_equal_gradients(const nn::ModulePtr& styled, const nn::ModulePtr& plain, const std::string& name) {
  const auto actual = nn::named_parameters(styled), expected = nn::named_parameters(plain);
  require(actual.size() == expected.size(), name);
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const Tensor gradient = grad(actual[i].tensor());
    require(gradient.defined(), str(name, ": no gradient of ", actual[i].path));
    require(*gradient.layout() == *actual[i].tensor().layout(), str(name, ": ", describe_sharded(gradient)));
    require_close(full_tensor(gradient), grad(expected[i].tensor()), str(name, ": gradient of ", actual[i].path));
  }
}

void compare(const DeviceMesh& mesh, const StyledRun& run) {
  const nn::ModulePtr plain = module_of(run, 7), styled = module_of(run, 7);
  tensor_parallel(styled, mesh, {{"", styled, run.style}}, "m");
  const bool floating = run.type == "Linear";
  const Tensor full = input_of(run), x = raw::clone(full);
  const Tensor mine = run.sharded_input ? distribute(full, mesh, {testing::normalized(run.given, full.num_dims())})
                                        : shard_of(full, mesh, run.given);
  for (const Tensor& one : {x, mine})
    if (floating) set_requires_grad(one, true);

  const Tensor expected = plain->call(x).tensor();
  std::size_t position = comm::log().size();
  const Tensor y = styled->call(mine).tensor();
  require_counts(testing::counts_since(position, comm::Phase::forward, "m"), run.forward, run.name + " forward");
  const Placement result = testing::normalized(run.result, expected.num_dims());
  const Tensor local = y.is_sharded() ? local_tensor(y) : y;
  if (y.is_sharded())
    require(y.layout()->placements == Placements{result} && y.layout()->sizes == expected.sizes(),
            str(run.name, ": ", describe_sharded(y)));
  require_close(detach(local), shard_of(expected, mesh, result), run.name);

  const Tensor weights = testing::random_values(11, expected.sizes());
  const Tensor of_mine = shard_of(weights, mesh, result);
  backward({expected}, {weights});
  position = comm::log().size();
  backward({y}, {y.is_sharded() ? make_sharded(of_mine, y.layout()) : of_mine});
  require_counts(testing::counts_since(position, comm::Phase::backward, "m"), run.backward, run.name + " backward");
  require_equal_gradients(styled, plain, run.name);
  if (floating) {
    const Tensor gradient = grad(mine);
    require_close(gradient.is_sharded() ? local_tensor(gradient) : gradient, shard_of(grad(x), mesh, run.given),
                  run.name + ": gradient of the input");
  }
}

void compare_all(int world_size, const std::vector<StyledRun>& runs) {
  EXPECT_EQ(testing::run(world_size,
                         [&](int) {
                           const DeviceMesh mesh = DeviceMesh::world("tp");
                           for (const StyledRun& run : runs) compare(mesh, run);
                         }),
            "")
      << world_size;
}

// Features that nothing divides, and fewer features than ranks.
const Dims weights_of_all_kinds[] = {{8, 12}, {3, 17}, {17, 3}, {1, 2}};

TEST(Colwise, ComputesOutputFeaturesFromAReplicatedInput) {
  for (const int world_size : {2, 3, 4, 5}) {
    std::vector<StyledRun> runs;
    for (const Dims& weight : weights_of_all_kinds) {
      const Dims input = {2, 3, weight[1]};
      runs.push_back({"colwise", "Linear", weight, Colwise{}, input, replicate(), shard(-1), none, one_reduce});
      runs.push_back({"colwise, kept", "Linear", weight, Colwise{.keep_sharded = true}, input, replicate(), shard(2),
                      none, one_reduce});
      runs.push_back({"colwise to replicate", "Linear", weight, Colwise{.output = replicate()}, input, replicate(),
                      replicate(), one_gather, one_reduce});
      runs.push_back({"colwise to Shard(1)",
                      "Linear",
                      weight,
                      Colwise{.output = shard(1), .keep_sharded = true},
                      input,
                      replicate(),
                      shard(1),
                      one_exchange,
                      {.all_reduce = 1, .all_to_all = 1}});
    }
    compare_all(world_size, runs);
  }
}

TEST(Colwise, GathersAShardedInputAndScattersItsGradient) {
  for (const int world_size : {2, 4}) {
    std::vector<StyledRun> runs;
    for (const Dims& weight : weights_of_all_kinds) {
      runs.push_back({"colwise from Shard(0)",
                      "Linear",
                      weight,
                      Colwise{.input = shard(0)},
                      {4, 3, weight[1]},
                      shard(0),
                      shard(-1),
                      one_gather,
                      one_scatter});
      runs.push_back({"colwise from Shard(1)",
                      "Linear",
                      weight,
                      Colwise{.input = shard(1)},
                      {3, 8, weight[1]},
                      shard(1),
                      shard(-1),
                      one_gather,
                      one_scatter});
      runs.push_back({"colwise from features",
                      "Linear",
                      weight,
                      Colwise{.input = shard(-1)},
                      {3, weight[1]},
                      shard(-1),
                      shard(-1),
                      one_gather,
                      one_scatter});
      // A sharded input has its own layout, which may be uneven; `input` is for plain ones.
      runs.push_back({"colwise from a sharded tensor",
                      "Linear",
                      weight,
                      Colwise{},
                      {7, 3, weight[1]},
                      shard(0),
                      shard(-1),
                      one_gather,
                      one_scatter,
                      true});
    }
    compare_all(world_size, runs);
  }
}

TEST(Rowwise, SumsOverInputFeatures) {
  for (const int world_size : {2, 3, 4, 5}) {
    std::vector<StyledRun> runs;
    for (const Dims& weight : weights_of_all_kinds) {
      const Dims input = {2, 3, weight[1]};
      runs.push_back({"rowwise", "Linear", weight, Rowwise{}, input, shard(-1), replicate(), one_reduce, none});
      runs.push_back({"rowwise, kept", "Linear", weight, Rowwise{.keep_sharded = true}, input, shard(2), replicate(),
                      one_reduce, none, true});
      runs.push_back({"rowwise from replicate", "Linear", weight, Rowwise{.input = replicate()}, input, replicate(),
                      replicate(), one_reduce, one_gather});
      runs.push_back({"rowwise to Shard(0)", "Linear", weight, Rowwise{.output = shard(0)}, input, shard(-1), shard(0),
                      one_scatter, one_gather});
      runs.push_back({"rowwise to Shard(1)", "Linear", weight, Rowwise{.output = shard(1), .keep_sharded = true}, input,
                      shard(-1), shard(1), one_scatter, one_gather});
      runs.push_back({"rowwise to features", "Linear", weight, Rowwise{.output = shard(-1)}, input, shard(-1),
                      shard(-1), one_scatter, one_gather});
      runs.push_back({"rowwise from a batch shard",
                      "Linear",
                      weight,
                      Rowwise{},
                      {5, weight[1]},
                      shard(0),
                      replicate(),
                      {.all_reduce = 1, .all_to_all = 1},
                      one_exchange,
                      true});
    }
    compare_all(world_size, runs);
  }
}

TEST(Embeddings, ColwiseKeepsColumnsAndRowwiseSumsRows) {
  for (const int world_size : {2, 3, 4, 5}) {
    std::vector<StyledRun> runs;
    for (const Dims& weight : {Dims{8, 6}, Dims{17, 3}, Dims{2, 5}}) {
      const Dims input = {4, 3};
      runs.push_back({"colwise embedding", "Embedding", weight, Colwise{}, input, replicate(), shard(-1), none, none});
      runs.push_back({"colwise embedding to replicate", "Embedding", weight, Colwise{.output = replicate()}, input,
                      replicate(), replicate(), one_gather, none});
      runs.push_back({"rowwise embedding", "Embedding", weight, Rowwise{.input = replicate()}, input, replicate(),
                      replicate(), one_reduce, none});
      runs.push_back({"rowwise embedding to Shard(1)", "Embedding", weight,
                      Rowwise{.input = replicate(), .output = shard(1)}, input, replicate(), shard(1), one_scatter,
                      one_gather});
    }
    compare_all(world_size, runs);
  }
}

TEST(Embeddings, GatherShardedIndices) {
  compare_all(2, {{"rowwise embedding of shards",
                   "Embedding",
                   {8, 6},
                   Rowwise{.input = shard(0)},
                   {4, 3},
                   shard(0),
                   replicate(),
                   {.all_gather = 1, .all_reduce = 1},
                   none},
                  {"colwise embedding of shards",
                   "Embedding",
                   {8, 6},
                   Colwise{.input = shard(0)},
                   {4, 3},
                   shard(0),
                   shard(-1),
                   one_gather,
                   none}});
}

}  // namespace
}  // namespace lockstep::parallel
