// Operands of expressions: names, literals, calls, attributes, items, lists, maps and comprehensions.
#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/core/text.hpp"
#include "harness/scenario/expression_parser.hpp"

namespace lockstep::scenario {

ExprPtr ExpressionParser::parse_postfix() {
  ExprPtr left = parse_atom();
  for (int links = 0;; ++links) {
    skip_spaces();
    const std::size_t at = at_;
    // Each link adds a level to the tree, but not to the parser's recursion.
    if (links > limits::expression_depth) fail_too_deep();
    if (take(".")) {
      left = parse_attribute(std::move(left));
    } else if (take("(")) {
      left = parse_call(std::move(left), at);
    } else if (take("[")) {
      left = parse_index(std::move(left), at);
    } else {
      return left;
    }
  }
}

ExprPtr ExpressionParser::parse_attribute(ExprPtr of) {
  const std::size_t at = at_;
  std::size_t end = at_;
  if (!at_end() && is_digit(text_[at_])) {
    while (end < text_.size() && is_digit(text_[end])) ++end;
  } else if (!at_end() && is_letter(text_[at_])) {
    while (end < text_.size() && (is_letter(text_[end]) || is_digit(text_[end]))) ++end;
  } else {
    fail("a name must follow the `.`");
  }
  at_ = end;
  Node made = node(ExprKind::attribute, at);
  made->name = text_.substr(at, end - at);
  made->children.push_back(std::move(of));
  return made;
}

bool ExpressionParser::take_keyword(Expr& call) {
  const std::size_t at = at_;
  const std::string word = at_end() ? std::string() : word_at(at_);
  if (word.empty() || !is_letter(word[0]) || is_reserved(word)) return false;
  at_ += word.size();
  skip_spaces();
  if (at_end() || text_[at_] != '=' || text_.compare(at_, 2, "==") == 0) {
    at_ = at;
    return false;
  }
  ++at_;
  for (const std::string& other : call.names) {
    if (other == word) fail(str("the argument `", word, "` is given twice"), at);
  }
  call.names.push_back(word);
  call.children.push_back(parse_conditional());
  return true;
}

ExprPtr ExpressionParser::parse_call(ExprPtr callee, std::size_t opened) {
  if (callee->kind != ExprKind::name && callee->kind != ExprKind::attribute && callee->kind != ExprKind::index) {
    fail("only a function, a module or a method can be called", opened);
  }
  Node made = node(ExprKind::call, opened);
  made->line = callee->line;
  made->column = callee->column;
  if (callee->kind == ExprKind::name) {
    const FunctionSpec* function = find_function(callee->name);
    if (function != nullptr) made->function = function->id;
  }
  made->children.push_back(std::move(callee));
  if (take(")")) return made;
  do {
    skip_spaces();
    if (!made->names.empty() && !at_end() && text_[at_] == ')') break;
    const std::size_t at = at_;
    if (take_keyword(*made)) continue;
    if (!made->names.empty()) fail("an argument by position follows one by name", at);
    made->children.push_back(parse_conditional());
  } while (take(","));
  expect(")", opened);
  return made;
}

ExprPtr ExpressionParser::parse_index(ExprPtr of, std::size_t opened) {
  ExprPtr first;
  skip_spaces();
  if (at_end() || text_[at_] != ':') first = parse_conditional();
  if (!take(":")) {
    expect("]", opened);
    Node made = node(ExprKind::index, opened);
    made->children.push_back(std::move(of));
    made->children.push_back(std::move(first));
    return made;
  }
  ExprPtr second;
  skip_spaces();
  if (at_end() || text_[at_] != ']') second = parse_conditional();
  expect("]", opened);
  Node made = node(ExprKind::slice, opened);
  made->children.push_back(std::move(of));
  made->children.push_back(std::move(first));
  made->children.push_back(std::move(second));
  return made;
}

ExprPtr ExpressionParser::parse_atom() {
  skip_spaces();
  if (at_end()) fail_unexpected();
  const std::size_t at = at_;
  const char c = text_[at_];
  if (take("(")) {
    ExprPtr inner = parse_conditional();
    expect(")", at);
    return inner;
  }
  if (take("[")) return parse_list(at);
  if (take("{")) return parse_map(at);
  if (c == '\'') return make_literal(take_quoted(), place_of(at));
  if (is_digit(c)) return make_literal(take_number(), place_of(at));
  if (!is_letter(c)) fail_unexpected();
  return parse_word();
}

ExprPtr ExpressionParser::parse_word() {
  const std::size_t at = at_;
  const std::string word = word_at(at_);
  if (is_reserved(word)) fail(str("unexpected `", word, "`"));
  at_ += word.size();
  if (word == "true" || word == "false") return make_literal(Literal(word == "true"), place_of(at));
  if (word == "none") return make_literal(Literal(), place_of(at));
  if (word == "inf") return make_literal(Literal(HUGE_VAL), place_of(at));
  if (word == "True" || word == "False" || word == "None") {
    fail(str("`", word, "` is not known; did you mean `", static_cast<char>(word[0] + 32), word.substr(1), "`?"), at);
  }
  Node made = node(ExprKind::name, at);
  made->name = word;
  return made;
}

void ExpressionParser::parse_comprehension(Expr& made, std::string_view close, std::size_t opened) {
  do {
    skip_spaces();
    const std::size_t at = at_;
    const std::string word = at_end() ? std::string() : word_at(at_);
    if (word.empty() || !is_letter(word[0]) || is_reserved(word)) fail("a name must follow `for`", at);
    if (std::find(made.names.begin(), made.names.end(), word) != made.names.end())
      fail(str("`", word, "` follows `for` twice"), at);
    at_ += word.size();
    made.names.push_back(word);
  } while (take(","));
  if (!take_word("in")) {
    skip_spaces();
    fail("`in` must follow the names after `for`");
  }
  made.children.push_back(parse_or());
  made.children.push_back(take_word("if") ? parse_or() : nullptr);
  expect(close, opened);
}

ExprPtr ExpressionParser::parse_list(std::size_t opened) {
  Node made = node(ExprKind::list, opened);
  if (take("]")) return made;
  made->children.push_back(parse_conditional());
  if (take_word("for")) {
    made->kind = ExprKind::list_of_each;
    parse_comprehension(*made, "]", opened);
    return made;
  }
  while (take(",")) {
    skip_spaces();
    if (!at_end() && text_[at_] == ']') break;
    made->children.push_back(parse_conditional());
  }
  expect("]", opened);
  return made;
}

ExprPtr ExpressionParser::parse_map(std::size_t opened) {
  Node made = node(ExprKind::map, opened);
  if (take("}")) return made;
  const auto entry = [&] {
    made->children.push_back(parse_conditional());
    if (!take(":")) {
      skip_spaces();
      if (at_end()) expect("}", opened);
      fail("a `:` must follow the key");
    }
    made->children.push_back(parse_conditional());
  };
  entry();
  if (take_word("for")) {
    made->kind = ExprKind::map_of_each;
    parse_comprehension(*made, "}", opened);
    return made;
  }
  while (take(",")) {
    skip_spaces();
    if (!at_end() && text_[at_] == '}') break;
    entry();
  }
  expect("}", opened);
  return made;
}

}  // namespace lockstep::scenario
