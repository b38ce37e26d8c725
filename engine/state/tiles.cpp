#include "engine/state/tiles.hpp"

#include <algorithm>
#include <bit>

#include "engine/core/checked.hpp"

namespace lockstep::state {

std::uint64_t hash_block_of(std::uint64_t chunk_bytes) {
  constexpr std::uint64_t smallest = 1 << 10, largest = 256 << 10;
  return std::clamp(std::bit_floor(chunk_bytes / 256), smallest, largest);
}

std::int64_t TileGrid::num_tiles() const {
  std::int64_t tiles = is_empty() ? 0 : 1;
  for (const std::int64_t count : parts) tiles = bounded_product(tiles, count);
  return tiles;
}

std::uint64_t TileGrid::tile_bytes(std::size_t tile) const {
  auto rest = static_cast<std::int64_t>(tile);
  TileRange range{Dims(parts.size(), 0), Dims(parts.size(), 0)};
  for (int dim = parts.size() - 1; dim >= 0; --dim) {
    range.begin[dim] = rest % parts[dim];
    range.end[dim] = range.begin[dim] + 1;
    rest /= parts[dim];
  }
  return bytes_of(*this, range);
}

std::int64_t TileGrid::begin_of(int dim, std::int64_t part) const {
  return (bounded_product(part, sizes[dim]) + parts[dim] - 1) / parts[dim];
}

std::int64_t TileGrid::part_of(int dim, std::int64_t index) const {
  return bounded_product(index, parts[dim]) / sizes[dim];
}

int TileGrid::line_dim() const {
  int dim = parts.size() - 1;
  while (dim > 0 && parts[dim] == 1) --dim;
  return dim;
}

std::int64_t TileGrid::num_lines() const {
  std::int64_t lines = 1;
  for (int dim = 0; dim < line_dim(); ++dim) lines = bounded_product(lines, sizes[dim]);
  return lines;
}

std::uint64_t TileGrid::line_bytes() const {
  std::int64_t elements = 1;
  for (int dim = line_dim(); dim < sizes.size(); ++dim) elements = bounded_product(elements, sizes[dim]);
  return bounded_bytes(elements, element);
}

namespace {

// The largest number with many divisors that is not above `most`.
std::int64_t round_down(std::int64_t most) {
  constexpr std::int64_t counts[] = {240, 144, 96, 72, 48, 24, 12, 8, 6, 4, 3, 2};
  for (const std::int64_t count : counts)
    if (count <= most) return count;
  return 1;
}

}  // namespace

TileGrid grid_of(const Dims& sizes, std::size_t element) {
  constexpr std::int64_t least_chunk = 16 << 10, tile_bytes = 1 << 10, run_bytes = 24;
  constexpr std::int64_t most_tiles = 8192, most_parts_of_first = 24;
  const auto bytes = static_cast<std::int64_t>(bounded_bytes(num_elements(sizes), element));
  TileGrid grid{sizes, element, {}};
  int first = 0;  // its parts are consecutive
  while (first < sizes.size() && sizes[first] == 1) ++first;
  if (bytes < least_chunk) return grid;
  Dims parts(sizes.size(), 1);
  std::int64_t tiles_left = std::min(bytes / tile_bytes, most_tiles);
  auto row_bytes = static_cast<std::int64_t>(bounded_bytes(num_elements(sizes), element));
  for (int dim = 0; dim <= first; ++dim) row_bytes /= sizes[dim];
  for (int dim = first + 1; dim < sizes.size(); ++dim) {  // row_bytes: of this dim and those after it
    parts[dim] = round_down(std::min({sizes[dim], tiles_left, row_bytes / run_bytes}));
    tiles_left /= parts[dim];
    row_bytes /= sizes[dim];
  }
  if (std::all_of(parts.begin(), parts.end(), [](std::int64_t count) { return count == 1; })) return grid;
  parts[first] = round_down(std::min({sizes[first], tiles_left, most_parts_of_first}));
  grid.parts = parts;
  return grid;
}

TileRange covering_tiles(const TileGrid& grid, const Box& box) {
  TileRange range;
  for (int dim = 0; dim < grid.parts.size(); ++dim) {
    range.begin.push_back(grid.part_of(dim, box.offsets[dim]));
    range.end.push_back(grid.part_of(dim, box.offsets[dim] + box.sizes[dim] - 1) + 1);
  }
  return range;
}

std::uint64_t bytes_of(const TileGrid& grid, const TileRange& range) {
  std::int64_t elements = 1;
  for (int dim = 0; dim < grid.parts.size(); ++dim)
    elements = bounded_product(elements, grid.begin_of(dim, range.end[dim]) - grid.begin_of(dim, range.begin[dim]));
  return bounded_bytes(elements, grid.element);
}

// ---- runs ----
TileRuns::TileRuns(const TileGrid& grid, const TileRange& range) : grid_(grid), range_(range) {
  if (grid.is_empty()) return;
  const int line_dim = grid.line_dim();
  std::int64_t stride = 1, tile_stride = 1;
  strides_ = tile_strides_ = Dims(grid.sizes.size(), 1);
  for (int dim = grid.sizes.size() - 1; dim >= 0; --dim) {
    strides_[dim] = static_cast<std::int64_t>(bounded_bytes(stride, grid.element));
    tile_strides_[dim] = tile_stride;
    stride = bounded_product(stride, grid.sizes[dim]);
    tile_stride = bounded_product(tile_stride, grid.parts[dim]);
  }
  for (int dim = 0; dim < line_dim; ++dim) index_.push_back(grid.begin_of(dim, range.begin[dim]));
  for (std::int64_t part = range.begin[line_dim]; part < range.end[line_dim]; ++part) {
    const std::int64_t begin = grid.begin_of(line_dim, part), end = grid.begin_of(line_dim, part + 1);
    const auto byte = [&](std::int64_t at) {
      return static_cast<std::uint64_t>(bounded_product(at, strides_[line_dim]));
    };
    first_.push_back({static_cast<std::size_t>(part), byte(begin), byte(end) - byte(begin)});
  }
  line_ = first_;
}

void TileRuns::set_line() {
  std::int64_t offset = 0, tile = 0;
  for (int dim = 0; dim < index_.size(); ++dim) {
    offset += bounded_product(index_[dim], strides_[dim]);
    tile += bounded_product(grid_.part_of(dim, index_[dim]), tile_strides_[dim]);
  }
  for (std::size_t i = 0; i < first_.size(); ++i) {
    line_[i].tile = first_[i].tile + static_cast<std::size_t>(tile);
    line_[i].begin = first_[i].begin + static_cast<std::uint64_t>(offset);
  }
}

bool TileRuns::next() {
  if (first_.empty()) return false;
  if (is_begun_) {
    int dim = index_.size() - 1;
    while (dim >= 0 && ++index_[dim] == grid_.begin_of(dim, range_.end[dim])) {
      index_[dim] = grid_.begin_of(dim, range_.begin[dim]);
      --dim;
    }
    if (dim < 0) return false;
  }
  is_begun_ = true;
  set_line();
  return true;
}

TileHashes::TileHashes(const TileGrid& grid)
    : grid_(grid),
      all_{Dims(grid.parts.size(), 0), grid.parts},
      runs_(grid_, all_),
      values_(static_cast<std::size_t>(grid.num_tiles()), 0) {}

void TileHashes::add_lines(const std::byte* bytes, std::int64_t end) {
  if (grid_.is_empty()) return;
  const std::uint64_t pitch = runs_.pitch();
  for (; added_ < end && runs_.next(); ++added_) hash_runs(bytes, runs_.line(), pitch, values_);
}

}  // namespace lockstep::state
