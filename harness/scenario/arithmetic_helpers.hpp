// Helpers that operators (arithmetic.cpp) and plain functions (plain_functions.cpp) share. Internal to this layer.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "harness/scenario/literal.hpp"

namespace lockstep::scenario {

enum class Op : std::uint8_t;

// Throws Error: `operation` is not defined for a value of this kind.
[[noreturn]] void refuse_operand(std::string_view operation, const Literal& a);
// Throws Error when a list of `size` items exceeds limits::list_items.
void check_list_size(std::size_t size);
// The key of a map that a text or an integer names. Throws Error for other kinds.
std::string key_of(const Literal& key);
// The order of two texts or two numbers: -1, 0 or 1; 2 when a number is not-a-number. Throws Error for other kinds;
// `op` is the operator that the message names.
int compare(Op op, const Literal& a, const Literal& b);

}  // namespace lockstep::scenario
