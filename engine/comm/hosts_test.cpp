// Ranks on several hosts. A host is a forked process with a world of its own, a link to the others and a ferry; it
// forks its ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include "engine/comm/test_hosts.hpp"

namespace lockstep::comm {
namespace {

using namespace testing_hosts;
using testing_ranks::require;
using testing_ranks::tensor_of;
using testing_ranks::values_of;

std::vector<float> numbers(std::int64_t count, int rank) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>((i * 7919 + static_cast<std::size_t>(rank) * 104729) % 1000) * 0.37f - 91.0f;
  return values;
}

// The pairwise tree of reduce.hpp, by hand.
float tree_sum(const std::vector<std::vector<float>>& inputs, std::size_t i) {
  std::vector<float> level;
  for (const auto& input : inputs) level.push_back(input[i]);
  while (level.size() > 1) {
    std::vector<float> next;
    for (std::size_t k = 0; k + 1 < level.size(); k += 2) next.push_back(level[k] + level[k + 1]);
    if (level.size() % 2 == 1) next.push_back(level.back());
    level = next;
  }
  return level.front();
}

// Every operation on `count` elements per shard, compared with values computed on each rank alone.
void check_all_operations(int rank, int size, std::int64_t count) {
  ProcessGroup& all = world_group();
  std::vector<std::vector<float>> inputs;
  for (int r = 0; r < size; ++r) inputs.push_back(numbers(count * size, r));
  const std::vector<float>& mine = inputs[static_cast<std::size_t>(rank)];
  const auto n = static_cast<std::size_t>(count), total = n * static_cast<std::size_t>(size);
  const auto shard_of = [&](int r, int index) {
    const auto begin = inputs[static_cast<std::size_t>(r)].begin() + static_cast<std::ptrdiff_t>(index * count);
    return std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(n));
  };
  const std::int64_t moved_before = transport_bytes();

  Tensor sum = tensor_of(mine, DType::float32);
  all_reduce(all, sum, ReduceOp::sum);
  std::vector<float> expected(total);
  for (std::size_t i = 0; i < total; ++i) expected[i] = tree_sum(inputs, i);
  require(values_of<float>(sum) == expected, "all_reduce");

  Tensor part = empty({count}, DType::float32, {});
  reduce_scatter(all, part, tensor_of(mine, DType::float32), ReduceOp::sum);
  const auto first = expected.begin() + static_cast<std::ptrdiff_t>(rank * count);
  require(values_of<float>(part) == std::vector<float>(first, first + static_cast<std::ptrdiff_t>(n)),
          "reduce_scatter");

  Tensor gathered = empty({count * size}, DType::float32, {});
  all_gather(all, gathered, tensor_of(shard_of(rank, 0), DType::float32));
  std::vector<float> joined;
  for (int r = 0; r < size; ++r) {
    const std::vector<float> one = shard_of(r, 0);
    joined.insert(joined.end(), one.begin(), one.end());
  }
  require(values_of<float>(gathered) == joined, "all_gather");

  Tensor swapped = empty({count * size}, DType::float32, {});
  all_to_all(all, swapped, tensor_of(mine, DType::float32));
  std::vector<float> columns;
  for (int r = 0; r < size; ++r) {
    const std::vector<float> one = shard_of(r, rank);
    columns.insert(columns.end(), one.begin(), one.end());
  }
  require(values_of<float>(swapped) == columns, "all_to_all");

  Tensor copy = tensor_of(mine, DType::float32);
  broadcast(all, copy, size - 1);
  require(values_of<float>(copy) == inputs.back(), "broadcast");
  const std::int64_t bytes = transport_bytes() - moved_before;
  const std::int64_t counted = 5 * count * size * static_cast<std::int64_t>(sizeof(float));
  require(bytes == counted, str("moved ", bytes, " bytes in place of ", counted));

  const std::vector<std::string> texts = comm::exchange(all, std::string(static_cast<std::size_t>(100000 * rank), 'x'));
  for (int r = 0; r < size; ++r)
    require(texts[static_cast<std::size_t>(r)].size() == static_cast<std::size_t>(100000 * r), "exchange");
  barrier(all);
}

struct Layout {
  const char* name;
  std::vector<int> host_of;
};
void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

class Hosts : public testing::TestWithParam<Layout> {};

TEST_P(Hosts, GiveTheResultsOfOneHost) {
  const auto& host_of = GetParam().host_of;
  const int size = static_cast<int>(host_of.size());
  for (const std::string& failure : run_hosts(host_of, [size](int rank) {
         for (const std::int64_t count : {1, 7, 1000, 3001, 300000}) check_all_operations(rank, size, count);
       }))
    EXPECT_EQ(failure, "");
}

TEST_P(Hosts, NameTheCallsThatDoNotMatch) {
  const auto& host_of = GetParam().host_of;
  for (const std::string& failure : run_hosts(host_of, [](int rank) {
         Tensor x = tensor_of(std::vector<float>(rank == 1 ? 5 : 4), DType::float32);
         all_reduce(world_group(), x, ReduceOp::sum);
       }))
    EXPECT_THAT(failure, testing::AllOf(testing::HasSubstr("do not agree on the number of elements"),
                                        testing::HasSubstr("rank 1 calls all_reduce(sum) of 5 float32")));
}

TEST_P(Hosts, NameTheRankThatEnded) {
  const auto& host_of = GetParam().host_of;
  const std::vector<std::string> failures = run_hosts(host_of, [](int rank) {
    if (rank == 1) throw Error("out of ideas");
    Tensor x = tensor_of(std::vector<float>(4), DType::float32);
    all_reduce(world_group(), x, ReduceOp::sum);
  });
  for (std::size_t rank = 0; rank < failures.size(); ++rank)
    EXPECT_THAT(failures[rank],
                rank == 1 ? testing::HasSubstr("out of ideas") : testing::HasSubstr("rank 1 failed: out of ideas"));
}

TEST_P(Hosts, FindDeadlocks) {
  const auto& host_of = GetParam().host_of;
  const int size = static_cast<int>(host_of.size());
  for (const std::string& failure : run_hosts(host_of, [size](int rank) {
         Tensor x = tensor_of(std::vector<float>(4), DType::float32);
         send(world_group(), x, (rank + 1) % size);
         receive(world_group(), x, (rank + size - 1) % size);
       }))
    EXPECT_THAT(failure, testing::AllOf(testing::HasSubstr("deadlock"), testing::HasSubstr("rank 0 waits for rank 1")));
}

INSTANTIATE_TEST_SUITE_P(, Hosts,
                         testing::Values(Layout{"OneAndOne", {0, 1}}, Layout{"TwoAndTwo", {0, 0, 1, 1}},
                                         Layout{"Interleaved", {0, 1, 0, 1}}, Layout{"ThreeHosts", {0, 0, 1, 2, 2}}),
                         [](const auto& layout) { return std::string(layout.param.name); });

}  // namespace
}  // namespace lockstep::comm
