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
