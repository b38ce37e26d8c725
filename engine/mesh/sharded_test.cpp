#include "engine/mesh/sharded.hpp"

#include <functional>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/test_ranks.hpp"
#include "engine/core/error.hpp"
#include "engine/layout/redistribute.hpp"
#include "engine/layout/simulated_ranks.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep {
namespace {

using comm::testing_ranks::Kind;
using comm::testing_ranks::require;
using layout::partial;
using layout::PartialOp;
using layout::replicate;
using layout::shard;
using layout::strided_shard;
using ::testing::Each;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}
void require_error(const std::function<void()>& action, const std::string& fragment) {
  const std::string text = error_of(action);
  require(text.find(fragment) != std::string::npos, str("`", fragment, "` is not in: ", text));
}

double value_at(std::int64_t flat) { return static_cast<double>(flat * 3 + 1); }

Tensor full_of(const Dims& sizes, DType dtype, device::Device at) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < num_elements(sizes); ++i) values.push_back(value_at(i));
  return from_values(values, sizes, dtype, at);
}

// The expected local shard of full_of(sizes), computed from lists of indices.
std::vector<double> expected_shard(const layout::ShardedLayout& layout) {
  const int rank = RankContext::current().rank();
  const auto rows = layout::simulated::held(layout, rank, 0), columns = layout::simulated::held(layout, rank, 1);
  std::vector<double> values;
  for (const std::int64_t row : rows)
    for (const std::int64_t column : columns) values.push_back(value_at(row * layout.sizes[1] + column));
  return values;
}

struct Count {
  int all_gather = 0, all_reduce = 0, reduce_scatter = 0, all_to_all = 0, other = 0;
};
Count count_since(std::size_t position) {
  Count count;
  for (std::size_t i = position; i < comm::log().size(); ++i) {
    const comm::LogEntry& entry = comm::log()[i];
    require(entry.family == comm::Family::tensor_parallel, "the family");
    using comm::Operation;
    ++(entry.operation == Operation::all_gather       ? count.all_gather
       : entry.operation == Operation::all_reduce     ? count.all_reduce
       : entry.operation == Operation::reduce_scatter ? count.reduce_scatter
       : entry.operation == Operation::all_to_all     ? count.all_to_all
                                                      : count.other);
  }
  return count;
}

// Redistributes through random layouts. Compares the shards of each rank with the expected elements, and the
// collectives with the steps.
void walk(const std::vector<int>& mesh_sizes, device::Device at, unsigned seed, int num_steps) {
  const DeviceMesh mesh(mesh_sizes);
  std::mt19937 generator(seed);  // the same on all ranks
  const auto draw = [&](int count) { return static_cast<int>(generator() % static_cast<unsigned>(count)); };
  const Placements kinds = {replicate(),         shard(0),  shard(1), strided_shard(0, 2),
                            strided_shard(1, 6), partial(), partial()};
  int num_checked = 0;
  while (num_checked < num_steps) {
    const Dims sizes{draw(9), draw(9)};
    const Tensor full = full_of(sizes, DType::float64, at);
    Tensor tensor = distribute(full, mesh, Placements(mesh_sizes.size()));
    for (int leg = 0; leg < 6; ++leg) {
      Placements placements;
      for (std::size_t axis = 0; axis < mesh_sizes.size(); ++axis)
        placements.push_back(kinds[static_cast<std::size_t>(draw(static_cast<int>(kinds.size())))]);
      const layout::ShardedLayout to{mesh.shape(), placements, sizes};
      std::vector<layout::RedistributeStep> steps;
      if (error_of([&] { steps = layout::redistribute_steps(*tensor.layout(), to); }) != "no error") continue;
      const std::string what = str(tensor.layout()->text(), " to ", to.text());
      const std::size_t position = comm::log().size();
      tensor = redistribute(tensor, placements);
      require(*tensor.layout() == to, what);
      const layout::simulated::RedistributeCost cost = layout::simulated::cost_of(steps);
      const Count count = count_since(position);
      require(count.all_gather == cost.num_all_gather && count.all_reduce == cost.num_all_reduce &&
                  count.reduce_scatter == cost.num_reduce_scatter && count.all_to_all == cost.num_all_to_all &&
                  count.other == 0,
              str(what, ": other collectives than in the steps"));
      // Partial tensors are compared after their reduction.
      const Tensor reduced = redistribute(tensor, layout::gradient_layout(tensor.layout()));
      const std::vector<double> found = to_doubles(local_tensor(reduced)), expected = expected_shard(to);
      require(found.size() == expected.size(), str(what, ": ", found.size(), " elements"));
      for (std::size_t i = 0; i < found.size(); ++i)
        require(std::fabs(found[i] - expected[i]) < 1e-9, str(what, ": ", found[i], " for ", expected[i]));
      const std::vector<double> all = to_doubles(full_tensor(tensor)), right = to_doubles(full);
      require(all.size() == right.size(), str(what, ": number of elements"));
      for (std::size_t i = 0; i < all.size(); ++i)
        require(std::fabs(all[i] - right[i]) < 1e-9, str(what, ": full tensor"));
      ++num_checked;
    }
  }
  device::synchronize_all();  // the last collective may have no elements, so nothing else waits for it
}

TEST(Sharded, RedistributionsKeepEveryElement) {
  const unsigned seed = 77;
  SCOPED_TRACE(str("seed ", seed));
  for (const std::vector<int>& mesh : {std::vector<int>{4}, {2, 2}, {2, 3}, {2, 1, 3}, {2, 2, 2}}) {
    int ranks = 1;
    for (const int size : mesh) ranks *= size;
    EXPECT_THAT(comm::testing_ranks::run_ranks(ranks, Kind::threads, [&](int) { walk(mesh, {}, seed, 150); }),
                Each(""));
  }
}

TEST(Sharded, RedistributionsWorkAcrossProcessesAndOnADevice) {
  EXPECT_THAT(comm::testing_ranks::run_ranks(4, Kind::processes, [&](int) { walk({2, 2}, {}, 5, 40); }), Each(""));
  EXPECT_THAT(comm::testing_ranks::run_ranks(4, Kind::threads,
                                             [&](int) {
                                               walk({2, 2}, device::device_from_name("sim"), 6, 40);
                                             }),
              Each(""));
}

TEST(Sharded, StridedShardsGatherInTheOrderOfRows) {
  const auto failures = comm::testing_ranks::run_ranks(4, Kind::threads, [](int rank) {
    const DeviceMesh mesh({2, 2}, {"dp", "tp"});
    const Tensor full = full_of({9, 2}, DType::float32, {});
    const Tensor tensor = distribute(full, mesh, {strided_shard(0, 2), shard(0)});
    const std::int64_t rows[] = {3, 2, 2, 2}, first[] = {0, 5, 3, 7};
    require(tensor.sizes() == Dims({rows[rank], 2}), "rows of this rank");
    require(to_doubles(tensor)[0] == value_at(first[rank] * 2), "first row of this rank");
    require(tensor.storage()->bytes() == static_cast<std::size_t>(rows[rank] * 2 * 4), "its own memory");
    const std::size_t position = comm::log().size();
    require(to_doubles(full_tensor(tensor)) == to_doubles(full), "full tensor");
    require(count_since(position).all_gather == 2, "one gather per axis");
    require(to_doubles(local_shard_of(full, *tensor.layout())) == to_doubles(tensor), "local shard");
    // The shard has one range in each half.
    const Tensor gathered = redistribute(tensor, {strided_shard(0, 2), replicate()});
    require(to_doubles(local_shard_of(full, *gathered.layout())) == to_doubles(gathered), "two ranges");
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(Sharded, PartialTensorsReduceWithEveryOperation) {
  const auto failures = comm::testing_ranks::run_ranks(3, Kind::threads, [](int rank) {
    const DeviceMesh mesh({3}, {"tp"});
    const auto reduced = [&](PartialOp op, DType dtype) {
      const Tensor local = from_values(std::vector<double>{rank + 1.0, 5.0 - rank}, {2}, dtype, {});
      const Tensor tensor = make_sharded(local, layout_of_local(local, mesh, {partial(op)}));
      return to_doubles(full_tensor(tensor));
    };
    require(reduced(PartialOp::sum, DType::float32) == std::vector<double>({6, 12}), "sum");
    require(reduced(PartialOp::mean, DType::float32) == std::vector<double>({2, 4}), "mean");
    require(reduced(PartialOp::max, DType::float32) == std::vector<double>({3, 5}), "max");
    require(reduced(PartialOp::min, DType::int64) == std::vector<double>({1, 3}), "min");
    require(reduced(PartialOp::product, DType::float32) == std::vector<double>({6, 60}), "product");
    // From a full tensor to partial and back, including integers, which cannot be divided.
    const Tensor full = from_values(std::vector<double>{7, 8}, {2}, DType::int64, {});
    for (const PartialOp op : {PartialOp::sum, PartialOp::max, PartialOp::product})
      require(to_doubles(full_tensor(distribute(full, mesh, {partial(op)}))) == std::vector<double>({7, 8}),
              "to partial and back");
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(Sharded, LikeKeepsTheLayoutOfTheTensor) {
  const auto failures = comm::testing_ranks::run_ranks(2, Kind::threads, [](int) {
    const DeviceMesh mesh({2}, {"dp"});
    const Tensor tensor = distribute(full_of({3, 4}, DType::float32, {}), mesh, {shard(0)});
    const Tensor local = local_tensor(tensor);
    require(!local.is_sharded() && local.storage() == tensor.storage(), "the local tensor is plain");
    const Tensor scaled = raw::mul(tensor, 2.0);
    require(!scaled.is_sharded(), "the result on the local shard is plain");
    const Tensor like = sharded_like(scaled, tensor);
    require(like.layout() == tensor.layout() && like.storage() == scaled.storage(), "the layout of the tensor");
    require(!scaled.is_sharded(), "the operand does not change");
    require(sharded_like(scaled, local).same_as(scaled), "like a plain tensor: the operand itself");
    require(zeros_like(tensor).layout() == tensor.layout(), "zeros_like");
    require(alias(tensor).layout() == tensor.layout() && !alias(tensor).same_as(tensor), "alias");
    require_error([&] { sharded_like(slice(scaled, 1, 0, 2), tensor); }, "sharded_like: a local shard of");
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(Sharded, RefusesInvalidShardsAndLayouts) {
  const auto failures = comm::testing_ranks::run_ranks(2, Kind::threads, [](int) {
    const DeviceMesh mesh({2}, {"dp"});
    const Tensor full = full_of({3, 4}, DType::float32, {});
    const Tensor tensor = distribute(full, mesh, {shard(0)});
    require(describe_sharded(tensor) == "float32 (3, 4) as (Shard(0)) on dp 2, on cpu", describe_sharded(tensor));
    require(global_sizes(tensor) == Dims({3, 4}), "sizes");
    require_error([&] { distribute(tensor, mesh, {shard(0)}); }, "is sharded already");
    require_error([&] { redistribute(full, {shard(0)}); }, "is a plain tensor");
    require_error([&] { redistribute(tensor, {partial()}); }, "Shard(0) becomes Partial(sum)");
    require_error([&] { redistribute(tensor, {shard(0), shard(1)}); }, "one placement per mesh axis");
    require_error([&] { make_sharded(full, {mesh.shape(), {shard(0)}, {3, 4}}); }, "give the local shard of this rank");
    require_error([&] { local_shard_of(full, {mesh.shape(), {partial()}, {3, 4}}); }, "redistribute it first");
    const Tensor three = full_of({3}, DType::float32, {});
    require(layout_of_local(three, mesh, {shard(0)}).sizes == Dims({6}), "global size from equal shards");
  });
  EXPECT_THAT(failures, Each(""));
}

}  // namespace
}  // namespace lockstep
