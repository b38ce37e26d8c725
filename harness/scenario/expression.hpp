// Expressions of the scenario language as trees.
//
// Every argument of a step is one Expr: a YAML list or map of expressions is a `list` or `map` node, a literal text or
// path is a text `literal`, and a literal text with `${}` in it is a `concat`. An interpreter therefore needs only one
// function evaluate(const Expr&).
//
//   ExprPtr e = parse_expression("sum(test(x)) / world_size", Place{"a.yaml", 7, 12});
//   switch (e->kind) { case ExprKind::binary: ... evaluate(*e->children[0]) ... }
//
// Parsed trees are immutable, and several threads may read them.
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
  call,          // children[0] is the callee; then positional arguments, then one per entry of `names` (keywords)
  unary,         // op children[0]: negate or not_
  binary,        // children[0] op children[1]; and_, or_ evaluate the second operand only when needed
  conditional,   // children[0] if children[1] else children[2]
  list,          // children
  map,           // children: key, value, key, value, ...; keys are expressions that give texts or integers
  list_of_each,  // [children[0] for names in children[1] if children[2]]; children[2] may be nullptr
  map_of_each,   // {children[0]: children[1] for names in children[2] if children[3]}; children[3] may be nullptr
  concat,        // a text with `${}`: the joined texts of the children (Literal::text). A list from a single child
                 // stays a list; other values become text
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
// The operator as it is written: "**", "not", ...
std::string_view name_of(Op op);

struct Expr;
using ExprPtr = std::unique_ptr<const Expr>;

struct Expr {
  ExprKind kind = ExprKind::literal;
  Op op = Op::none;
  Function function = Function::none;  // of a call by a plain name: the function of that name; a bound name of that
                                       // name hides it
  int line = 0;                        // in the file of the step that contains the expression
  int column = 0;
  Literal value;                   // literal
  std::string name;                // name, attribute
  std::vector<std::string> names;  // call: keywords; comprehensions: loop names (several names unpack the item)
  std::vector<ExprPtr> children;

  // The arguments of a call.
  std::size_t num_positional() const { return children.size() - 1 - names.size(); }
  const Expr& positional(std::size_t i) const { return *children[1 + i]; }
  const Expr& keyword(std::size_t i) const { return *children[1 + num_positional() + i]; }  // for names[i]
};

// The text of one expression and the place of each of its characters.
struct SourceText {
  std::string text;
  Place start;
  std::vector<std::pair<int, int>> places;  // line and column per character; empty: one line from `start` on
};

// Parses an expression. Throws ScenarioError with the place of the mistake: bad syntax, chained comparisons, more than
// 1,000 characters, nested deeper than 32.
ExprPtr parse_expression(const std::string& text, const Place& start);
ExprPtr parse_expression(const SourceText& source);

// Parses a literal text that may contain `${...}`: gives a concat, or a text literal when there is no `${`. Throws
// ScenarioError.
ExprPtr parse_text(const SourceText& source);

ExprPtr make_literal(Literal value, const Place& place);

// The expression as text, with the parentheses that it needs (expression_text.cpp).
std::string to_text(const Expr& expr);

// Calls `visit` for the expression and every node below it, outermost first.
void for_each_node(const Expr& expr, const std::function<void(const Expr&)>& visit);

}  // namespace lockstep::scenario
