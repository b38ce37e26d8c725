#include "harness/scenario/expression.hpp"

#include <utility>

#include "engine/core/text.hpp"
#include "harness/scenario/expression_parser.hpp"

namespace lockstep::scenario {

ExpressionParser::DepthGuard::DepthGuard(ExpressionParser& parser) : parser_(parser) {
  if (++parser_.depth_ > limits::expression_depth) parser_.fail_too_deep();
}

void ExpressionParser::fail_too_deep() const {
  fail(str("the expression is nested deeper than ", limits::expression_depth));
}

ExprPtr ExpressionParser::parse_all() {
  check_length(0, text_.size());
  skip_spaces();
  if (at_end()) fail("an expression is missing");
  ExprPtr expr = parse_conditional();
  skip_spaces();
  if (!at_end()) fail_unexpected();
  return expr;
}

ExprPtr ExpressionParser::parse_template() {
  auto concat = node(ExprKind::concat, 0);
  std::string piece;
  std::size_t piece_start = 0;
  while (at_ < text_.size()) {
    if (text_.compare(at_, 2, "${") != 0) {
      if (piece.empty()) piece_start = at_;
      piece += text_[at_++];
      continue;
    }
    add_piece(*concat, piece, piece_start);
    const std::size_t start = at_;
    at_ += 2;
    skip_spaces();
    concat->children.push_back(parse_conditional());
    skip_spaces();
    if (at_end()) fail("`${` is not closed: a `}` is missing", start);
    if (text_[at_] != '}') fail_unexpected();
    check_length(start, at_ - start);
    ++at_;
  }
  if (concat->children.empty()) return make_literal(Literal(text_), place_of(0));
  add_piece(*concat, piece, piece_start);
  return concat;
}

void ExpressionParser::add_piece(Expr& concat, std::string& piece, std::size_t at) {
  if (piece.empty()) return;
  concat.children.push_back(make_literal(Literal(piece), place_of(at)));
  piece.clear();
}

void ExpressionParser::check_length(std::size_t start, std::size_t length) const {
  if (length > limits::expression_characters) {
    fail(str("the expression has ", length, " characters; at most ", limits::expression_characters,
             " are allowed: name intermediate values with `let`"),
         start);
  }
}

ExpressionParser::Node ExpressionParser::node(ExprKind kind, std::size_t at) const {
  auto made = std::make_unique<Expr>();
  const Place place = place_of(at);
  made->kind = kind;
  made->line = place.line;
  made->column = place.column;
  return made;
}

ExprPtr ExpressionParser::binary(Op op, ExprPtr left, ExprPtr right, std::size_t at) const {
  Node made = node(ExprKind::binary, at);
  made->op = op;
  made->children.push_back(std::move(left));
  made->children.push_back(std::move(right));
  return made;
}

ExprPtr make_literal(Literal value, const Place& place) {
  auto made = std::make_unique<Expr>();
  made->kind = ExprKind::literal;
  made->line = place.line;
  made->column = place.column;
  made->value = std::move(value);
  return made;
}

ExprPtr parse_expression(const SourceText& source) { return ExpressionParser(source).parse_all(); }
ExprPtr parse_expression(const std::string& text, const Place& start) {
  return parse_expression(SourceText{text, start, {}});
}
ExprPtr parse_text(const SourceText& source) { return ExpressionParser(source).parse_template(); }

void for_each_node(const Expr& expr, const std::function<void(const Expr&)>& visit) {
  visit(expr);
  for (const ExprPtr& child : expr.children) {
    if (child != nullptr) for_each_node(*child, visit);
  }
}

}  // namespace lockstep::scenario
