// Plain arithmetic of the scenario language on values without tensors: operators and plain functions. The evaluation
// before launch uses it, and the interpreter for operands that are literals.
//
//   apply(Op::floor_divide, Literal(-7), Literal(2));              // -4
//   call_plain(Function::max, {Literal(1), Literal(2.5)});         // 2.5
//
// Throws Error with operator and operands; 64-bit overflow is one. Pure.
#pragma once

#include <string_view>
#include <vector>

#include "harness/scenario/literal.hpp"
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::scenario {

enum class Op : std::uint8_t;

Literal negate(const Literal& a);
// All but `and` and `or`, which must not evaluate their second operand.
Literal apply(Op op, const Literal& a, const Literal& b);
// x[i]: of a list by index (negative: from the end), of a map by key.
Literal item_at(const Literal& of, const Literal& index);
// x[a:b] of a list or text, as in Python; none: the bound is missing.
Literal slice_of(const Literal& of, const Literal& from, const Literal& to);
// A function of kind plain, its arguments in order.
Literal call_plain(Function function, const std::vector<Literal>& arguments);
// The entries of a comprehension's `for a, b in ...`: the item itself for one name, else a list of that length.
std::vector<Literal> take_apart(const Literal& item, std::size_t num_names);

// `*`, `?` and `[abc]` (`[!abc]`) over the whole text, as for file names; the dot is an ordinary character.
bool glob_matches(std::string_view pattern, std::string_view text);

}  // namespace lockstep::scenario
