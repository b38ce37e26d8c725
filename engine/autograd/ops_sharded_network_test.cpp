// Losses over sharded classes, dropout, lookups, batch norm and extremes on sharded operands: bits, random state,
// number of collectives, other types than float64, shards without elements. The placements are tried by
// ops_sharded_registry_test.cpp.
#include <algorithm>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/ops.hpp"
#include "engine/autograd/ops_sharded.hpp"
#include "engine/autograd/ops_sharded_testing.hpp"
#include "engine/tensor/ops.hpp"
#include "engine/tensor/ops_network.hpp"

namespace lockstep {
namespace {

using comm::testing_ranks::Kind;
using comm::testing_ranks::require;
using comm::testing_ranks::run_ranks;
using layout::partial;
using layout::PartialOp;
using layout::replicate;
using layout::shard;
using layout::strided_shard;
using sharded_testing::require_close;
using sharded_testing::require_error;
using sharded_testing::values;
using ::testing::Each;

void require_same_bits(const Tensor& a, const Tensor& b, const std::string& what) {
  require(a.sizes() == b.sizes() && to_bytes(a) == to_bytes(b), str(what, ": bits"));
}
// The shard of the full tensor that this rank must hold.
Tensor shard_of(const Tensor& full, const Tensor& like) {
  return raw::contiguous(local_shard_of(full, *like.layout()));
}

Tensor targets_below(std::int64_t classes, std::int64_t rows) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < rows; ++i) all.push_back((i * 5 + 1) % classes);
  return from_values(all, {rows}, DType::int64, {});
}

// The mean loss in float64 without the engine's operations.
double loss_by_hand(const Tensor& logits, const Tensor& targets) {
  const std::vector<double> x = to_doubles(logits), at = to_doubles(targets);
  const std::size_t classes = x.size() / at.size();
  double sum = 0.0;
  for (std::size_t row = 0; row < at.size(); ++row) {
    const double* const from = x.data() + row * classes;
    const double top = *std::max_element(from, from + classes);
    double exponentials = 0.0;
    for (std::size_t i = 0; i < classes; ++i) exponentials += std::exp(from[i] - top);
    sum += std::log(exponentials) + top - from[static_cast<std::size_t>(at[row])];
  }
  return sum / static_cast<double>(at.size());
}

TEST(OpsSharded, LossOverShardedClassesReducesThreeNumbersPerRow) {
  const auto failures = run_ranks(3, Kind::threads, [](int) {
    const DeviceMesh mesh({3}, {"tp"});
    for (const std::int64_t classes : {2, 7, 9})
      for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16}) {
        const std::string what = str(classes, " classes of ", name_of(dtype));
        const Tensor full = raw::cast(raw::mul(values({5, classes}), 40.0), dtype), at = targets_below(classes, 5);
        const Tensor logits = distribute(full, mesh, {shard(1)}), plain = raw::clone(full);
        set_requires_grad(logits, true);
        set_requires_grad(plain, true);
        std::size_t position = comm::log().size();
        const Tensor loss = ops::cross_entropy(logits, distribute(at, mesh, {replicate()}));
        require(comm::log().size() == position + 3, str(what, ": three collectives"));
        const std::int64_t each = dtype == DType::float64 ? 8 : 4;
        for (std::size_t i = position; i < position + 3; ++i)
          require(comm::log()[i].operation == comm::Operation::all_reduce && comm::log()[i].bytes == 5 * each,
                  str(what, ": one number per row"));
        position = comm::log().size();
        backward({loss});
        backward({ops::cross_entropy(plain, at)});
        require(comm::log().size() == position, str(what, ": backward is local"));
        const double tolerance = dtype == DType::float64 ? 1e-13 : dtype == DType::float32 ? 1e-6 : 8e-3;
        const double expected = loss_by_hand(full, at);
        require(std::fabs(item(loss) - expected) <= tolerance * (1.0 + expected), str(what, ": ", item(loss)));
        const std::vector<double> mine = to_doubles(grad(logits)), all = to_doubles(shard_of(grad(plain), logits));
        for (std::size_t i = 0; i < mine.size(); ++i)
          require(std::fabs(mine[i] - all[i]) <= tolerance, str(what, ": gradient"));
      }
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(OpsSharded, LossOfOneRankHasTheBitsOfThePlainLoss) {
  const auto failures = run_ranks(1, Kind::threads, [](int) {
    const DeviceMesh mesh({1}, {"tp"});
    const Tensor full = raw::cast(raw::mul(values({5, 1300}), 3.0), DType::float32), at = targets_below(1300, 5);
    const Tensor logits = distribute(full, mesh, {shard(1)}), plain = raw::clone(full);
    set_requires_grad(logits, true);
    set_requires_grad(plain, true);
    const Tensor loss = ops::cross_entropy(logits, distribute(at, mesh, {replicate()}));
    const Tensor expected = ops::cross_entropy(plain, at);
    require_same_bits(local_tensor(detach(loss)), detach(expected), "loss");
    backward({loss});
    backward({expected});
    require_same_bits(local_tensor(grad(logits)), grad(plain), "gradient");
  });
  EXPECT_THAT(failures, Each(""));
}

// A shard without a finite logit, as of a masked part of the vocabulary.
TEST(OpsSharded, LossIgnoresClassesOfMinusInfinity) {
  const auto failures = run_ranks(2, Kind::threads, [](int) {
    const DeviceMesh mesh({2}, {"tp"});
    const double none = -std::numeric_limits<double>::infinity();
    const Tensor full =
        from_values(std::vector<double>{1.0, 2.0, none, none, 0.5, 0.5, none, none}, {2, 4}, DType::float32, {});
    const Tensor at = from_values(std::vector<std::int64_t>{1, 0}, {2}, DType::int64, {});
    const Tensor logits = distribute(full, mesh, {shard(1)});
    const Tensor loss = ops::cross_entropy(logits, distribute(at, mesh, {replicate()}));
    const double expected = (std::log(1.0 + std::exp(-1.0)) + std::log(2.0)) / 2.0;
    require(std::fabs(item(loss) - expected) < 1e-6, str(item(loss)));
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(OpsSharded, DropoutHasTheBitsOfTheFullTensor) {
  const auto failures = run_ranks(4, Kind::threads, [](int rank) {
    const DeviceMesh mesh({2, 2}, {"dp", "tp"});
    Generator& generator = RankContext::current().generator();
    for (const Dims& sizes : {Dims{5, 7}, Dims{1, 3}, Dims{9, 2}})
      for (const Placements& placements : {Placements{shard(0), replicate()}, Placements{shard(0), shard(1)},
                                           Placements{strided_shard(0, 2), shard(0)},
                                           Placements{replicate(), replicate()}, Placements{shard(1), shard(1)}})
        for (const double p : {0.3, 1.0}) {
          const std::string what = str(to_text(sizes), " as ", layout::to_text(placements), " on rank ", rank);
          const Tensor full = raw::cast(values(sizes), DType::float32), x = distribute(full, mesh, placements);
          generator.seed(9);
          const Tensor expected = ops::dropout(full, p);
          const Generator::State after = generator.state();
          generator.seed(9);
          const Tensor dropped = ops::dropout(x, p);
          require(generator.state().engine == after.engine, str(what, ": random state"));
          require_same_bits(local_tensor(dropped), shard_of(expected, dropped), what);
        }
    const Tensor x = distribute(values({4}), mesh, {shard(0), replicate()});
    require(ops::dropout(x, 0.5, false).same_as(x), "evaluation");
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(OpsSharded, AttentionOfShardedHeadsHasTheBitsOfAllHeads) {
  const auto failures = run_ranks(4, Kind::threads, [](int) {
    const DeviceMesh mesh({2, 2}, {"dp", "tp"});
    Generator& generator = RankContext::current().generator();
    const Dims sizes{3, 5, 4, 6};
    std::vector<Tensor> plain, sharded;
    for (int i = 0; i < 3; ++i) {
      plain.push_back(raw::cast(values(sizes, 0.2 * (1 + i)), DType::float32));
      sharded.push_back(distribute(plain.back(), mesh, {shard(0), shard(1)}));
      set_requires_grad(plain.back(), true);
      set_requires_grad(sharded.back(), true);
    }
    generator.seed(4);
    const Tensor expected = ops::attention(plain[0], plain[1], plain[2], true, 0.25);
    generator.seed(4);
    const std::size_t position = comm::log().size();
    const Tensor actual = ops::attention(sharded[0], sharded[1], sharded[2], true, 0.25);
    backward({expected}, {raw::cast(values(sizes), DType::float32)});
    backward({actual}, {distribute(raw::cast(values(sizes), DType::float32), mesh, {shard(0), shard(1)})});
    require(comm::log().size() == position, "no communication");
    require_same_bits(raw::contiguous(local_tensor(detach(actual))), shard_of(detach(expected), actual), "result");
    for (std::size_t i = 0; i < 3; ++i)
      require_same_bits(raw::contiguous(local_tensor(grad(sharded[i]))), shard_of(grad(plain[i]), actual), "gradient");
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(OpsSharded, LookupsRefuseIndicesBeyondTheFullTensor) {
  const auto failures = run_ranks(3, Kind::threads, [](int) {
    const DeviceMesh mesh({3}, {"tp"});
    const Tensor rows = distribute(values({4, 2}), mesh, {shard(0)});
    const auto indices = [&mesh](std::int64_t index) {
      return distribute(from_values(std::vector<std::int64_t>{0, index}, {2}, DType::int64, {}), mesh, {replicate()});
    };
    for (const std::int64_t wrong : {std::int64_t{4}, std::int64_t{-1}}) {
      require_error([&] { ops::embedding(rows, indices(wrong)); },
                    str("embedding: index ", wrong, " at position 1 is out of range for a dim of size 4"));
      require_error([&] { ops::index_select(rows, 0, indices(wrong)); }, str("index_select: index ", wrong));
      require_error([&] { ops::cross_entropy(ops::transpose(rows, 0, 1), indices(wrong)); },
                    str("cross_entropy: index ", wrong));
    }
    require_close(full_tensor(ops::embedding(rows, indices(3))),
                  raw::embedding(values({4, 2}), local_tensor(indices(3))), "the last row");
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(OpsSharded, BatchNormMovesTheStatisticsOfItsChannels) {
  const auto failures = run_ranks(2, Kind::threads, [](int) {
    const DeviceMesh mesh({2}, {"tp"});
    const Tensor x = values({4, 3, 2}), start = values({3}, 0.9);
    Tensor mean = raw::clone(start), var = raw::clone(start);
    const Tensor expected = ops::batch_norm(x, nullptr, nullptr, &mean, &var, true);
    const Tensor own_mean = distribute(start, mesh, {shard(0)}), own_var = distribute(start, mesh, {shard(0)});
    const Tensor actual = ops::batch_norm(distribute(x, mesh, {shard(1)}), nullptr, nullptr, &own_mean, &own_var, true);
    require_close(full_tensor(actual), expected, "normed");
    require_close(full_tensor(own_mean), mean, "running mean");
    require_close(full_tensor(own_var), var, "running variance");
    require_error([&] { ops::batch_norm(distribute(x, mesh, {shard(0)}), nullptr, nullptr, nullptr, nullptr, true); },
                  "training needs all rows of the batch");
    const Tensor replicated = distribute(start, mesh, {replicate()});
    require_error(
        [&] { ops::batch_norm(distribute(x, mesh, {shard(1)}), nullptr, nullptr, &replicated, &replicated, true); },
        "shard the running statistics where the channels are");
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(OpsSharded, ExtremesOfShardsWithoutElements) {
  const auto failures = run_ranks(3, Kind::threads, [](int) {
    const DeviceMesh mesh({3}, {"tp"});
    using Wide = std::numeric_limits<std::int64_t>;
    const Tensor whole =
        from_values(std::vector<std::int64_t>{Wide::min(), 5, Wide::max(), -7}, {2, 2}, DType::int64, {});
    for (const DType dtype : {DType::int64, DType::float32, DType::boolean}) {
      const Tensor full = raw::cast(whole, dtype), x = distribute(full, mesh, {shard(0)});  // the last rank has no row
      const Tensor largest = ops::max(x, 0), smallest = ops::min(x, 0, true);
      require(largest.layout()->placements == Placements{partial(PartialOp::max)}, "partial");
      require_same_bits(full_tensor(largest), raw::max(full, 0), str("max of ", name_of(dtype)));
      require_same_bits(full_tensor(smallest), raw::min(full, 0, true), str("min of ", name_of(dtype)));
    }
    require_error([&] { ops::argmax(distribute(whole, mesh, {shard(0)}), 0); }, "argmax: along dim 0");
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(OpsSharded, SplitIntoPartsWithLayouts) {
  const auto failures = run_ranks(2, Kind::threads, [](int) {
    const DeviceMesh mesh({2}, {"tp"});
    const Tensor full = values({3, 7}), x = distribute(full, mesh, {shard(0)});
    const std::vector<Tensor> parts = ops::split(x, 3, 1), chunks = ops::chunk(x, 2, -1);
    require(parts.size() == 3 && chunks.size() == 2, "counts");
    require_close(full_tensor(parts[2]), raw::contiguous(slice(full, 1, 6, 7)), "the last part");
    require_close(full_tensor(chunks[1]), raw::contiguous(slice(full, 1, 4, 7)), "the last chunk");
    require_error([&] { ops::chunk(x, 2, 0); }, "chunk: along dim 0 of (3, 7) as (Shard(0)) on tp 2");
    require(ops::split(x, 3, 0).size() == 1, "one part of all rows");
    // A row is added to each shard in place.
    const Tensor row = values({7}, 0.4), changed = distribute(full, mesh, {shard(0)});
    ops::add_(changed, distribute(row, mesh, {replicate()}));
    require_close(full_tensor(changed), raw::add(full, row), "a row in place");
    require_error([&] { ops::add_(changed, distribute(row, mesh, {shard(0)})); }, "add_");
    require_error([&] { ops::add_(changed, distribute(values({3, 1}), mesh, {replicate()})); }, "add_");
  });
  EXPECT_THAT(failures, Each(""));
}

}  // namespace
}  // namespace lockstep
