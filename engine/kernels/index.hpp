// Gathers slices by a list of indices, and adds slices back.
//
// All views are contiguous; `index` is int64 with one dim; the other views have one type. Throws Error for an index out
// of range, before anything is written. -1 is out of range unless `missing` allows it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/kernels/view.hpp"
#include "engine/layout/placement.hpp"

namespace lockstep::kernels {

// The index -1, which positions_in() gives for elements of other ranks: an error, or a slice of zeros. With
// `impossible` the caller knows that every index is in range, and the host does not wait for a check.
enum class Missing : std::uint8_t { refused, zeros, impossible };

// out[..., j, ...] = a[..., index[j], ...] along `dim`.
void index_select(Execution on, const View& out, const View& a, int dim, const View& index,
                  Missing missing = Missing::refused);
// to[..., index[j], ...] += value[..., j, ...] along `dim`. Slices with equal indices are added in order of j.
void index_add(Execution on, const View& to, int dim, const View& index, const View& value,
               Missing missing = Missing::refused);
// out[j] (int64) = the position of index[j], from 0 to size - 1, among the elements that the ranges in `held` list in
// order; -1 where no range contains it; -2 where it is `ignored`, which may be any number. `operation` names the error
// for an index out of range.
void positions_in(Execution on, const View& out, const View& index, std::int64_t size,
                  const std::vector<layout::Chunk>& held, const char* operation,
                  std::optional<std::int64_t> ignored = {});

}  // namespace lockstep::kernels
