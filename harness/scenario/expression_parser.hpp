// The recursive-descent parser of expressions. Internal to this layer; see expression.hpp for its result.
//
// The parser reads characters directly, without a lexer, because `m.0.weight` and `0.5` need different tokens.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "harness/scenario/expression_cursor.hpp"

namespace lockstep::scenario {

class ExpressionParser : ExpressionCursor {
 public:
  using ExpressionCursor::ExpressionCursor;

  // Parses the complete text as one expression. Throws ScenarioError.
  ExprPtr parse_all();
  // Parses the complete text as a literal text that may contain `${...}`. Throws ScenarioError.
  ExprPtr parse_template();

 private:
  using Node = std::unique_ptr<Expr>;

  // One level of nesting; throws ScenarioError past limits::expression_depth.
  class DepthGuard {
   public:
    explicit DepthGuard(ExpressionParser& parser);
    ~DepthGuard() { --parser_.depth_; }
    DepthGuard(const DepthGuard&) = delete;
    DepthGuard& operator=(const DepthGuard&) = delete;

   private:
    ExpressionParser& parser_;
  };

  void check_length(std::size_t start, std::size_t length) const;
  [[noreturn]] void fail_too_deep() const;
  Node node(ExprKind kind, std::size_t at) const;
  ExprPtr binary(Op op, ExprPtr left, ExprPtr right, std::size_t at) const;
  // Moves a piece of literal text, if there is one, to the children of `concat`.
  void add_piece(Expr& concat, std::string& piece, std::size_t at);

  // expression_operators.cpp: one function per level of binding strength, weakest first.
  ExprPtr parse_conditional();
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_comparison();
  Op take_comparison();  // Op::none: no comparison follows
  ExprPtr parse_sum();
  ExprPtr parse_product();
  ExprPtr parse_negation();
  ExprPtr parse_power();

  // expression_operands.cpp: operands and the brackets after them. `opened` is the position of the opening bracket.
  ExprPtr parse_postfix();
  ExprPtr parse_attribute(ExprPtr of);
  ExprPtr parse_call(ExprPtr callee, std::size_t opened);
  bool take_keyword(Expr& call);  // `name=value`; false when the next argument is positional
  ExprPtr parse_index(ExprPtr of, std::size_t opened);
  ExprPtr parse_atom();
  ExprPtr parse_word();
  ExprPtr parse_list(std::size_t opened);
  ExprPtr parse_map(std::size_t opened);
  // `for names in list [if condition]` and the closing bracket of a comprehension.
  void parse_comprehension(Expr& made, std::string_view close, std::size_t opened);

  int depth_ = 0;
};

}  // namespace lockstep::scenario
