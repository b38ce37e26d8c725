#include "engine/mesh/sharding_rules.hpp"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.hpp"

namespace lockstep::sharding {
namespace {

using layout::MeshShape;
using layout::partial;
using layout::PartialOp;
using layout::Placement;
using layout::replicate;
using layout::shard;
using layout::strided_shard;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const MeshShape mesh({2, 2}, {"dp", "tp"});

ShardedLayout layout_of(const Dims& sizes, std::vector<Placement> placements) {
  return {mesh, std::move(placements), sizes};
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ShardingRules, KeepEqualLayouts) {
  for (const std::vector<Placement>& placements :
       {std::vector<Placement>{shard(0), shard(1)}, {strided_shard(0, 2), shard(0)}, {replicate(), replicate()}}) {
    const ShardedLayout a = layout_of({6, 4}, placements);
    const Binary rule = elementwise("add", a, a, Keeps::nothing);
    EXPECT_EQ(rule.a, a);
    EXPECT_EQ(rule.b, a);
    EXPECT_EQ(rule.result, a);
    EXPECT_EQ(rule.a_grad, a);
  }
}

TEST(ShardingRules, BroadcastOneElementToShards) {
  // (6, 1) replicated with (6, 4) sharded along the columns: the gradient of the first is partial.
  const Binary rule = elementwise("mul", layout_of({6, 1}, {shard(0), replicate()}),
                                  layout_of({6, 4}, {shard(0), shard(1)}), Keeps::nothing);
  EXPECT_THAT(rule.result.placements, ElementsAre(shard(0), shard(1)));
  EXPECT_EQ(rule.result.sizes, (Dims{6, 4}));
  EXPECT_THAT(rule.a_grad.placements, ElementsAre(shard(0), partial()));
  EXPECT_EQ(rule.b_grad, rule.b);
  // Operands with fewer dims are aligned at the last dim.
  const Binary row = elementwise("mul", layout_of({5, 6, 4}, {shard(1), shard(2)}),
                                 layout_of({4}, {replicate(), shard(0)}), Keeps::nothing);
  EXPECT_THAT(row.result.placements, ElementsAre(shard(1), shard(2)));
  EXPECT_THAT(row.b_grad.placements, ElementsAre(partial(), shard(0)));
  const Binary scalar = elementwise("div", layout_of({4}, {shard(0), replicate()}),
                                    layout_of({}, {replicate(), partial()}), Keeps::nothing);
  EXPECT_THAT(scalar.b.placements, ElementsAre(replicate(), replicate()));
  EXPECT_THAT(scalar.b_grad.placements, ElementsAre(partial(), replicate()));
}

TEST(ShardingRules, RefuseShardsThatDoNotMatch) {
  const auto text = [](const ShardedLayout& a, const ShardedLayout& b) {
    return error_of([&] { elementwise("add", a, b, Keeps::nothing); });
  };
  const char* remedy = "redistribute one of them to the layout of the other";
  EXPECT_THAT(text(layout_of({6, 4}, {shard(0), replicate()}), layout_of({6, 4}, {shard(1), replicate()})),
              HasSubstr(remedy));
  EXPECT_THAT(text(layout_of({6, 4}, {shard(0), replicate()}), layout_of({6, 4}, {replicate(), replicate()})),
              HasSubstr(remedy));
  EXPECT_THAT(text(layout_of({6, 4}, {strided_shard(0, 2), shard(0)}), layout_of({6, 4}, {shard(0), shard(0)})),
              HasSubstr(remedy));
  EXPECT_THAT(text(layout_of({1, 4}, {shard(0), replicate()}), layout_of({6, 4}, {shard(0), replicate()})),
              HasSubstr(remedy));
  EXPECT_THAT(text(layout_of({6}, {shard(0), replicate()}), {MeshShape({4}, {"dp"}), {shard(0)}, {6}}),
              HasSubstr(remedy));
  EXPECT_THAT(text(layout_of({6}, {shard(0), replicate()}), layout_of({5}, {shard(0), replicate()})), HasSubstr("add"));
}

TEST(ShardingRules, KeepPartialPlacementsInLinearOperations) {
  const ShardedLayout sum = layout_of({4}, {partial(), replicate()}),
                      mean = layout_of({4}, {partial(PartialOp::mean), replicate()});
  const ShardedLayout largest = layout_of({4}, {partial(PartialOp::max), replicate()});
  const ShardedLayout replicated = layout_of({4}, {replicate(), replicate()});
  EXPECT_EQ(reduced(sum, Keeps::sums), sum);
  EXPECT_EQ(reduced(mean, Keeps::sums), mean);
  EXPECT_EQ(reduced(largest, Keeps::sums), replicated);
  EXPECT_EQ(reduced(largest, Keeps::all), largest);
  EXPECT_EQ(reduced(sum, Keeps::nothing), replicated);
  EXPECT_EQ(elementwise("add", sum, sum, Keeps::sums).result, sum);
  EXPECT_EQ(elementwise("add", sum, sum, Keeps::sums).a_grad, replicated);
  EXPECT_EQ(elementwise("mul", sum, sum, Keeps::nothing).result, replicated);
  // A sum with a mean, or partial with replicated: both are reduced first.
  EXPECT_EQ(elementwise("add", sum, mean, Keeps::sums).result, replicated);
  const Binary mixed = elementwise("add", sum, replicated, Keeps::sums);
  EXPECT_EQ(mixed.a, replicated);
  EXPECT_EQ(mixed.result, replicated);
}

TEST(ShardingRules, SumsOverShardedDimsArePartial) {
  const ShardedLayout a = layout_of({6, 4, 2}, {shard(0), shard(2)});
  const Unary rows = sum(a, {0}, false);
  EXPECT_EQ(rows.operand, a);
  EXPECT_EQ(rows.result, layout_of({4, 2}, {partial(), shard(1)}));
  EXPECT_EQ(sum(a, {0}, true).result, layout_of({1, 4, 2}, {partial(), shard(2)}));
  EXPECT_EQ(sum(a, {1}, false).result, layout_of({6, 2}, {shard(0), shard(1)}));
  EXPECT_EQ(sum(a, {-1, 0}, false).result, layout_of({4}, {partial(), partial()}));
  EXPECT_EQ(sum(layout_of({6}, {partial(), shard(0)}), {0}, false).result, layout_of({}, {partial(), partial()}));
  EXPECT_EQ(sum(layout_of({6}, {partial(PartialOp::max), shard(0)}), {0}, false).operand,
            layout_of({6}, {replicate(), shard(0)}));
  EXPECT_THAT(error_of([&] { sum(a, {3}, false); }), HasSubstr("sum"));
}

TEST(ShardingRules, PlacementsFollowTheirDims) {
  const ShardedLayout a = layout_of({6, 4, 2}, {shard(0), strided_shard(2, 2)});
  EXPECT_EQ(permute(a, {2, 0, 1}).result, layout_of({2, 6, 4}, {shard(1), strided_shard(0, 2)}));
  EXPECT_EQ(permute(a, {-1, 1, 0}).result, layout_of({2, 4, 6}, {shard(2), strided_shard(0, 2)}));
  EXPECT_EQ(unsqueeze(a, 1).result, layout_of({6, 1, 4, 2}, {shard(0), strided_shard(3, 2)}));
  EXPECT_EQ(unsqueeze(a, -1).result, layout_of({6, 4, 2, 1}, {shard(0), strided_shard(2, 2)}));
  EXPECT_EQ(along("max", a, 1, Dim::removed).result, layout_of({6, 2}, {shard(0), strided_shard(1, 2)}));
  EXPECT_EQ(along("max", a, 1, Dim::kept_as_one).result, layout_of({6, 1, 2}, {shard(0), strided_shard(2, 2)}));
  EXPECT_EQ(along("softmax", a, -2, Dim::unchanged).result, a);
  EXPECT_THAT(error_of([&] { along("softmax", a, -1, Dim::unchanged); }),
              HasSubstr("softmax: along dim 2 of (6, 4, 2)"));
}

TEST(ShardingRules, ProductsFollowTheirOperands) {
  const ShardedLayout a = layout_of({5, 4}, {shard(0), shard(1)}), b = layout_of({4, 6}, {replicate(), shard(0)});
  const Binary rule = matmul(a, b);
  EXPECT_EQ(rule.result, layout_of({5, 6}, {shard(0), partial()}));
  EXPECT_EQ(rule.a_grad, a);
  EXPECT_EQ(rule.b_grad, layout_of({4, 6}, {partial(), shard(0)}));
  EXPECT_THAT(error_of([&] {
                matmul(a, layout_of({5, 6}, {replicate(), shard(0)}));
              }),
              HasSubstr("give equal inner sizes"));
  EXPECT_THAT(error_of([&] {
                matmul(layout_of({5, 4}, {shard(1), replicate()}), layout_of({4, 6}, {replicate(), replicate()}));
              }),
              HasSubstr("shard both along the inner dim"));
  EXPECT_THAT(error_of([&] {
                matmul(layout_of({4}, {replicate(), replicate()}), b);
              }),
              HasSubstr("unsqueeze the vector"));

  const ShardedLayout bias = layout_of({6}, {replicate(), replicate()});
  const Linear rowwise = linear(a, layout_of({6, 4}, {replicate(), shard(1)}), &bias);
  EXPECT_EQ(rowwise.result, layout_of({5, 6}, {shard(0), partial()}));
  EXPECT_EQ(rowwise.bias, layout_of({6}, {replicate(), partial()}));  // added once
  EXPECT_EQ(rowwise.bias_grad, layout_of({6}, {partial(), replicate()}));
  EXPECT_EQ(rowwise.weight_grad, layout_of({6, 4}, {partial(), shard(1)}));
  const ShardedLayout sharded = layout_of({6}, {shard(0), replicate()});
  EXPECT_THAT(error_of([&] {
                linear(a, layout_of({6, 4}, {replicate(), shard(1)}), &sharded);
              }),
              HasSubstr("replicate the bias"));
  EXPECT_EQ(embedding(layout_of({8, 4}, {shard(0), shard(1)}), layout_of({3}, {replicate(), replicate()})).result,
            layout_of({3, 4}, {partial(), shard(1)}));
  EXPECT_THAT(error_of([&] {
                embedding(layout_of({8, 4}, {shard(0), replicate()}), layout_of({3}, {shard(0), replicate()}));
              }),
              HasSubstr("shard the first operand or the indices"));
}

// ---- views, against the owner of every element ----

// The elements of the full tensor, as positions in row-major order, that a rank holds, in the order of its shard.
std::vector<std::int64_t> owned_elements(const ShardedLayout& layout, int rank) {
  std::vector<std::vector<std::int64_t>> held;  // per dim
  for (int dim = 0; dim < layout.sizes.size(); ++dim) {
    std::vector<std::int64_t>& indices = held.emplace_back();
    for (const layout::Chunk& range : layout::global_ranges(layout, rank, dim))
      for (std::int64_t i = 0; i < range.length; ++i) indices.push_back(range.begin + i);
  }
  std::vector<std::int64_t> elements = {0};
  for (int dim = 0; dim < layout.sizes.size(); ++dim) {
    std::vector<std::int64_t> next;
    for (const std::int64_t before : elements)
      for (const std::int64_t index : held[static_cast<std::size_t>(dim)])
        next.push_back(before * layout.sizes[dim] + index);
    elements = std::move(next);
  }
  return elements;
}

bool same_owners(const ShardedLayout& a, const ShardedLayout& b) {
  for (const int rank : a.mesh.ranks())
    if (owned_elements(a, rank) != owned_elements(b, rank)) return false;
  return true;
}

std::vector<Placement> all_placements(int num_dims) {
  std::vector<Placement> all = {replicate(), partial()};
  for (int dim = 0; dim < num_dims; ++dim) {
    all.push_back(shard(dim));
    for (const int factor : {1, 2, 3, 4}) all.push_back(strided_shard(dim, factor));
  }
  return all;
}

// Every view that is accepted keeps the elements of each rank in their order. A view that is refused has no layout of
// plain shards, one dim per axis, that would do so.
TEST(ShardingRules, ViewsKeepTheElementsOfEachRank) {
  const std::vector<std::pair<Dims, Dims>> changes = {
      {{4, 6}, {4, 2, 3}}, {{4, 6}, {4, 3, 2}}, {{4, 6}, {2, 2, 6}},  {{4, 6}, {24}},       {{24}, {4, 6}},
      {{24}, {2, 3, 4}},   {{2, 3, 4}, {6, 4}}, {{2, 3, 4}, {2, 12}}, {{2, 12}, {2, 4, 3}}, {{5, 3}, {5, 1, 3}},
      {{5, 1, 3}, {5, 3}}, {{1, 5}, {5}},       {{5}, {1, 5, 1}},     {{3, 8}, {4, 6}},     {{8, 2, 3}, {16, 3}},
      {{2, 8}, {2, 4, 2}}, {{8, 1}, {4, 2}},    {{7, 2}, {14}},       {{6, 4}, {3, 8}}};
  int num_accepted = 0, num_refused = 0;
  for (const MeshShape& on : {MeshShape({2}), MeshShape({3}), MeshShape({4}), MeshShape({2, 2}), MeshShape({3, 2})})
    for (const auto& [from, to] : changes)
      for (const Placement& first : all_placements(from.size()))
        for (const Placement& second : on.num_axes() == 2 ? all_placements(from.size()) : std::vector{replicate()}) {
          std::vector<Placement> placements = {first};
          if (on.num_axes() == 2) placements.push_back(second);
          const ShardedLayout a{on, placements, from};
          try {
            layout::check(a);
          } catch (const Error&) {
            continue;
          }
          std::string refused;
          try {
            const Unary rule = view("view", a, to);
            EXPECT_EQ(rule.operand, a);
            EXPECT_TRUE(same_owners(a, rule.result)) << a.text() << " to " << rule.result.text();
            ++num_accepted;
          } catch (const Error& error) {
            refused = error.what();
            ++num_refused;
          }
          if (refused.empty()) continue;
          EXPECT_THAT(refused, HasSubstr("are no shards of the result"));
          if (on.num_axes() > 1 || first.kind != Placement::Kind::shard) continue;
          for (int dim = 0; dim < to.size(); ++dim)
            EXPECT_FALSE(same_owners(a, {on, {shard(dim)}, to})) << a.text() << " to " << to_text(to);
        }
  EXPECT_GT(num_accepted, 1000);
  EXPECT_GT(num_refused, 1000);
}

TEST(ShardingRules, ViewsSplitAndMergeHeads) {
  const ShardedLayout joined = layout_of({3, 5, 8}, {shard(0), shard(2)});
  const ShardedLayout heads = view("view", joined, {3, 5, 4, 2}).result;
  EXPECT_EQ(heads, layout_of({3, 5, 4, 2}, {shard(0), shard(2)}));
  EXPECT_EQ(view("view", heads, {3, 5, 8}).result, joined);
  // Three heads over two ranks: a rank holds one and a half of them.
  EXPECT_THAT(
      error_of([&] {
        view("view", layout_of({3, 5, 6}, {replicate(), shard(2)}), {3, 5, 3, 2});
      }),
      HasSubstr("view: (3, 5, 6) as (Replicate, Shard(2)) on dp 2 x tp 2 to (3, 5, 3, 2): the shards of dim 2"));
  // A sequence that is merged with the batch: each sequence has a piece of the shard.
  const ShardedLayout sequences = layout_of({4, 5, 8}, {shard(0), shard(1)});
  const ShardedLayout tokens = view("view", sequences, {20, 8}).result;
  EXPECT_EQ(tokens, layout_of({20, 8}, {shard(0), strided_shard(0, 2)}));
  EXPECT_EQ(view("view", tokens, {4, 5, 8}).result, sequences);
  EXPECT_EQ(view("view", layout_of({4, 5, 8}, {shard(1), shard(0)}), {20, 8}).result,
            layout_of({20, 8}, {strided_shard(0, 4), shard(0)}));
  EXPECT_EQ(complete_sizes("view", {3, 5, 8}, {3, 5, -1, 2}), (Dims{3, 5, 4, 2}));
  EXPECT_THAT(error_of([] { complete_sizes("view", {3, 5}, {-1, -1}); }), HasSubstr("one -1"));
  EXPECT_THAT(error_of([] { complete_sizes("view", {3, 5}, {4, -1}); }), HasSubstr("of 15 elements"));
  EXPECT_THAT(error_of([] { complete_sizes("view", {3, 5}, {4, 4}); }), HasSubstr("sizes of the full tensor"));
}

TEST(ShardingRules, SizesOfDimsThatNoAxisShards) {
  const ShardedLayout a = layout_of({6, 1, 4}, {shard(0), partial()});
  EXPECT_EQ(squeeze(a, 1).result, layout_of({6, 4}, {shard(0), partial()}));
  EXPECT_EQ(squeeze(a, 0).result, a);
  EXPECT_EQ(expand(a, {2, 6, 5, 4}).result, layout_of({2, 6, 5, 4}, {shard(1), partial()}));
  EXPECT_EQ(expand(a, {2, -1, 5, -1}).result, expand(a, {2, 6, 5, 4}).result);
  EXPECT_EQ(expand(layout_of({1, 4}, {shard(0), replicate()}), {3, -1, 4}).result,
            layout_of({3, 1, 4}, {shard(1), replicate()}));
  EXPECT_THAT(error_of([&] { expand(a, {-1, 6, 5, 4}); }), HasSubstr("sizes of the full tensor"));
  EXPECT_EQ(slice("slice", a, 2, 1, 3).result, layout_of({6, 1, 2}, {shard(0), partial()}));
  EXPECT_EQ(slice("slice", a, 0, -9, 9).result, a);
  EXPECT_THAT(error_of([&] { slice("slice", a, 0, 1, 9); }), HasSubstr("along dim 0 of (6, 1, 4)"));
  EXPECT_THAT(error_of([&] { squeeze(layout_of({1, 4}, {shard(0), replicate()}), 0); }), HasSubstr("is sharded"));
  EXPECT_THAT(error_of([&] { expand(layout_of({1, 4}, {shard(0), replicate()}), {3, 4}); }), HasSubstr("is sharded"));
  EXPECT_THAT(error_of([&] { expand(a, {7, 1, 4}); }), HasSubstr("sizes of the full tensor"));

  const ShardedLayout b = layout_of({6, 3, 4}, {shard(0), replicate()});
  const Many joined = join("cat", {a, b}, 1, false);
  EXPECT_EQ(joined.result, layout_of({6, 4, 4}, {shard(0), replicate()}));  // one summand is no value: reduced first
  EXPECT_EQ(join("cat", {a, a}, -1, false).result, layout_of({6, 1, 8}, {shard(0), partial()}));
  EXPECT_EQ(join("stack", {b, b, b}, 0, true).result, layout_of({3, 6, 3, 4}, {shard(1), replicate()}));
  EXPECT_THAT(error_of([&] { join("cat", {b, b}, 0, false); }), HasSubstr("cat: along dim 0"));
  EXPECT_THAT(error_of([&] { join("stack", {a, b}, 0, true); }), HasSubstr("redistribute them to the same placements"));
}

TEST(ShardingRules, ExtremesOfShardedDimsArePartial) {
  const ShardedLayout a = layout_of({6, 4}, {shard(0), shard(1)});
  EXPECT_EQ(extreme("max", a, 0, false, PartialOp::max).result, layout_of({4}, {partial(PartialOp::max), shard(0)}));
  EXPECT_EQ(extreme("min", a, 1, true, PartialOp::min).result, layout_of({6, 1}, {shard(0), partial(PartialOp::min)}));
  const ShardedLayout largest = layout_of({6, 4}, {partial(PartialOp::max), shard(1)});
  EXPECT_EQ(extreme("max", largest, 1, false, PartialOp::max).operand, largest);
  EXPECT_EQ(extreme("min", largest, 1, false, PartialOp::min).operand, layout_of({6, 4}, {replicate(), shard(1)}));
}

TEST(ShardingRules, AttentionAndLossesNameTheirRemedies) {
  const ShardedLayout q = layout_of({2, 4, 5, 3}, {shard(0), shard(1)}),
                      k = layout_of({2, 4, 7, 3}, {shard(0), shard(1)});
  EXPECT_EQ(attention(q, k, layout_of({2, 4, 7, 6}, {shard(0), shard(1)}), nullptr).result,
            layout_of({2, 4, 5, 6}, {shard(0), shard(1)}));
  const ShardedLayout of_heads = layout_of({4, 5, 7}, {replicate(), shard(0)});
  EXPECT_EQ(attention(q, k, k, &of_heads).result.placements, q.placements);
  const ShardedLayout whole = layout_of({4, 5, 7}, {replicate(), replicate()});
  EXPECT_THAT(error_of([&] { attention(q, k, k, &whole); }), HasSubstr("shard the mask along that dim"));
  EXPECT_THAT(error_of([&] {
                attention(q, layout_of({2, 4, 7, 3}, {shard(0), shard(2)}), k, nullptr);
              }),
              HasSubstr("batch or head dim"));

  const ShardedLayout targets = layout_of({6}, {shard(0), replicate()});
  const ClassLoss loss = cross_entropy(layout_of({6, 9}, {shard(0), shard(1)}), targets);
  EXPECT_EQ(loss.result, layout_of({}, {partial(), replicate()}));
  EXPECT_EQ(loss.logits, layout_of({6, 9}, {shard(0), shard(1)}));
  EXPECT_THAT(error_of([&] {
                cross_entropy(layout_of({6, 9}, {replicate(), shard(1)}), targets);
              }),
              HasSubstr("replicate the targets and shard at most the classes"));
  EXPECT_THAT(error_of([&] {
                cross_entropy(layout_of({5, 9}, {shard(0), shard(1)}), targets);
              }),
              HasSubstr("give logits (..., classes)"));
}

TEST(ShardingRules, LossesTakeAnyRowsAndWeightsOfTheClasses) {
  const ShardedLayout logits = layout_of({2, 6, 9}, {shard(1), shard(2)}),
                      rows = layout_of({2, 6}, {shard(1), replicate()});
  const ShardedLayout whole = layout_of({9}, {replicate(), replicate()}), own = layout_of({9}, {replicate(), shard(0)});
  EXPECT_EQ(cross_entropy(logits, rows, nullptr, true).result, rows);
  EXPECT_EQ(cross_entropy(logits, rows, &whole).result, layout_of({}, {partial(), replicate()}));
  EXPECT_FALSE(cross_entropy(logits, rows, &whole).shards_weight);
  EXPECT_TRUE(cross_entropy(logits, rows, &own).shards_weight);
  const ShardedLayout summands = layout_of({9}, {partial(), partial()});
  EXPECT_EQ(cross_entropy(logits, rows, &summands).weight, whole);
  const ShardedLayout along_rows = layout_of({9}, {shard(0), replicate()}),
                      short_one = layout_of({8}, {replicate(), replicate()});
  EXPECT_THAT(error_of([&] { cross_entropy(logits, rows, &along_rows); }), HasSubstr("shard it like the classes"));
  EXPECT_THAT(error_of([&] { cross_entropy(logits, rows, &short_one); }), HasSubstr("one weight per class"));
  const ShardedLayout both = layout_of({12, 9}, {shard(1), shard(1)}),
                      all = layout_of({12}, {replicate(), replicate()});
  EXPECT_THAT(error_of([&] { cross_entropy(both, all, &own); }), HasSubstr("over all axes that shard the classes"));
  const ShardedLayout of_both = layout_of({9}, {shard(0), shard(0)});
  EXPECT_TRUE(cross_entropy(both, all, &of_both).shards_weight);
  EXPECT_THAT(error_of([&] {
                cross_entropy(layout_of({2, 9, 6}, {replicate(), shard(1)}), rows);
              }),
              HasSubstr("transpose dim 1 to the end"));
}

}  // namespace
}  // namespace lockstep::sharding
