#include "engine/layout/flat_parameter.hpp"

#include <algorithm>

#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"

namespace lockstep::layout {

FlatParameter make_flat_parameter(const std::vector<Dims>& sizes, int num_ranks, std::int64_t alignment) {
  constexpr const char* where = "flat parameter";
  LOCKSTEP_CHECK(num_ranks > 0 && alignment > 0, num_ranks, " ranks, alignment ", alignment);
  FlatParameter flat;
  flat.num_ranks = num_ranks;
  for (const Dims& one : sizes) {
    const std::int64_t past = flat.total % alignment;
    if (past != 0) flat.total = checked_add(flat.total, alignment - past, where);
    const std::int64_t length = num_elements(one);
    flat.entries.push_back({one, flat.total, length});
    flat.total = checked_add(flat.total, length, where);
  }
  flat.per_rank = checked_add(flat.total, num_ranks - 1, where) / num_ranks;
  checked_multiply(flat.per_rank, num_ranks, where);  // bounds padded()
  return flat;
}

Stretch stretch_of(const FlatParameter& flat, std::size_t index, int rank) {
  const FlatEntry& entry = flat.entries[index];
  const std::int64_t chunk_begin = bounded_product(flat.per_rank, rank);
  const std::int64_t begin = std::max(entry.offset, chunk_begin);
  const std::int64_t end = std::min(entry.offset + entry.length, chunk_begin + flat.per_rank);
  if (begin >= end) return {};
  return {begin - entry.offset, end - begin, begin - chunk_begin};
}

namespace {

// Adds the boxes of a stretch of one sub-tensor: the dims before `dim` have the offsets of `box`.
void add_boxes(const Dims& sizes, int dim, StretchBox box, std::int64_t begin, std::int64_t length,
               std::vector<StretchBox>& boxes) {
  if (length == 0) return;
  std::int64_t row = 1;  // elements per index of this dim
  for (int i = dim + 1; i < sizes.size(); ++i) row = bounded_product(row, sizes[i]);
  const std::int64_t first = begin / row, last = (begin + length - 1) / row;
  const auto add_rows = [&](std::int64_t from, std::int64_t to) {
    if (from >= to) return;
    StretchBox rows = box;
    rows.offsets[dim] = from;
    rows.sizes[dim] = to - from;
    for (int i = dim + 1; i < sizes.size(); ++i) rows.sizes[i] = sizes[i];
    rows.at = box.at + from * row - begin;
    boxes.push_back(rows);
  };
  const auto add_part = [&](std::int64_t index, std::int64_t from, std::int64_t to) {
    StretchBox part = box;
    part.offsets[dim] = index;
    part.at = box.at + from - begin;
    add_boxes(sizes, dim + 1, part, from - index * row, to - from, boxes);
  };
  const bool starts_inside = begin % row != 0, ends_inside = (begin + length) % row != 0;
  if (first == last && ends_inside) return add_part(first, begin, begin + length);
  if (starts_inside) add_part(first, begin, (first + 1) * row);
  add_rows(first + (starts_inside ? 1 : 0), last + (ends_inside ? 0 : 1));
  if (ends_inside) add_part(last, last * row, begin + length);
}

}  // namespace

std::vector<StretchBox> boxes_of_stretch(const Dims& sizes, std::int64_t begin, std::int64_t length) {
  LOCKSTEP_CHECK(begin >= 0 && length >= 0 && begin + length <= num_elements(sizes), "elements ", begin, " to ",
                 begin + length, " of ", to_text(sizes));
  std::vector<StretchBox> boxes;
  StretchBox box;
  box.offsets = box.sizes = sizes;
  for (int i = 0; i < sizes.size(); ++i) {
    box.offsets[i] = 0;
    box.sizes[i] = 1;
  }
  if (sizes.empty() && length == 1) return {box};
  add_boxes(sizes, 0, box, begin, length, boxes);
  return boxes;
}

std::vector<FlatGap> gaps_of(const FlatParameter& flat) {
  std::vector<FlatGap> gaps;
  std::int64_t at = 0;
  const auto add_until = [&gaps, &at](std::int64_t begin) {
    if (begin > at) gaps.push_back({at, begin - at});
  };
  for (const FlatEntry& entry : flat.entries) {
    add_until(entry.offset);
    at = entry.offset + entry.length;
  }
  add_until(flat.padded());
  return gaps;
}

}  // namespace lockstep::layout
