// JSON text to values. The values are built during parsing, so the limits on depth, length and memory apply while the
// value grows.
#pragma once

#include <string>

#include "harness/run/values/value.hpp"

namespace lockstep::run {

// Not-a-number and infinities stay the texts "nan", "inf", "-inf", as in records. Throws Error with line and column for
// malformed text, Error for an object that has a key twice, BudgetError past the rank's memory.
Value parse_json(const std::string& text);

}  // namespace lockstep::run
