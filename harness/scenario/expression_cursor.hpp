// A position in the characters of one expression, and functions that read words, symbols, texts and numbers there. The
// base of the expression parser. Internal to this layer.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "harness/scenario/expression.hpp"

namespace lockstep::scenario {

bool is_letter(char c);  // a letter of a name, the underscore included
bool is_digit(char c);
bool is_reserved(std::string_view word);  // "not", "if", ...: cannot be a name

class ExpressionCursor {
 public:
  explicit ExpressionCursor(const SourceText& source) : source_(source), text_(source.text) {}

  bool at_end() const { return at_ >= text_.size(); }
  void skip_spaces();

  // Skips spaces, and then the symbol or the complete word if it comes next. Returns whether it did.
  bool take(std::string_view symbol);
  bool take_word(std::string_view word);
  // Skips the closing symbol of the bracket at position `opened`. Throws ScenarioError when something else comes next.
  void expect(std::string_view symbol, std::size_t opened);

  // The letters and digits from `at` on; a single character when it is neither.
  std::string word_at(std::size_t at) const;

  // Read a text in single quotes, or a number, at the current position. Throw ScenarioError.
  Literal take_quoted();
  Literal take_number();

  Place place_of(std::size_t at) const;
  [[noreturn]] void fail(const std::string& message, std::size_t at) const;
  [[noreturn]] void fail(const std::string& message) const { fail(message, at_); }
  // Throws ScenarioError for an unexpected character or word, with a suggestion for common mistakes.
  [[noreturn]] void fail_unexpected() const;

 protected:
  const SourceText& source_;
  const std::string& text_;
  std::size_t at_ = 0;
};

}  // namespace lockstep::scenario
