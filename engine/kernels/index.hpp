// Gathers slices by a list of indices, and adds slices back.
//
// All views are contiguous; `index` is int64 with one dim; the other views have one type. Throws Error for an index out
// of range, before anything is written.
#pragma once

#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

// out[..., j, ...] = a[..., index[j], ...] along `dim`.
void index_select(Space space, const View& out, const View& a, int dim, const View& index);
// to[..., index[j], ...] += value[..., j, ...] along `dim`. Slices with equal indices are added in order of j.
void index_add(Space space, const View& to, int dim, const View& index, const View& value);

}  // namespace lockstep::kernels
