// Expressions of the scenario language as trees, ready to be walked many times.
//
// Every argument of a step is one Expr, whatever its type: a YAML list or map of expressions is a `list` or `map` node,
// a literal text or path is a text `literal`, and one with `${}` in it is a `concat`. So an interpreter needs a single
// evaluate(const Expr&).
//
//   ExprPtr e = parse_expression("sum(test(x)) / world_size", Place{"a.yaml", 7, 12});
//   switch (e->kind) { case ExprKind::binary: ... evaluate(*e->children[0]) ... }
//
// Trees are immutable once parsed and may be walked from several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "harness/scenario/diagnostics.hpp"
#include "harness/scenario/literal.hpp"
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::scenario {

enum class ExprKind : std::uint8_t {
  literal,       // value: none, boolean, integer, number (also inf) or text
  name,          // name
  attribute,     // children[0].name; a name of digits alone indexes a module (`m.0`)
  index,         // children[0][children[1]]
  slice,         // children[0][children[1]:children[2]], either bound may be nullptr
  call,          // children[0] is what is called; then positional arguments, then one per entry of `names` (keywords)
  unary,         // op children[0]: negate or not_
  binary,        // children[0] op children[1]; and_, or_ evaluate the second only when needed
  conditional,   // children[0] if children[1] else children[2]
  list,          // children
  map,           // children: key, value, key, value, ...; keys are expressions that give texts (or integers)
  list_of_each,  // [children[0] for names in children[1] if children[2]]; children[2] may be nullptr
  map_of_each,   // {children[0]: children[1] for names in children[2] if children[3]}; children[3] may be nullptr
  concat,        // a text with `${}`: children's texts joined (Literal::text). With a single child, a list it gives
                 // stays a list, anything else becomes text
};

enum class Op : std::uint8_t {
  none,
  power,
  negate,
  multiply,
  divide,
  floor_divide,
  modulo,
  matmul,
  add,
  subtract,
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  in,
  not_,
  and_,
  or_,
};
// As it is written: "**", "not", ...
std::string_view name_of(Op op);

struct Expr;
using ExprPtr = std::unique_ptr<const Expr>;

struct Expr {
  ExprKind kind = ExprKind::literal;
  Op op = Op::none;
  Function function = Function::none;  // of a call by a bare name: the function of that name, if there is one; a bound
                                       // name comes first
  int line = 0;                        // in the file of the step it belongs to
  int column = 0;
  Literal value;                   // literal
  std::string name;                // name, attribute
  std::vector<std::string> names;  // call: keywords; comprehensions: targets (several take the item apart)
  std::vector<ExprPtr> children;

  // Of a call.
  std::size_t num_positional() const { return children.size() - 1 - names.size(); }
  const Expr& positional(std::size_t i) const { return *children[1 + i]; }
  const Expr& keyword(std::size_t i) const { return *children[1 + num_positional() + i]; }  // of names[i]
};

// The text of one expression and where each of its characters stands.
struct SourceText {
  std::string text;
  Place start;
  std::vector<std::pair<int, int>> places;  // line, column of each character; empty: all in one line from `start` on
};

// Throws ScenarioError at the character where it goes wrong: bad syntax, chained comparisons, more than 1,000
// characters, deeper than 32.
ExprPtr parse_expression(const std::string& text, const Place& start);
ExprPtr parse_expression(const SourceText& source);

// A literal text with `${...}` in it: a text literal when there is none, else a concat. Throws ScenarioError.
ExprPtr parse_text(const SourceText& source);

ExprPtr make_literal(Literal value, const Place& place);

// The expression written out again, with the parentheses it needs.
std::string to_text(const Expr& expr);

// Calls `visit` for the expression and everything below it, outermost first.
void for_each_node(const Expr& expr, const std::function<void(const Expr&)>& visit);

}  // namespace lockstep::scenario
