// The hashes of a chunk, so that a reader that needs a part of the chunk verifies little more than that part. There are
// two kinds:
// - blocks: consecutive bytes. They suit shards of rows, which are consecutive.
// - tiles: the boxes of a grid over the chunk. They suit shards of columns, which are a short run of bytes per row.
//
// A tile consists of runs of consecutive bytes, a run per row. Its hash is that of its first run; the hash before is
// the seed for each next run. All functions are pure.
//
//   TileGrid grid = grid_of(chunk.box.sizes, size_of(dtype));
//   TileHashes hashes(grid);
//   hashes.add_lines(bytes, grid.num_lines());         // hashes.values(): one per tile
//   TileRange needed = covering_tiles(grid, box);      // of a reader
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/core/shape.hpp"
#include "engine/state/box.hpp"
#include "engine/state/hash.hpp"

namespace lockstep::state {

// The bytes of a block of a chunk: a power of two from 1 KiB to 256 KiB, between a 512th and a 256th of the chunk.
std::uint64_t hash_block_of(std::uint64_t chunk_bytes);

// A grid over a chunk. Part i of a dim of n elements in p parts begins at element ceil(i * n / p). A dim that p ranks
// shard evenly is therefore cut where their shards begin, also if their number is a divisor of p.
struct TileGrid {
  Dims sizes;  // of the chunk
  std::size_t element = 1;
  Dims parts;  // per dim, each from 1 to its size; empty: the chunk has no tiles
  bool is_empty() const { return parts.empty(); }
  std::int64_t num_tiles() const;
  std::uint64_t tile_bytes(std::size_t tile) const;
  std::int64_t begin_of(int dim, std::int64_t part) const;
  std::int64_t part_of(int dim, std::int64_t index) const;  // the part that holds an element
  // The last dim of several parts. A line is the consecutive bytes of this dim and those after it.
  int line_dim() const;
  std::int64_t num_lines() const;
  std::uint64_t line_bytes() const;
};
// The grid of a new chunk. None for a chunk below 16 KiB, and for one whose parts along every dim but the first are
// consecutive. Runs have at least 24 bytes, tiles 1 KiB on average, and there
// are at most 8192.
TileGrid grid_of(const Dims& sizes, std::size_t element);

// A range of parts per dim.
struct TileRange {
  Dims begin, end;
};
// The tiles that contain `box`; its offsets count from the begin of the chunk.
TileRange covering_tiles(const TileGrid& grid, const Box& box);
std::uint64_t bytes_of(const TileGrid& grid, const TileRange& range);

// The runs of `range`, a list per line, in the order of the file. Tiles are numbered in row-major order of the grid,
// and bytes count from the begin of the chunk.
class TileRuns {
 public:
  TileRuns(const TileGrid& grid, const TileRange& range);
  // Moves to the next line. Returns false after the last.
  bool next();
  const std::vector<TileRun>& line() const { return line_; }
  // The bytes from a line to the next one.
  std::uint64_t pitch() const { return grid_.line_bytes(); }

 private:
  void set_line();

  const TileGrid& grid_;
  const TileRange& range_;
  Dims strides_, tile_strides_;  // of the dims before the line; bytes and tiles
  Dims index_;                   // of the line
  std::vector<TileRun> first_;   // the runs of a line at 0 of tile 0
  std::vector<TileRun> line_;
  bool is_begun_ = false;
};

// Hashes the tiles of a chunk, some lines at a time.
class TileHashes {
 public:
  explicit TileHashes(const TileGrid& grid);
  TileHashes(const TileHashes&) = delete;
  TileHashes& operator=(const TileHashes&) = delete;
  // Adds the lines before `end` that were not added; `bytes` are those of the chunk.
  void add_lines(const std::byte* bytes, std::int64_t end);
  const std::vector<std::uint64_t>& values() const { return values_; }

 private:
  TileGrid grid_;
  TileRange all_;
  TileRuns runs_;
  std::int64_t added_ = 0;
  std::vector<std::uint64_t> values_;
};

}  // namespace lockstep::state
