#include "engine/state/plan.hpp"

#include <map>
#include <memory>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.hpp"

namespace lockstep::state {
namespace {

using layout::MeshShape;
using layout::replicate;
using layout::shard;
using layout::ShardedLayout;
using layout::strided_shard;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using LayoutPtr = std::shared_ptr<const ShardedLayout>;

LayoutPtr layout_of(MeshShape mesh, std::vector<layout::Placement> placements, Dims sizes) {
  return std::make_shared<const ShardedLayout>(ShardedLayout{std::move(mesh), std::move(placements), sizes});
}

HeldTensor held_by(const std::string& key, const Dims& sizes, const LayoutPtr& layout, int rank) {
  HeldTensor held;
  held.key = key;
  held.sizes = sizes;
  for (const HeldBox& one : held_boxes(sizes, layout, rank)) held.boxes.push_back(one.box);
  return held;
}

// Calls f(index) with every index of a tensor.
void for_each_index(const Dims& sizes, const std::function<void(const Dims&)>& f) {
  Dims index(sizes.size(), 0);
  for (std::int64_t i = num_elements(sizes); i > 0; --i) {
    f(index);
    for (int dim = sizes.size() - 1; dim >= 0 && ++index[dim] == sizes[dim]; --dim) index[dim] = 0;
  }
}
std::int64_t flat(const Dims& index, const Dims& sizes) {
  std::int64_t at = 0;
  for (int dim = 0; dim < sizes.size(); ++dim) at = at * sizes[dim] + index[dim];
  return at;
}

// The global elements that a rank holds, in the order of its local tensor, element by element: each dim is split into
// chunks by ceiling division, the strided axis after the later ones.
std::vector<std::int64_t> owned(const Dims& sizes, const LayoutPtr& layout, int rank) {
  std::vector<std::vector<std::int64_t>> per_dim;
  for (int dim = 0; dim < sizes.size(); ++dim) {
    std::vector<std::int64_t> indices;
    for (const layout::Chunk& range : layout::global_ranges(*layout, rank, dim))
      for (std::int64_t i = 0; i < range.length; ++i) indices.push_back(range.begin + i);
    per_dim.push_back(indices);
  }
  Dims local;
  for (const auto& indices : per_dim) local.push_back(static_cast<std::int64_t>(indices.size()));
  std::vector<std::int64_t> elements;
  if (num_elements(local) == 0) return elements;
  for_each_index(local, [&](const Dims& at) {
    Dims index;
    for (int dim = 0; dim < at.size(); ++dim)
      index.push_back(per_dim[static_cast<std::size_t>(dim)][static_cast<std::size_t>(at[dim])]);
    elements.push_back(flat(index, sizes));
  });
  return elements;
}

// The result of a load from simulated files, in which each element is its own global index.
std::vector<std::int64_t> loaded(const WritePlan& plan, const Dims& sizes, const LayoutPtr& layout, int rank) {
  std::vector<Box> chunks;
  std::vector<std::vector<std::int64_t>> data;
  for (const auto& file : plan.by_rank)
    for (const PlannedChunk& chunk : file) {
      chunks.push_back(chunk.box);
      auto& values = data.emplace_back();
      for_each_index(chunk.box.sizes, [&](const Dims& at) {
        Dims index = at;
        for (int dim = 0; dim < at.size(); ++dim) index[dim] += chunk.box.offsets[dim];
        values.push_back(flat(index, sizes));
      });
    }
  const Dims local = layout::local_sizes(*layout, rank);
  std::vector<std::int64_t> result(static_cast<std::size_t>(num_elements(local)), -1);
  for (const Piece& piece : plan_reads(chunks, held_boxes(sizes, layout, rank))) {
    std::vector<std::int64_t> read;
    for (const ByteRange& range : byte_ranges(chunks[piece.chunk], piece.box, 1))
      for (std::uint64_t i = 0; i < range.length; ++i)
        read.push_back(data[piece.chunk][static_cast<std::size_t>(range.begin + i)]);
    std::size_t next = 0;
    for_each_index(piece.box.sizes, [&](const Dims& at) {
      Dims index = at;
      for (int dim = 0; dim < at.size(); ++dim) index[dim] += piece.at[dim];
      result[static_cast<std::size_t>(flat(index, local))] = read.at(next++);
    });
  }
  return result;
}

// Layouts of a tensor on 1 to 12 ranks: uneven, empty and strided shards, replicas.
std::vector<LayoutPtr> layouts_of(const Dims& sizes) {
  std::vector<LayoutPtr> layouts;
  for (const int ranks : {1, 2, 3, 5, 8}) {
    layouts.push_back(layout_of(MeshShape({ranks}), {replicate()}, sizes));
    for (int dim = 0; dim < sizes.size(); ++dim) layouts.push_back(layout_of(MeshShape({ranks}), {shard(dim)}, sizes));
  }
  for (const std::vector<int>& mesh : {std::vector{2, 2}, std::vector{3, 2}, std::vector{2, 4}}) {
    layouts.push_back(layout_of(MeshShape(mesh), {replicate(), shard(0)}, sizes));
    layouts.push_back(layout_of(MeshShape(mesh), {shard(0), replicate()}, sizes));
    layouts.push_back(layout_of(MeshShape(mesh), {shard(0), shard(0)}, sizes));
    layouts.push_back(layout_of(MeshShape(mesh), {strided_shard(0, mesh[1]), shard(0)}, sizes));
    layouts.push_back(layout_of(MeshShape(mesh), {strided_shard(0, mesh[1]), replicate()}, sizes));
    if (sizes.size() > 1) {
      layouts.push_back(layout_of(MeshShape(mesh), {shard(0), shard(1)}, sizes));
      layouts.push_back(layout_of(MeshShape(mesh), {strided_shard(1, mesh[1]), replicate()}, sizes));
    }
  }
  layouts.push_back(layout_of(MeshShape({2, 2, 3}), {replicate(), strided_shard(0, 3), shard(0)}, sizes));
  return layouts;
}

WritePlan plan_of(const Dims& sizes, const LayoutPtr& layout, std::int64_t cut_bytes = 1 << 20) {
  std::vector<std::vector<HeldTensor>> held(static_cast<std::size_t>(layout->mesh.num_ranks()));
  for (int rank = 0; rank < layout->mesh.num_ranks(); ++rank)
    held[static_cast<std::size_t>(rank)].push_back(held_by("w", sizes, layout, rank));
  return plan_writes(held, cut_bytes);
}

TEST(Plan, EveryLayoutLoadsIntoEveryOther) {
  for (const Dims& sizes : {Dims{7}, Dims{9, 4}, Dims{2, 3, 5}, Dims{1, 6}}) {
    const std::vector<LayoutPtr> layouts = layouts_of(sizes);
    for (const LayoutPtr& from : layouts)
      for (const std::int64_t cut_bytes : {1 << 20, 1}) {
        const WritePlan plan = plan_of(sizes, from, cut_bytes);
        std::multiset<std::int64_t> written;
        for (const auto& file : plan.by_rank)
          for (const PlannedChunk& chunk : file)
            for_each_index(chunk.box.sizes, [&](const Dims& at) {
              Dims index = at;
              for (int dim = 0; dim < at.size(); ++dim) index[dim] += chunk.box.offsets[dim];
              written.insert(flat(index, sizes));
            });
        ASSERT_EQ(written.size(), static_cast<std::size_t>(num_elements(sizes))) << from->text();
        ASSERT_EQ(std::set<std::int64_t>(written.begin(), written.end()).size(), written.size()) << from->text();
        for (const LayoutPtr& to : layouts)
          for (int rank = 0; rank < to->mesh.num_ranks(); ++rank)
            ASSERT_EQ(loaded(plan, sizes, to, rank), owned(sizes, to, rank))
                << from->text() << " into " << to->text() << ", rank " << rank;
      }
  }
}

// The chunks that ranks of a 1-d mesh save of `size` elements.
std::vector<Box> chunks_of(std::int64_t size, int num_ranks) {
  std::vector<Box> chunks;
  for (int rank = 0; rank < num_ranks; ++rank)
    for (const HeldBox& held : held_boxes({size}, layout_of(MeshShape({num_ranks}), {shard(0)}, {size}), rank))
      chunks.push_back(held.box);
  return chunks;
}
// (chunk, offset within the chunk, length, offset in the local tensor) of each piece.
std::vector<std::vector<std::int64_t>> reads(const std::vector<Box>& chunks, const HeldBox& wanted) {
  std::vector<std::vector<std::int64_t>> found;
  for (const Piece& piece : plan_reads(chunks, {wanted}))
    found.push_back({static_cast<std::int64_t>(piece.chunk), piece.box.offsets[0] - chunks[piece.chunk].offsets[0],
                     piece.box.sizes[0], piece.at[0]});
  return found;
}
HeldBox shard_of(std::int64_t size, int num_ranks, int rank) {
  return held_boxes({size}, layout_of(MeshShape({num_ranks}), {shard(0)}, {size}), rank).at(0);
}
using Rows = std::vector<std::vector<std::int64_t>>;

// The cases of PyTorch's planner tests.
TEST(Plan, ReadsThePiecesOfAnotherNumberOfRanks) {
  EXPECT_EQ(reads(chunks_of(128, 8), shard_of(128, 4, 1)), (Rows{{2, 0, 16, 0}, {3, 0, 16, 16}}));
  EXPECT_EQ(reads(chunks_of(128, 4), shard_of(128, 8, 3)), (Rows{{1, 16, 16, 0}}));
  EXPECT_EQ(reads(chunks_of(120, 4), shard_of(120, 3, 1)), (Rows{{1, 10, 20, 0}, {2, 0, 20, 20}}));
  const HeldBox seven{{{4}, {7}}, {0}};
  EXPECT_EQ(reads({{{0}, {8}}, {{8}, {8}}}, seven), (Rows{{0, 4, 4, 0}, {1, 0, 3, 4}}));
}

TEST(Plan, RefusesElementsThatNoChunkHas) {
  try {
    plan_reads({{{0}, {8}}, {{9}, {8}}}, {{{{4}, {7}}, {0}}});
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("[4:11] the checkpoint has 6 of 7"));
  }
}

TEST(Plan, BytesOfABoxAreMergedWhereTheyMeet) {
  const Box chunk{{2, 0, 0}, {4, 3, 5}};
  EXPECT_THAT(byte_ranges(chunk, chunk, 4), ElementsAre(ByteRange{0, 240}));
  EXPECT_THAT(byte_ranges(chunk, {{3, 0, 0}, {2, 3, 5}}, 4), ElementsAre(ByteRange{60, 120}));
  EXPECT_THAT(byte_ranges(chunk, {{3, 1, 0}, {1, 2, 5}}, 4), ElementsAre(ByteRange{80, 40}));
  EXPECT_THAT(byte_ranges(chunk, {{2, 1, 0}, {2, 1, 5}}, 4), ElementsAre(ByteRange{20, 20}, ByteRange{80, 20}));
  EXPECT_THAT(byte_ranges(chunk, {{5, 2, 3}, {1, 1, 2}}, 4), ElementsAre(ByteRange{232, 8}));
  EXPECT_THAT(byte_ranges({{}, {}}, {{}, {}}, 8), ElementsAre(ByteRange{0, 8}));
}

TEST(Plan, RangesGrowToBlocks) {
  EXPECT_THAT(whole_blocks({{500, 30}, {10, 5}, {512, 1}, {1900, 100}}, 512, 2000),
              ElementsAre(ByteRange{0, 1024}, ByteRange{1536, 464}));
  EXPECT_THAT(whole_blocks({}, 512, 2000), ElementsAre());
}

TEST(Plan, ReplicatedValuesAreSpreadByBytes) {
  std::vector<HeldTensor> tensors;
  std::int64_t total = 0;
  for (int i = 0; i < 40; ++i) {
    const Dims sizes{1 + (i * 37) % 50, 8};
    tensors.push_back(held_by(str("t", i), sizes, nullptr, 0));
    total += num_elements(sizes) * 4;
  }
  const WritePlan plan = plan_writes({tensors, tensors, tensors, tensors});
  std::int64_t sum = 0;
  for (const auto& file : plan.by_rank) {
    const auto bytes = static_cast<std::int64_t>(file.back().begin + file.back().bytes());
    sum += bytes;
    EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(total) / 4, 1600.0);
  }
  EXPECT_EQ(sum, total);
}

TEST(Plan, OneLargeReplicatedTensorIsCut) {
  const std::vector<HeldTensor> one{held_by("w", {1, 6, 4}, nullptr, 0)};
  const WritePlan plan = plan_writes({one, one, one, one}, 64);
  EXPECT_EQ(plan.by_rank[0].at(0).name, "w[0:1, 0:2, 0:4]");
  EXPECT_EQ(plan.by_rank[2].at(0).name, "w[0:1, 4:6, 0:4]");
  EXPECT_TRUE(plan.by_rank[3].empty());
}

TEST(Plan, ASingleElementIsNotCut) {
  Dims sizes{1, 1};
  sizes.erase(1);
  const std::vector<HeldTensor> one{held_by("w", sizes, nullptr, 0)};
  const WritePlan plan = plan_writes({one, one}, 1);
  ASSERT_EQ(plan.by_rank[0].size(), 1u);
  EXPECT_EQ(plan.by_rank[0][0].name, "w");
  EXPECT_TRUE(plan.by_rank[1].empty());
}

TEST(Plan, TiedTensorsAreWrittenOnce) {
  HeldTensor first = held_by("a", {4}, nullptr, 0), second = held_by("b", {4}, nullptr, 0);
  second.same_as = "a";
  WritePlan plan = plan_writes({{first, second}, {second, first}});
  EXPECT_EQ(plan.by_rank[0].size() + plan.by_rank[1].size(), 1u);
  EXPECT_EQ(plan.tensors.at("b").same_as, "a");
  second.same_as.clear();  // tied on one rank only
  HeldTensor tied = second;
  tied.same_as = "a";
  plan = plan_writes({{first, second}, {first, tied}});
  EXPECT_EQ(plan.by_rank[0].size() + plan.by_rank[1].size(), 2u);
}

TEST(Plan, RanksMayHoldDifferentKeysInAnyOrder) {
  const WritePlan plan = plan_writes({{held_by("z", {4}, nullptr, 0), held_by("a", {2}, nullptr, 0)},
                                      {held_by("b", {3}, nullptr, 0), held_by("z", {4}, nullptr, 0)}});
  EXPECT_EQ(plan.by_rank[0].size(), 2u);
  EXPECT_EQ(plan.by_rank[0][0].name, "a");
  EXPECT_EQ(plan.by_rank[0][1].begin, 8u);
  EXPECT_EQ(plan.by_rank[1].size(), 1u);
}

std::string refusal(const std::vector<std::vector<HeldTensor>>& held) {
  try {
    plan_writes(held);
  } catch (const Error& error) {
    return error.what();
  }
  return "planned";
}

TEST(Plan, RefusesRanksThatDisagree) {
  HeldTensor w = held_by("w", {4}, nullptr, 0), other = held_by("w", {5}, nullptr, 0);
  EXPECT_THAT(refusal({{w}, {other}}), HasSubstr("`w` is float32 (4,) on rank 0, and float32 (5,) on rank 1"));
  other = w;
  other.digest = 7;
  EXPECT_THAT(refusal({{w}, {w}, {other}}),
              HasSubstr("the replicas of `w` have other values on rank 2 than on rank 0"));
  const LayoutPtr layout = layout_of(MeshShape({2}), {shard(0)}, {4});
  EXPECT_THAT(refusal({{held_by("w", {4}, layout, 0)}, {}}), HasSubstr("2 of 4 elements are missing"));
  EXPECT_THAT(refusal({{held_by("w", {4}, layout, 0)}, {w}}), HasSubstr("[0:2] are there twice"));
}

TEST(Plan, RefusesPartialValues) {
  const LayoutPtr layout = layout_of(MeshShape({2}), {layout::partial()}, {4});
  EXPECT_THROW(held_boxes({4}, layout, 0), Error);
}

TEST(Plan, ARankOutsideTheMeshHoldsNothing) {
  const LayoutPtr layout = layout_of(MeshShape({2}, {"x"}, {1, 3}), {shard(0)}, {5});
  EXPECT_TRUE(held_boxes({5}, layout, 0).empty());
  const WritePlan plan =
      plan_writes({{held_by("w", {5}, layout, 0)}, {held_by("w", {5}, layout, 1)}, {}, {held_by("w", {5}, layout, 3)}});
  EXPECT_EQ(plan.by_rank[1].at(0).bytes(), 12u);
  EXPECT_EQ(plan.by_rank[3].at(0).bytes(), 8u);
}

TEST(Plan, ChunksWithLargeElementsComeFirst) {
  HeldTensor bytes = held_by("a", {3}, nullptr, 0), words = held_by("b", {2}, nullptr, 0);
  bytes.dtype = DType::boolean;
  words.dtype = DType::float64;
  const WritePlan plan = plan_writes({{bytes, words}});
  EXPECT_EQ(plan.by_rank[0][0].key, "b");
  EXPECT_EQ(plan.by_rank[0][1].begin, 16u);
}

}  // namespace
}  // namespace lockstep::state
