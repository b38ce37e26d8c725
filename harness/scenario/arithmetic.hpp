// Operators and plain functions of the scenario language, on values without tensors. The evaluation before launch uses
// them, and the interpreter uses them for operands that are literals.
//
//   apply(Op::floor_divide, Literal(-7), Literal(2));              // -4
//   call_plain(Function::max, {Literal(1), Literal(2.5)});         // 2.5
//
// All functions are pure. They throw Error with the operator and its operands, also for a 64-bit overflow.
#pragma once

#include <string_view>
#include <vector>

#include "harness/scenario/literal.hpp"
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::scenario {

enum class Op : std::uint8_t;

Literal negate(const Literal& a);
// Binary operators except `and` and `or`, which may leave their second operand unevaluated. `@` is refused.
Literal apply(Op op, const Literal& a, const Literal& b);
// x[i]: an item of a list or a character of a text by index (negative: from the end), or an entry of a map by key.
Literal item_at(const Literal& of, const Literal& index);
// x[a:b] of a list or text, as in Python. A bound of none is missing.
Literal slice_of(const Literal& of, const Literal& from, const Literal& to);
// Calls a function of kind plain with its arguments in order (plain_functions.cpp). Throws Error for a wrong number of
// arguments.
Literal call_plain(Function function, const std::vector<Literal>& arguments);
// Unpacks an item for `for a, b in ...`: the item itself for one name, otherwise the items of a list of that length.
std::vector<Literal> unpack(const Literal& item, std::size_t num_names);

// Whether a pattern of `*`, `?`, `[abc]` and `[!abc]` matches the full text (glob.cpp). The dot is an ordinary
// character.
bool glob_matches(std::string_view pattern, std::string_view text);

}  // namespace lockstep::scenario
