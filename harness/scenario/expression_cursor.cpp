#include "harness/scenario/expression_cursor.hpp"

#include <tuple>
#include <utility>

#include "engine/core/text.hpp"
#include "harness/scenario/characters.hpp"

namespace lockstep::scenario {

namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
constexpr std::string_view reserved[] = {"not", "and", "or", "if", "else", "for", "in"};

}  // namespace

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_reserved(std::string_view word) {
  for (std::string_view name : reserved) {
    if (name == word) return true;
  }
  return false;
}

Place ExpressionCursor::place_of(std::size_t at) const {
  Place place = source_.start;
  if (source_.places.empty()) {
    place.column += static_cast<int>(at);
  } else if (at < source_.places.size()) {
    std::tie(place.line, place.column) = source_.places[at];
  } else {
    std::tie(place.line, place.column) = source_.places.back();
    place.column += 1;
  }
  return place;
}

void ExpressionCursor::fail(const std::string& message, std::size_t at) const {
  throw ScenarioError(place_of(at), message);
}

void ExpressionCursor::fail_unexpected() const {
  if (at_end()) fail("the expression ends too soon");
  const std::string_view rest(text_.data() + at_, text_.size() - at_);
  if (rest.starts_with("not ")) fail("`not in` is not known; write `not (a in b)`");
  if (rest.starts_with("&&")) fail("`&&` is not known; write `and`");
  if (rest.starts_with("||")) fail("`||` is not known; write `or`");
  if (rest.front() == '!') fail("`!` is not known; write `not`");
  if (rest.front() == '=') fail("`=` is not known here; equality is `==`");
  if (rest.front() == '"') fail("texts need single quotes: 'text'");
  if (rest.front() == '+') fail("a sign `+` is not known");
  fail(str("unexpected `", word_at(at_), "`"));
}

std::string ExpressionCursor::word_at(std::size_t at) const {
  std::size_t end = at;
  while (end < text_.size() && (is_letter(text_[end]) || is_digit(text_[end]))) ++end;
  if (end == at) {
    ++end;
    while (end < text_.size() && continues_character(text_[end])) ++end;
  }
  return text_.substr(at, end - at);
}

void ExpressionCursor::skip_spaces() {
  while (at_ < text_.size() && is_space(text_[at_])) ++at_;
}

bool ExpressionCursor::take_word(std::string_view word) {
  skip_spaces();
  if (text_.compare(at_, word.size(), word) != 0) return false;
  const std::size_t end = at_ + word.size();
  if (end < text_.size() && (is_letter(text_[end]) || is_digit(text_[end]))) return false;
  at_ = end;
  return true;
}
bool ExpressionCursor::take(std::string_view symbol) {
  skip_spaces();
  if (text_.compare(at_, symbol.size(), symbol) != 0) return false;
  at_ += symbol.size();
  return true;
}
void ExpressionCursor::expect(std::string_view symbol, std::size_t opened) {
  if (take(symbol)) return;
  skip_spaces();
  if (at_end()) fail(str("the expression ends too soon: `", text_[opened], "` is not closed"), opened);
  fail_unexpected();
}

Literal ExpressionCursor::take_quoted() {
  const std::size_t opened = at_++;
  std::string value;
  while (!at_end() && text_[at_] != '\'') {
    char c = text_[at_++];
    if (c == '\\' && !at_end()) {
      c = text_[at_++];
      if (c == 'n') {
        c = '\n';
      } else if (c == 't') {
        c = '\t';
      } else if (c != '\\' && c != '\'') {
        fail("a backslash in a text can be followed by \\ ' n or t only", at_ - 2);
      }
    }
    value += c;
  }
  if (at_end()) fail("the text is not closed: a `'` is missing", opened);
  ++at_;
  return Literal(std::move(value));
}

Literal ExpressionCursor::take_number() {
  const std::size_t at = at_;
  const auto digits = [&] {
    while (!at_end() && is_digit(text_[at_])) ++at_;
  };
  digits();
  bool integer = true;
  if (at_ + 1 < text_.size() && text_[at_] == '.' && is_digit(text_[at_ + 1])) {
    integer = false;
    ++at_;
    digits();
  }
  if (!at_end() && (text_[at_] == 'e' || text_[at_] == 'E')) {
    std::size_t next = at_ + 1;
    if (next < text_.size() && (text_[next] == '+' || text_[next] == '-')) ++next;
    if (next < text_.size() && is_digit(text_[next])) {
      integer = false;
      at_ = next;
      digits();
    }
  }
  if (!at_end() && (is_letter(text_[at_]) || text_[at_] == '.')) {
    fail(str("`", text_.substr(at, at_ - at + 1), "` is not a number"), at);
  }
  const std::string number = text_.substr(at, at_ - at);
  if (number.size() > 1 && number[0] == '0' && is_digit(number[1])) {
    fail(str("leading zeros are refused: `", number, "`"), at);
  }
  try {
    Literal value = literal_of_scalar(number);
    if (integer && !value.is_int()) fail(str("`", number, "` is not an integer"), at);
    return value;
  } catch (const ScenarioError&) {
    throw;
  } catch (const Error& error) {
    fail(error.message(), at);
  }
}

}  // namespace lockstep::scenario
