// Every collective against a plain reference with the same reduction tree, bit for bit, on ranks that are threads or
// processes.
#include <gtest/gtest.h>

#include "engine/comm/process_group.hpp"
#include "engine/comm/test_ranks.hpp"
#include "engine/comm/test_references.hpp"

namespace lockstep::comm {
namespace {

using namespace testing_ranks;
using namespace testing_references;

// All operations on the world group, with shards of `count` elements.
template <class T>
void check_all(int rank, int size, std::int64_t count, DType dtype, device::Device at) {
  ProcessGroup& group = world_group();
  const std::string where = str(" ", name_of(dtype), " count ", count, " W ", size);
  const auto check = [&](const Tensor& tensor, const std::vector<T>& expected, const std::string& what) {
    require(same_bits(values_of<T>(tensor), expected), what + where);
  };
  const Tensor output = empty({count * size}, dtype, at);
  const Tensor shard = empty({count}, dtype, at);
  const std::vector<T> mine = values_for<T>(rank, count), mine_all = values_for<T>(rank, count * size);
  std::vector<std::vector<T>> each, each_all;
  for (int r = 0; r < size; ++r) {
    each.push_back(values_for<T>(r, count));
    each_all.push_back(values_for<T>(r, count * size));
  }
  std::vector<ReduceOp> ops;
  if (dtype != DType::boolean) ops = {ReduceOp::sum, ReduceOp::product};
  if (is_floating(dtype)) ops.push_back(ReduceOp::mean);
  ops.push_back(ReduceOp::max);
  ops.push_back(ReduceOp::min);
  for (ReduceOp op : ops) {
    const Tensor tensor = tensor_of(mine, dtype, at);
    all_reduce(group, tensor, op);
    check(tensor, reduced(op, each), str("all_reduce ", name_of(op)));
    reduce_scatter(group, shard, tensor_of(mine_all, dtype, at), op);
    check(shard, shard_of(reduced(op, each_all), rank, count), str("reduce_scatter ", name_of(op)));
  }
  all_gather(group, output, tensor_of(mine, dtype, at));
  check(output, concatenated<T>(size, count), "all_gather");

  all_to_all(group, output, tensor_of(mine_all, dtype, at));
  std::vector<T> expected;
  for (int r = 0; r < size; ++r) {
    const std::vector<T> piece = shard_of(each_all[static_cast<std::size_t>(r)], rank, count);
    expected.insert(expected.end(), piece.begin(), piece.end());
  }
  check(output, expected, "all_to_all");

  const int root = size - 1;
  const Tensor sent = tensor_of(mine, dtype, at);
  broadcast(group, sent, root);
  check(sent, each[static_cast<std::size_t>(root)], "broadcast");

  const Tensor collected = empty({count * size}, dtype, at);
  gather(group, rank == root ? collected : Tensor(), tensor_of(mine, dtype, at), root);
  if (rank == root) check(collected, concatenated<T>(size, count), "gather");

  scatter(group, shard, rank == root ? tensor_of(mine_all, dtype, at) : Tensor(), root);
  check(shard, shard_of(each_all[static_cast<std::size_t>(root)], rank, count), "scatter");
}

void check_types(int rank, int size, std::int64_t count, device::Device at = {}) {
  check_all<float>(rank, size, count, DType::float32, at);
  check_all<double>(rank, size, count, DType::float64, at);
  check_all<Half>(rank, size, count, DType::float16, at);
  check_all<BFloat16>(rank, size, count, DType::bfloat16, at);
  check_all<std::int64_t>(rank, size, count, DType::int64, at);
  check_all<std::int32_t>(rank, size, count, DType::int32, at);
  check_all<std::uint8_t>(rank, size, count, DType::boolean, at);
}

void expect_success(const std::vector<std::string>& failures) {
  for (std::size_t rank = 0; rank < failures.size(); ++rank) EXPECT_EQ(failures[rank], "") << "rank " << rank;
}

class EachSize : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(World, EachSize, ::testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 11));

TEST_P(EachSize, ThreadsMatchTheTree) {
  const int size = GetParam();
  expect_success(run_ranks(size, Kind::threads, [&](int rank) {
    for (std::int64_t count : {0, 1, 3, 17, 1000, 4099}) check_types(rank, size, count);
  }));
}

TEST_P(EachSize, ProcessesMatchTheTree) {
  const int size = GetParam();
  expect_success(run_ranks(size, Kind::processes, [&](int rank) {
    for (std::int64_t count : {0, 1, 17, 4099}) check_types(rank, size, count);
  }));
}

// Large enough for several chunks, non-temporal stores and several claiming members: 1 MB and one more element.
TEST_P(EachSize, LargeBuffersMatchTheTree) {
  const int size = GetParam();
  const std::int64_t count = (std::int64_t{1} << 18) + 1;
  std::vector<std::vector<float>> inputs;
  for (int r = 0; r < size; ++r) inputs.push_back(values_for<float>(r, count * size));
  const std::vector<float> sums = reduced(ReduceOp::sum, inputs), means = reduced(ReduceOp::mean, inputs);
  for (const Kind kind : {Kind::threads, Kind::processes}) {
    expect_success(run_ranks(size, kind, [&](int rank) {
      ProcessGroup& group = world_group();
      const std::vector<float>& mine = inputs[static_cast<std::size_t>(rank)];
      const Tensor full = tensor_of(mine, DType::float32);
      const Tensor shard = empty({count}, DType::float32, {});
      reduce_scatter(group, shard, full, ReduceOp::mean);
      require(same_bits(values_of<float>(shard), shard_of(means, rank, count)), "reduce_scatter");
      all_reduce(group, full, ReduceOp::sum);
      require(same_bits(values_of<float>(full), sums), "all_reduce");
      const Tensor output = empty({count * size}, DType::float32, {});
      all_gather(group, output, shard);
      require(same_bits(values_of<float>(output), means), "all_gather");
      all_to_all(group, output, tensor_of(mine, DType::float32));
      std::vector<float> expected;
      for (int r = 0; r < size; ++r) {
        const std::vector<float> piece = shard_of(inputs[static_cast<std::size_t>(r)], rank, count);
        expected.insert(expected.end(), piece.begin(), piece.end());
      }
      require(same_bits(values_of<float>(output), expected), "all_to_all");
      broadcast(group, output, 0);
      expected.clear();
      for (int r = 0; r < size; ++r) {
        const std::vector<float> piece = shard_of(inputs[static_cast<std::size_t>(r)], 0, count);
        expected.insert(expected.end(), piece.begin(), piece.end());
      }
      require(same_bits(values_of<float>(output), expected), "broadcast");
    }));
  }
}

}  // namespace
}  // namespace lockstep::comm
