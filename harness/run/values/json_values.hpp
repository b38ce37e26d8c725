// JSON as values, built while it is read, so that depth, length and memory are bounded where they grow and not when a
// whole tree stands already.
#pragma once

#include <string>

#include "harness/run/values/value.hpp"

namespace lockstep::run {

// Not-a-number and infinities are the texts "nan", "inf", "-inf" (as records are written). Of an entry given twice the
// last holds. Throws Error with line and column for malformed text, BudgetError past the rank's memory.
Value parse_json(const std::string& text);

}  // namespace lockstep::run
