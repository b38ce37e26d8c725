#include "engine/state/tiles.hpp"

#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

namespace lockstep::state {
namespace {

using ::testing::ElementsAre;

std::vector<std::int64_t> parts_of(const Dims& sizes, std::size_t element) {
  const TileGrid grid = grid_of(sizes, element);
  return {grid.parts.begin(), grid.parts.end()};
}

TEST(Tiles, GridsOfSomeChunks) {
  // 8192 tiles at most: 240 parts of a row leave 34, and 24 parts of the first dim are the most.
  EXPECT_THAT(parts_of({2048, 4096}, 4), ElementsAre(24, 240));
  // 24 B per run: 170 runs per row of 4 KiB; 144 is the next number with many divisors.
  EXPECT_THAT(parts_of({4096, 1024}, 4), ElementsAre(24, 144));
  // 64 KiB are 64 tiles, and a row of 512 B has 21 runs.
  EXPECT_THAT(parts_of({128, 128}, 4), ElementsAre(4, 12));
  EXPECT_THAT(parts_of({1, 128, 128}, 4), ElementsAre(1, 4, 12));
  EXPECT_THAT(parts_of({8, 1024, 256}, 2), ElementsAre(1, 240, 12));
  EXPECT_THAT(parts_of({64, 32, 3, 3}, 4), ElementsAre(3, 24, 1, 1));
  EXPECT_THAT(parts_of({1 << 20}, 4), ElementsAre());  // its parts are consecutive
  EXPECT_THAT(parts_of({1 << 20, 1}, 4), ElementsAre());
  EXPECT_THAT(parts_of({1 << 20, 8}, 4), ElementsAre());  // one run per row
  EXPECT_THAT(parts_of({32, 32}, 4), ElementsAre());      // 4 KiB
  EXPECT_THAT(parts_of({}, 4), ElementsAre());
}

TEST(Tiles, EvenShardsBeginWhereTilesBegin) {
  for (const std::int64_t ranks : {2, 3, 4, 6, 8, 12, 16}) {
    const std::int64_t columns = 48 * 96;
    const TileGrid grid = grid_of({96, columns}, 4);
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const Box box{{0, rank * columns / ranks}, {96, columns / ranks}};
      EXPECT_EQ(bytes_of(grid, covering_tiles(grid, box)), 4u * 96u * static_cast<std::uint64_t>(columns / ranks));
    }
  }
}

// The tile of each element, from the begins of the parts: ceil(part * size / parts).
std::size_t tile_of(const TileGrid& grid, const Dims& index) {
  std::size_t tile = 0;
  for (int dim = 0; dim < index.size(); ++dim) {
    std::int64_t part = 0;
    while (part + 1 < grid.parts[dim] &&
           (grid.sizes[dim] * (part + 1) + grid.parts[dim] - 1) / grid.parts[dim] <= index[dim])
      ++part;
    tile = tile * static_cast<std::size_t>(grid.parts[dim]) + static_cast<std::size_t>(part);
  }
  return tile;
}

struct Case {
  TileGrid grid;
  std::vector<std::byte> bytes;
  std::map<std::size_t, std::vector<std::vector<std::byte>>> runs;  // of each tile: a run per line
  std::map<std::size_t, std::uint64_t> bytes_of_tile;
};

// Sorts the elements into tiles, one by one. A run ends where the index of a dim before the line changes.
Case make_case(const Dims& sizes, std::size_t element, const Dims& parts) {
  Case made{{sizes, element, parts}, {}, {}, {}};
  std::mt19937 random(7);
  made.bytes.resize(static_cast<std::size_t>(num_elements(sizes)) * element);
  for (std::byte& byte : made.bytes) byte = static_cast<std::byte>(random());
  int line_dim = 0;
  for (int dim = 0; dim < parts.size(); ++dim)
    if (parts[dim] > 1) line_dim = dim;
  Dims index(sizes.size(), 0);
  std::map<std::size_t, std::vector<std::int64_t>> line_of_last;
  for (std::size_t at = 0; at < made.bytes.size(); at += element) {
    const std::size_t tile = tile_of(made.grid, index);
    const std::vector<std::int64_t> line(index.begin(), index.begin() + line_dim);
    if (made.runs[tile].empty() || line_of_last[tile] != line) made.runs[tile].emplace_back();
    line_of_last[tile] = line;
    for (std::size_t i = 0; i < element; ++i) made.runs[tile].back().push_back(made.bytes[at + i]);
    made.bytes_of_tile[tile] += element;
    for (int dim = sizes.size() - 1; dim >= 0 && ++index[dim] == sizes[dim]; --dim) index[dim] = 0;
  }
  return made;
}

std::vector<Case> cases() {
  return {make_case({7, 11}, 4, {3, 5}),      make_case({6, 4}, 2, {1, 4}),
          make_case({5, 9}, 1, {5, 9}),       make_case({4, 6, 5}, 4, {2, 3, 1}),
          make_case({3, 7, 8}, 8, {2, 3, 4}), make_case({1, 5, 4, 3}, 2, {1, 2, 3, 1}),
          make_case({130, 300}, 4, {12, 96})};
}

TEST(Tiles, HashesAreThoseOfTheElementsSortedOneByOne) {
  for (const Case& one : cases()) {
    TileHashes hashes(one.grid);
    for (const std::int64_t end : {std::int64_t{1}, one.grid.num_lines() / 2, one.grid.num_lines()})
      hashes.add_lines(one.bytes.data(), end);
    ASSERT_EQ(hashes.values().size(), one.runs.size());
    for (const auto& [tile, runs] : one.runs) {
      std::uint64_t hash = 0;
      for (const auto& run : runs) hash = XXH3_64bits_withSeed(run.data(), run.size(), hash);
      EXPECT_EQ(hashes.values()[tile], hash) << "tile " << tile << " of " << to_text(one.grid.sizes);
      EXPECT_EQ(one.grid.tile_bytes(tile), one.bytes_of_tile.at(tile));
    }
  }
}

TEST(Tiles, CoveringTilesAreThoseThatHoldAnElementOfTheBox) {
  std::mt19937 random(11);
  for (const Case& one : cases())
    for (int repeat = 0; repeat < 30; ++repeat) {
      Box box;
      for (const std::int64_t size : one.grid.sizes) {
        box.offsets.push_back(static_cast<std::int64_t>(random()) % size);
        box.sizes.push_back(1 + static_cast<std::int64_t>(random()) % (size - box.offsets[box.offsets.size() - 1]));
      }
      std::map<std::size_t, std::uint64_t> expected, found;
      Dims index = box.offsets;
      for (std::int64_t i = num_elements(box.sizes); i > 0; --i) {
        const std::size_t tile = tile_of(one.grid, index);
        expected[tile] = one.bytes_of_tile.at(tile);
        for (int dim = index.size() - 1; dim >= 0 && ++index[dim] == box.offsets[dim] + box.sizes[dim]; --dim)
          index[dim] = box.offsets[dim];
      }
      const TileRange range = covering_tiles(one.grid, box);
      std::uint64_t sum = 0, last = 0;
      TileRuns runs(one.grid, range);
      while (runs.next())
        for (const TileRun& run : runs.line()) {
          EXPECT_GE(run.begin, last);  // in the order of the file
          last = run.begin + run.length;
          found[run.tile] += run.length;
        }
      EXPECT_EQ(found, expected);
      for (const auto& [tile, bytes] : expected) sum += bytes;
      EXPECT_EQ(bytes_of(one.grid, range), sum);
    }
}

}  // namespace
}  // namespace lockstep::state
