#include "harness/scenario/expression.hpp"

#include <cmath>
#include <cstdint>
#include <utility>

#include "engine/core/text.hpp"
#include "harness/scenario/expression_cursor.hpp"

namespace lockstep::scenario {

namespace {

// Recursive descent over the characters themselves: `m.0.weight` needs other tokens than `0.5`, so there is no
// separate lexer. One function a level of binding strength, weakest first.
class Parser : ExpressionCursor {
 public:
  using ExpressionCursor::ExpressionCursor;

  ExprPtr parse_all() {
    check_length(0, text_.size());
    skip_spaces();
    if (at_end()) fail("an expression is missing");
    ExprPtr expr = parse_conditional();
    skip_spaces();
    if (!at_end()) fail_unexpected();
    return expr;
  }

  // A text with `${...}`: pieces of text and expressions by turns.
  ExprPtr parse_template() {
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

 private:
  using Node = std::unique_ptr<Expr>;

  class Deeper {
   public:
    explicit Deeper(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > limits::expression_depth) {
        parser_.fail(str("the expression is nested deeper than ", limits::expression_depth));
      }
    }
    ~Deeper() { --parser_.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    Parser& parser_;
  };

  void check_length(std::size_t start, std::size_t length) const {
    if (length > limits::expression_characters) {
      fail(str("the expression has ", length, " characters; at most ", limits::expression_characters,
               " are allowed: name parts of it with `let`"),
           start);
    }
  }

  Node node(ExprKind kind, std::size_t at) const {
    auto made = std::make_unique<Expr>();
    const Place place = place_of(at);
    made->kind = kind;
    made->line = place.line;
    made->column = place.column;
    return made;
  }
  ExprPtr binary(Op op, ExprPtr left, ExprPtr right, std::size_t at) const {
    Node made = node(ExprKind::binary, at);
    made->op = op;
    made->children.push_back(std::move(left));
    made->children.push_back(std::move(right));
    return made;
  }

  ExprPtr parse_conditional() {
    Deeper deeper(*this);
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

  ExprPtr parse_or() {
    ExprPtr left = parse_and();
    for (;;) {
      skip_spaces();
      const std::size_t at = at_;
      if (!take_word("or")) return left;
      left = binary(Op::or_, std::move(left), parse_and(), at);
    }
  }

  ExprPtr parse_and() {
    ExprPtr left = parse_not();
    for (;;) {
      skip_spaces();
      const std::size_t at = at_;
      if (!take_word("and")) return left;
      left = binary(Op::and_, std::move(left), parse_not(), at);
    }
  }

  ExprPtr parse_not() {
    skip_spaces();
    const std::size_t at = at_;
    if (!take_word("not")) return parse_comparison();
    Deeper deeper(*this);
    Node made = node(ExprKind::unary, at);
    made->op = Op::not_;
    made->children.push_back(parse_not());
    return made;
  }

  Op take_comparison() {
    if (take("==")) return Op::equal;
    if (take("!=")) return Op::not_equal;
    if (take("<=")) return Op::less_equal;
    if (take(">=")) return Op::greater_equal;
    if (take("<")) return Op::less;
    if (take(">")) return Op::greater;
    if (take_word("in")) return Op::in;
    return Op::none;
  }

  ExprPtr parse_comparison() {
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

  ExprPtr parse_sum() {
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

  ExprPtr parse_product() {
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

  ExprPtr parse_negation() {
    skip_spaces();
    const std::size_t at = at_;
    if (!take("-")) return parse_power();
    Deeper deeper(*this);
    skip_spaces();
    // The least integer has no positive counterpart, so that its sign belongs to the literal.
    if (text_.compare(at_, 19, "9223372036854775808") == 0 &&
        (at_ + 19 >= text_.size() || !is_digit(text_[at_ + 19]))) {
      at_ += 19;
      return make_literal(Literal(INT64_MIN), place_of(at));
    }
    ExprPtr operand = parse_negation();
    Node made = node(ExprKind::unary, at);
    made->op = Op::negate;
    made->children.push_back(std::move(operand));
    return made;
  }

  ExprPtr parse_power() {
    ExprPtr base = parse_postfix();
    skip_spaces();
    const std::size_t at = at_;
    if (!take("**")) return base;
    Deeper deeper(*this);
    return binary(Op::power, std::move(base), parse_negation(), at);
  }

  ExprPtr parse_postfix() {
    ExprPtr left = parse_atom();
    for (int links = 0;; ++links) {
      skip_spaces();
      const std::size_t at = at_;
      // Each link nests the tree one deeper, though not the parser.
      if (links > limits::expression_depth)
        fail(str("the expression is nested deeper than ", limits::expression_depth));
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

  ExprPtr parse_attribute(ExprPtr of) {
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

  ExprPtr parse_call(ExprPtr callee, std::size_t opened) {
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
      const std::string word = at_end() ? std::string() : word_at(at_);
      if (!word.empty() && is_letter(word[0]) && !is_reserved(word)) {
        at_ += word.size();
        skip_spaces();
        if (!at_end() && text_[at_] == '=' && text_.compare(at_, 2, "==") != 0) {
          ++at_;
          for (const std::string& other : made->names) {
            if (other == word) fail(str("the argument `", word, "` is given twice"), at);
          }
          made->names.push_back(word);
          made->children.push_back(parse_conditional());
          continue;
        }
        at_ = at;
      }
      if (!made->names.empty()) fail("an argument by position follows one by name", at);
      made->children.push_back(parse_conditional());
    } while (take(","));
    expect(")", opened);
    return made;
  }

  ExprPtr parse_index(ExprPtr of, std::size_t opened) {
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

  ExprPtr parse_atom() {
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

  // Everything of a comprehension after its element: `for names in list [if condition]`.
  void parse_for(Expr& made, std::string_view close, std::size_t opened) {
    do {
      skip_spaces();
      const std::size_t at = at_;
      const std::string word = at_end() ? std::string() : word_at(at_);
      if (word.empty() || !is_letter(word[0]) || is_reserved(word)) fail("a name must follow `for`", at);
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

  ExprPtr parse_list(std::size_t opened) {
    Node made = node(ExprKind::list, opened);
    if (take("]")) return made;
    made->children.push_back(parse_conditional());
    if (take_word("for")) {
      made->kind = ExprKind::list_of_each;
      parse_for(*made, "]", opened);
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

  ExprPtr parse_map(std::size_t opened) {
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
      parse_for(*made, "}", opened);
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

  void add_piece(Expr& concat, std::string& piece, std::size_t at) {
    if (piece.empty()) return;
    concat.children.push_back(make_literal(Literal(piece), place_of(at)));
    piece.clear();
  }

  int depth_ = 0;
};

}  // namespace

ExprPtr make_literal(Literal value, const Place& place) {
  auto made = std::make_unique<Expr>();
  made->kind = ExprKind::literal;
  made->line = place.line;
  made->column = place.column;
  made->value = std::move(value);
  return made;
}

ExprPtr parse_expression(const SourceText& source) { return Parser(source).parse_all(); }
ExprPtr parse_expression(const std::string& text, const Place& start) {
  return parse_expression(SourceText{text, start, {}});
}
ExprPtr parse_text(const SourceText& source) { return Parser(source).parse_template(); }

void for_each_node(const Expr& expr, const std::function<void(const Expr&)>& visit) {
  visit(expr);
  for (const ExprPtr& child : expr.children) {
    if (child != nullptr) for_each_node(*child, visit);
  }
}

}  // namespace lockstep::scenario
