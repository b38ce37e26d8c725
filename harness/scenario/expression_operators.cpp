// Operators of expressions, one function per level of binding strength, weakest first.
#include <cstdint>
#include <string_view>
#include <utility>

#include "harness/scenario/expression_parser.hpp"

namespace lockstep::scenario {

ExprPtr ExpressionParser::parse_conditional() {
  const DepthGuard guard(*this);
  ExprPtr chosen = parse_or();
  skip_spaces();
  const std::size_t at = at_;
  if (!take_word("if")) return chosen;
  Node made = node(ExprKind::conditional, at);
  made->children.push_back(std::move(chosen));
  made->children.push_back(parse_or());
  if (!take_word("else")) {
    skip_spaces();
    fail("`a if c` needs an `else`");
  }
  made->children.push_back(parse_conditional());
  return made;
}

ExprPtr ExpressionParser::parse_or() {
  ExprPtr left = parse_and();
  for (;;) {
    skip_spaces();
    const std::size_t at = at_;
    if (!take_word("or")) return left;
    left = binary(Op::or_, std::move(left), parse_and(), at);
  }
}

ExprPtr ExpressionParser::parse_and() {
  ExprPtr left = parse_not();
  for (;;) {
    skip_spaces();
    const std::size_t at = at_;
    if (!take_word("and")) return left;
    left = binary(Op::and_, std::move(left), parse_not(), at);
  }
}

ExprPtr ExpressionParser::parse_not() {
  skip_spaces();
  const std::size_t at = at_;
  if (!take_word("not")) return parse_comparison();
  const DepthGuard guard(*this);
  Node made = node(ExprKind::unary, at);
  made->op = Op::not_;
  made->children.push_back(parse_not());
  return made;
}

Op ExpressionParser::take_comparison() {
  if (take("==")) return Op::equal;
  if (take("!=")) return Op::not_equal;
  if (take("<=")) return Op::less_equal;
  if (take(">=")) return Op::greater_equal;
  if (take("<")) return Op::less;
  if (take(">")) return Op::greater;
  if (take_word("in")) return Op::in;
  return Op::none;
}

ExprPtr ExpressionParser::parse_comparison() {
  ExprPtr left = parse_sum();
  skip_spaces();
  const std::size_t at = at_;
  const Op op = take_comparison();
  if (op == Op::none) return left;
  left = binary(op, std::move(left), parse_sum(), at);
  skip_spaces();
  const std::size_t next = at_;
  if (take_comparison() != Op::none) fail("comparisons do not chain; join them with `and`", next);
  return left;
}

ExprPtr ExpressionParser::parse_sum() {
  ExprPtr left = parse_product();
  for (;;) {
    skip_spaces();
    const std::size_t at = at_;
    if (take("+")) {
      left = binary(Op::add, std::move(left), parse_product(), at);
    } else if (take("-")) {
      left = binary(Op::subtract, std::move(left), parse_product(), at);
    } else {
      return left;
    }
  }
}

ExprPtr ExpressionParser::parse_product() {
  ExprPtr left = parse_negation();
  for (;;) {
    skip_spaces();
    const std::size_t at = at_;
    Op op = Op::none;
    if (take("//")) {
      op = Op::floor_divide;
    } else if (take("/")) {
      op = Op::divide;
    } else if (take("*")) {
      op = Op::multiply;
    } else if (take("%")) {
      op = Op::modulo;
    } else if (take("@")) {
      op = Op::matmul;
    } else {
      return left;
    }
    left = binary(op, std::move(left), parse_negation(), at);
  }
}

ExprPtr ExpressionParser::parse_negation() {
  skip_spaces();
  const std::size_t at = at_;
  if (!take("-")) return parse_power();
  const DepthGuard guard(*this);
  skip_spaces();
  // The smallest 64-bit integer has no positive counterpart, so its sign is part of the literal.
  constexpr std::string_view smallest = "9223372036854775808";
  const std::string_view rest = std::string_view(text_).substr(at_);
  if (rest.starts_with(smallest) && rest.find_first_of("0123456789.eE", smallest.size()) != smallest.size()) {
    at_ += smallest.size();
    return make_literal(Literal(INT64_MIN), place_of(at));
  }
  ExprPtr operand = parse_negation();
  Node made = node(ExprKind::unary, at);
  made->op = Op::negate;
  made->children.push_back(std::move(operand));
  return made;
}

ExprPtr ExpressionParser::parse_power() {
  ExprPtr base = parse_postfix();
  skip_spaces();
  const std::size_t at = at_;
  if (!take("**")) return base;
  const DepthGuard guard(*this);
  return binary(Op::power, std::move(base), parse_negation(), at);
}

}  // namespace lockstep::scenario
