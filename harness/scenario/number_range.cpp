#include "harness/scenario/number_range.hpp"

#include <charconv>
#include <cmath>

#include "engine/core/error.hpp"

namespace lockstep::scenario {

namespace {

std::string_view next_word(std::string_view& text) {
  const std::size_t end = std::min(text.find(' '), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return word;
}

double number_in(std::string_view word) {
  double number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  LOCKSTEP_CHECK(error == std::errc() && end == word.data() + word.size(), "no number in a range: ", word);
  return number;
}

}  // namespace

bool NumberRange::holds(double number) const {
  if (any()) return true;
  if (std::isnan(number)) return false;
  if (std::isinf(number)) return infinite && number > 0;
  return (above ? number > least : number >= least) && (below ? number < most : number <= most);
}

NumberRange parse_range(std::string_view text) {
  NumberRange range;
  range.text = std::string(text);
  while (!text.empty()) {
    const std::string_view word = next_word(text);
    const std::string_view end = next_word(text);
    if (word == "or" && end == "inf") {
      range.infinite = true;
    } else if (word == "from" || word == "above") {
      range.least = number_in(end);
      range.above = word == "above";
    } else if (word == "to" || word == "below") {
      range.most = number_in(end);
      range.below = word == "below";
    } else {
      throw InternalError(str("no range in the vocabulary: ", range.text));
    }
  }
  return range;
}

std::string out_of_range(std::string_view name, double number, const NumberRange& range) {
  if (range.holds(number)) return {};
  return str(name, " is ", number, "; it must be ", range.text,
             std::isinf(number) && !range.infinite ? ", and finite" : "");
}

}  // namespace lockstep::scenario
