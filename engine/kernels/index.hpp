// Rows picked by a list of indices, and added back. All views contiguous, indices int64 in one dim, types equal.
// An index out of range throws Error before anything is written.
#pragma once

#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

// out[..., j, ...] = a[..., index[j], ...] at `dim`.
void index_select(Space space, const View& out, const View& a, int dim, const View& index);
// to[..., index[j], ...] += value[..., j, ...]; where an index comes more than once, its rows are added in order of j.
void index_add(Space space, const View& to, int dim, const View& index, const View& value);

}  // namespace lockstep::kernels
