// The steps that a step contains.
#pragma once

#include <functional>
#include <vector>

#include "harness/scenario/document.hpp"

namespace lockstep::run {

// The step's own blocks: `steps`, `else` and the branches of `among`.
std::vector<const scenario::Steps*> blocks_of(const scenario::Step& step);
// The same and, for `use`, the steps of the routine.
std::vector<const scenario::Steps*> blocks_and_routine_of(const scenario::Step& step);

// Whether the predicate holds for a step of the list, or for a step in its blocks and routines.
bool any_step(const scenario::Steps& steps, const std::function<bool(const scenario::Step&)>& predicate);

}  // namespace lockstep::run
