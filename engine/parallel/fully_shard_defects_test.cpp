// The seeded defects of the reduction have the effects that their names state, on 1-d and 2-d meshes.
#include <gtest/gtest.h>

#include "engine/mesh/sharded.hpp"
#include "engine/parallel/fully_shard.hpp"
#include "engine/parallel/test_support.hpp"

namespace lockstep::parallel {
namespace {

using namespace testing;

constexpr int world_size = 4;

// The gradient of the last bias of Net, for a loss that sums the outputs of three rows per rank: 3 on every rank, so
// the mean is 3. Returns the values of the local shards of all ranks.
std::vector<double> last_bias_gradients(const std::vector<int>& mesh_sizes, Defect defect) {
  std::vector<std::vector<double>> of_ranks(world_size);
  arm_defect(defect);
  const std::string failure = run(world_size, [&](int rank) {
    const nn::ModulePtr model = built("Net", 5);
    FullyShardOptions options;
    options.mesh =
        mesh_sizes.size() == 1 ? DeviceMesh(mesh_sizes, {"shard"}) : DeviceMesh(mesh_sizes, {"replicate", "shard"});
    fully_shard({model}, options);
    backward({ops::sum(model->call(rows(static_cast<std::uint64_t>(rank), {3, 2})).tensor())});
    of_ranks[static_cast<std::size_t>(rank)] =
        to_doubles(local_tensor(grad(nn::named_parameters(model).back().tensor())));
  });
  arm_defect(Defect::none);
  EXPECT_EQ(failure, "");
  std::vector<double> all;
  for (const std::vector<double>& values : of_ranks) all.insert(all.end(), values.begin(), values.end());
  return all;
}

struct Case {
  Defect defect;
  double on_one_axis, on_two;  // the gradient on a mesh of 4 shards, and of 2 replicas of 2 shards
};

TEST(FullyShardDefects, DivideAndSumWrongly) {
  using enum Defect;
  for (const Case& one :
       {Case{none, 3.0, 3.0}, Case{shard_no_division, 12.0, 12.0}, Case{shard_divides_twice, 0.75, 0.75},
        Case{shard_divides_by_shard_axis, 3.0, 6.0}, Case{shard_all_reduce_left_out, 3.0, 1.5}}) {
    const int number = static_cast<int>(one.defect);
    EXPECT_EQ(last_bias_gradients({4}, one.defect), std::vector<double>(2, one.on_one_axis)) << number;
    EXPECT_EQ(last_bias_gradients({2, 2}, one.defect), std::vector<double>(4, one.on_two)) << number;
  }
}

}  // namespace
}  // namespace lockstep::parallel
