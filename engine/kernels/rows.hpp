// The iteration space of several views with the same sizes: rows along the last dim, after merging neighbouring dims
// that are contiguous in every view. Plain data that a kernel's functor carries to its backend.
//
//   Rows<2> rows = make_rows<2>(sizes, {&out.strides, &a.strides});   // one row if both are contiguous
#pragma once

#include <array>
#include <cstdint>

#include "engine/core/shape.hpp"

namespace lockstep::kernels {

template <int N>
struct Rows {
  std::int64_t length = 1;    // number of elements per row
  std::int64_t num_rows = 1;  // 0 if there is no element
  bool unit = true;           // whether the step along a row is 1 in every view
  std::int64_t step[N] = {};  // stride along a row, per view
  int num_outer = 0;          // number of dims that count the rows
  std::int64_t sizes[max_dims] = {};
  std::int64_t strides[N][max_dims] = {};
};

template <int N>
Rows<N> make_rows(const Dims& sizes, const std::array<const Dims*, N>& strides) {
  Rows<N> rows;
  std::int64_t merged_sizes[max_dims] = {};
  std::int64_t merged[N][max_dims] = {};
  int count = 0;
  for (int dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] == 1) continue;
    bool joins = count > 0;
    for (int k = 0; k < N && joins; ++k)
      joins = merged[k][count - 1] == bounded_product((*strides[k])[dim], sizes[dim]);
    if (!joins) merged_sizes[count++] = 1;
    merged_sizes[count - 1] = bounded_product(merged_sizes[count - 1], sizes[dim]);
    for (int k = 0; k < N; ++k) merged[k][count - 1] = (*strides[k])[dim];
  }
  for (int k = 0; k < N; ++k) rows.step[k] = count > 0 ? merged[k][count - 1] : 1;
  if (count > 0) rows.length = merged_sizes[count - 1];
  for (int k = 0; k < N; ++k) rows.unit = rows.unit && rows.step[k] == 1;
  rows.num_outer = count > 0 ? count - 1 : 0;
  for (int dim = 0; dim < rows.num_outer; ++dim) {
    rows.sizes[dim] = merged_sizes[dim];
    rows.num_rows = bounded_product(rows.num_rows, merged_sizes[dim]);
    for (int k = 0; k < N; ++k) rows.strides[k][dim] = merged[k][dim];
  }
  if (rows.length == 0) rows.num_rows = 0;
  return rows;
}

}  // namespace lockstep::kernels
