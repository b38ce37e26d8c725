// The characters of one expression, a position in them, and what is read there: words, symbols, texts and numbers. What
// the parser of expressions stands on.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "harness/scenario/expression.hpp"

namespace lockstep::scenario {

bool is_letter(char c);  // of a name: the underscore too
bool is_digit(char c);
bool is_reserved(std::string_view word);  // "not", "if", ...: names nothing

class ExpressionCursor {
 public:
  explicit ExpressionCursor(const SourceText& source) : source_(source), text_(source.text) {}

  bool at_end() const { return at_ >= text_.size(); }
  void skip_spaces();

  // Whether the symbol, or the word and not only the start of a longer one, comes next after spaces; then it is behind
  // us.
  bool take(std::string_view symbol);
  bool take_word(std::string_view word);
  // The symbol that closes what was opened there. Throws ScenarioError when something else comes.
  void expect(std::string_view symbol, std::size_t opened);

  // Letters and digits from there on; a single character when it is neither.
  std::string word_at(std::size_t at) const;

  // A text in single quotes, and a number; each begins where we stand. Throw ScenarioError.
  Literal take_quoted();
  Literal take_number();

  Place place_of(std::size_t at) const;
  [[noreturn]] void fail(const std::string& message, std::size_t at) const;
  [[noreturn]] void fail(const std::string& message) const { fail(message, at_); }
  // What comes next has no place here; says what was probably meant.
  [[noreturn]] void fail_unexpected() const;

 protected:
  const SourceText& source_;
  const std::string& text_;
  std::size_t at_ = 0;
};

}  // namespace lockstep::scenario
