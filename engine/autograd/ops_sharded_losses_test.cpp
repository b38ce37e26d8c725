// Losses over sharded classes with each reduction, class weights and ignored rows: against the loss in float64 by hand,
// with the number and the bytes of the collectives.
#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/ops.hpp"
#include "engine/autograd/ops_sharded.hpp"
#include "engine/autograd/ops_sharded_testing.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep {
namespace {

using comm::testing_ranks::Kind;
using comm::testing_ranks::require;
using comm::testing_ranks::run_ranks;
using layout::partial;
using layout::replicate;
using layout::shard;
using layout::strided_shard;
using sharded_testing::require_close;
using sharded_testing::require_error;
using sharded_testing::values;
using ::testing::Each;

constexpr std::int64_t ignored = -7;

Tensor targets_for(const Dims& rows, std::int64_t classes, bool ignores) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < num_elements(rows); ++i)
    all.push_back(ignores && i % 4 == 2 ? ignored : (i * 5 + 1) % classes);
  return from_values(all, rows, DType::int64, {});
}

// Losses and gradients in float64 without the engine's operations. The result has the gradient `grad` for each element.
struct ByHand {
  std::vector<double> loss, gradient;
};
ByHand by_hand(const Tensor& logits, const Tensor& targets, const Tensor& weight, Reduction reduction, double grad) {
  const std::vector<double> x = to_doubles(logits), at = to_doubles(targets);
  const std::vector<double> weights = weight.defined() ? to_doubles(weight) : std::vector<double>();
  const std::size_t classes = x.size() / at.size();
  ByHand made{{}, std::vector<double>(x.size(), 0.0)};
  std::vector<double> factors;
  double total = 0.0, sum = 0.0;
  for (std::size_t row = 0; row < at.size(); ++row) {
    const bool counts = at[row] >= 0.0;
    const double own = !counts ? 0.0 : weights.empty() ? 1.0 : weights[static_cast<std::size_t>(at[row])];
    double exponentials = 0.0;
    for (std::size_t i = 0; i < classes; ++i) exponentials += std::exp(x[row * classes + i]);
    const double picked = counts ? x[row * classes + static_cast<std::size_t>(at[row])] : 0.0;
    made.loss.push_back(own * (std::log(exponentials) - picked));
    sum += made.loss.back();
    total += own;
    factors.push_back(own);
    for (std::size_t i = 0; i < classes; ++i)
      made.gradient[row * classes + i] =
          std::exp(x[row * classes + i]) / exponentials - (static_cast<double>(i) == at[row] ? 1.0 : 0.0);
  }
  if (reduction != Reduction::none) made.loss = {reduction == Reduction::sum ? sum : sum / total};
  for (std::size_t i = 0; i < x.size(); ++i)
    made.gradient[i] *= grad * factors[i / classes] / (reduction == Reduction::mean ? total : 1.0);
  return made;
}

struct Setting {
  Placements logits, targets, weight;  // without placements: no weight
  bool ignores = false;
  // Per axis whether it shards rows or classes.
  int num_axes_of_classes = 0, num_axes_of_rows = 0;
};

void check(const DeviceMesh& mesh, const Dims& rows, std::int64_t classes, const Setting& setting) {
  Dims sizes = rows;
  sizes.push_back(classes);
  const Tensor full = raw::mul(values(sizes), 1.5), at = targets_for(rows, classes, setting.ignores);
  const Tensor weight = setting.weight.empty() ? Tensor() : values({classes}, 0.6);
  for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    const std::string what =
        str(to_text(sizes), " as ", layout::to_text(setting.logits), ", weight as ", layout::to_text(setting.weight),
            setting.ignores ? ", ignoring, " : ", ", name_of(reduction));
    const Tensor logits = distribute(full, mesh, setting.logits);
    set_requires_grad(logits, true);
    LossOptions options{.reduction = reduction};
    if (weight.defined()) options.weight = distribute(weight, mesh, setting.weight);
    if (setting.ignores) options.ignore_index = ignored;
    const Tensor targets = distribute(at, mesh, setting.targets);
    std::size_t position = comm::log().size();
    const Tensor loss = ops::cross_entropy(logits, targets, options);
    const bool has_total = reduction == Reduction::mean && (weight.defined() || setting.ignores);
    const int wanted = 3 * setting.num_axes_of_classes + (has_total ? setting.num_axes_of_rows : 0);
    require(static_cast<int>(comm::log().size() - position) == wanted,
            str(what, ": ", comm::log().size() - position, " collectives"));
    for (std::size_t i = position; i < comm::log().size(); ++i)
      require(comm::log()[i].operation == comm::Operation::all_reduce, str(what, ": other collectives"));
    for (std::size_t i = 0; i < setting.logits.size(); ++i) {
      const bool by_rows = setting.targets[i].is_shard();
      require(loss.layout()->placements[i] == (!by_rows                       ? replicate()
                                               : reduction == Reduction::none ? setting.targets[i]
                                                                              : partial()),
              str(what, ": ", layout::to_text(loss.layout()->placements)));
    }
    position = comm::log().size();
    const LayoutPtr of_gradient = layout::gradient_layout(loss.layout());
    backward({loss}, {distribute(lockstep::full(loss.layout()->sizes, 2.0, DType::float64, {}), mesh,
                                 of_gradient->placements)});
    require(comm::log().size() == position, str(what, ": backward is local"));
    const ByHand expected = by_hand(full, at, weight, reduction, 2.0);
    require_close(full_tensor(detach(loss)), from_values(expected.loss, loss.layout()->sizes, DType::float64, {}),
                  str(what, ": loss"));
    require_close(full_tensor(grad(logits)), from_values(expected.gradient, sizes, DType::float64, {}),
                  str(what, ": gradient"));
  }
}

TEST(ShardedLosses, AgreeWithTheLossByHandOnOneAxis) {
  for (const int num_ranks : {2, 3}) {
    const auto failures = run_ranks(num_ranks, Kind::threads, [num_ranks](int) {
      const DeviceMesh mesh({num_ranks}, {"tp"});
      for (const Dims& rows : {Dims{5}, Dims{2, 3}, Dims{2, 1, 3}})
        for (const std::int64_t classes : {2, 7, 9})
          for (const bool ignores : {false, true}) {
            const int last = rows.size();
            for (const Placements& weight : {Placements{}, Placements{replicate()}, Placements{shard(0)}})
              check(mesh, rows, classes, {{shard(last)}, {replicate()}, weight, ignores, 1, 0});
            for (int dim = 0; dim < last; ++dim)
              for (const Placements& weight : {Placements{}, Placements{replicate()}})
                check(mesh, rows, classes, {{shard(dim)}, {shard(dim)}, weight, ignores, 0, 1});
            check(mesh, rows, classes, {{replicate()}, {replicate()}, {replicate()}, ignores, 0, 0});
          }
    });
    EXPECT_THAT(failures, Each(""));
  }
}

TEST(ShardedLosses, AgreeWithTheLossByHandOnTwoAxes) {
  const auto failures = run_ranks(4, Kind::threads, [](int) {
    const DeviceMesh mesh({2, 2}, {"dp", "tp"});
    const Placements whole = {replicate(), replicate()};
    for (const bool ignores : {false, true}) {
      for (const Placements& weight : {Placements{}, whole, Placements{replicate(), shard(0)}}) {
        check(mesh, {5}, 7, {{shard(0), shard(1)}, {shard(0), replicate()}, weight, ignores, 1, 1});
        check(mesh, {2, 3}, 7, {{shard(1), shard(2)}, {shard(1), replicate()}, weight, ignores, 1, 1});
        check(mesh, {2, 3}, 7, {{replicate(), shard(2)}, whole, weight, ignores, 1, 0});
      }
      for (const Placements& weight : {Placements{}, whole, Placements{shard(0), shard(0)}})
        check(mesh, {3}, 9, {{shard(1), shard(1)}, whole, weight, ignores, 2, 0});
      // Pieces of the classes in strided order.
      const Placements strided = {strided_shard(1, 2), shard(1)}, of_weight = {strided_shard(0, 2), shard(0)};
      for (const Placements& weight : {Placements{}, whole, of_weight})
        check(mesh, {3}, 9, {strided, whole, weight, ignores, 2, 0});
      check(mesh, {6, 2}, 5, {{shard(0), shard(0)}, {shard(0), shard(0)}, whole, ignores, 0, 2});
    }
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(ShardedLosses, SendWeightsOnlyIfNoRankHasAll) {
  const auto failures = run_ranks(2, Kind::threads, [](int) {
    const DeviceMesh mesh({2}, {"tp"});
    const Tensor logits = distribute(values({5, 7}), mesh, {shard(1)});
    const Tensor targets = distribute(targets_for({5}, 7, false), mesh, {replicate()});
    for (const bool shards : {false, true}) {
      const Tensor weight = distribute(values({7}), mesh, {shards ? shard(0) : replicate()});
      const std::size_t position = comm::log().size();
      ops::cross_entropy(logits, targets, {.weight = weight});
      require(comm::log().size() == position + 3, "three collectives");
      for (std::size_t i = 0; i < 3; ++i) {
        const std::int64_t numbers = shards && i == 2 ? 10 : 5;
        require(comm::log()[position + i].bytes == numbers * 8,
                str("collective ", i, ": ", comm::log()[position + i].bytes));
      }
    }
  });
  EXPECT_THAT(failures, Each(""));
}

// 16-bit logits and weights: sums in float32, results rounded once.
TEST(ShardedLosses, AgreeWithTheLossByHandInOtherTypes) {
  const auto failures = run_ranks(3, Kind::threads, [](int) {
    const DeviceMesh mesh({3}, {"tp"});
    const Tensor at = targets_for({2, 3}, 7, true);
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16})
      for (const bool shards : {false, true})
        for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
          const std::string what = str(name_of(dtype), ", ", name_of(reduction), shards ? ", sharded weights" : "");
          const Tensor full = raw::cast(values({2, 3, 7}), dtype), weight = raw::cast(values({7}, 0.6), dtype);
          const Tensor logits = distribute(full, mesh, {shard(2)});
          set_requires_grad(logits, true);
          const Tensor loss = ops::cross_entropy(logits, distribute(at, mesh, {replicate()}),
                                                 {.reduction = reduction,
                                                  .weight = distribute(weight, mesh, {shards ? shard(0) : replicate()}),
                                                  .ignore_index = ignored});
          require(loss.dtype() == dtype, what);
          const Tensor ones = lockstep::full(loss.sizes(), 1.0, dtype, {});
          backward({loss}, {distribute(ones, mesh, {replicate()})});
          const ByHand expected = by_hand(full, at, weight, reduction, 1.0);
          const double unit = dtype == DType::float32 ? 1e-6 : dtype == DType::bfloat16 ? 0x1p-8 : 0x1p-11;
          const auto near = [&](const Tensor& tensor, const std::vector<double>& wanted, const char* of) {
            const std::vector<double> got = to_doubles(full_tensor(tensor));
            require(got.size() == wanted.size(), str(what, of));
            for (std::size_t i = 0; i < got.size(); ++i)
              require(std::fabs(got[i] - wanted[i]) <= unit * (0.01 + std::fabs(wanted[i])),
                      str(what, of, got[i], " for ", wanted[i]));
          };
          near(detach(loss), expected.loss, ": loss ");
          near(grad(logits), expected.gradient, ": gradient ");
        }
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(ShardedLosses, OfOneRankHaveTheBitsOfPlainLosses) {
  const auto failures = run_ranks(1, Kind::threads, [](int) {
    const DeviceMesh mesh({1}, {"tp"});
    const Tensor full = raw::cast(raw::mul(values({5, 1300}), 3.0), DType::float32);
    const Tensor at = targets_for({5}, 1300, true), weight = raw::cast(values({1300}), DType::float32);
    for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none})
      for (const Tensor& given : {Tensor(), weight}) {
        const Tensor logits = distribute(full, mesh, {shard(1)}), plain = raw::clone(full);
        set_requires_grad(logits, true);
        set_requires_grad(plain, true);
        LossOptions options{.reduction = reduction, .weight = given, .ignore_index = ignored};
        const Tensor expected = ops::cross_entropy(plain, at, options);
        if (given.defined()) options.weight = distribute(given, mesh, {shard(0)});
        const Tensor loss = ops::cross_entropy(logits, distribute(at, mesh, {replicate()}), options);
        const std::string what = str(name_of(reduction), given.defined() ? " weighted" : "");
        require(to_bytes(local_tensor(detach(loss))) == to_bytes(detach(expected)), str(what, ": loss"));
        const Tensor ones = lockstep::full(expected.sizes(), 1.0, DType::float32, {});
        backward({loss}, {distribute(ones, mesh, {replicate()})});
        backward({expected}, {ones});
        require(to_bytes(local_tensor(grad(logits))) == to_bytes(grad(plain)), str(what, ": gradient"));
      }
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(ShardedLosses, RefuseOtherDims) {
  const auto failures = run_ranks(2, Kind::threads, [](int) {
    const DeviceMesh mesh({2}, {"tp"});
    const Tensor targets = distribute(targets_for({2, 6}, 4, false), mesh, {replicate()});
    const auto logits = [&mesh](const Dims& sizes, int dim) { return distribute(values(sizes), mesh, {shard(dim)}); };
    require_error(
        [&] {
          ops::cross_entropy(logits({2, 4, 6}, 1), targets);
        },
        "cross_entropy: logits (2, 4, 6) as (Shard(1)) on tp 2, targets (2, 6) as (Replicate) on tp 2 (the "
        "classes are the last dim of the logits: transpose dim 1 to the end)");
    require_error(
        [&] {
          ops::cross_entropy(logits({2, 6, 4}, 1), targets);
        },
        "on each axis shard both along the same rows");
    const Tensor weight = distribute(values({4}), mesh, {shard(0)});
    require_error(
        [&] {
          ops::cross_entropy(distribute(values({2, 6, 4}), mesh, {replicate()}), targets, {.weight = weight});
        },
        "weight (4,) as (Shard(0)) on tp 2 (replicate the weight, or shard it like the classes)");
    require_error(
        [&] {
          ops::cross_entropy(logits({2, 6, 4}, 2), targets, {.weight = values({4})});
        },
        "a plain operand");
    require_error(
        [&] {
          ops::cross_entropy(logits({2, 6, 4}, 2), targets, {.weight = ops::cast(weight, DType::float32)});
        },
        "weights of the type of the logits");
    require_error(
        [&] {
          ops::cross_entropy(logits({2, 6, 3}, 2), targets, {.ignore_index = 1});
        },
        "index 3 at position");
  });
  EXPECT_THAT(failures, Each(""));
}

}  // namespace
}  // namespace lockstep
