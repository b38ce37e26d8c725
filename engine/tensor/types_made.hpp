// The 16-bit types of which a rank has made tensors. A value that was rounded to one of them on its way, by a cast, a
// narrow all-gather or a narrow reduction, was the value of such a tensor. So no value of the rank has lost more bits
// than the coarsest of these types has fewer than its own. Tolerances of sums in another order follow it
// (harness/run/checks/judge_equal.cpp).
#pragma once

#include <optional>

#include "engine/core/types.hpp"

namespace lockstep {

// bfloat16 if the current rank has made a tensor of it, else float16 if it has made one, else nothing.
std::optional<DType> coarsest_type_made();

}  // namespace lockstep
