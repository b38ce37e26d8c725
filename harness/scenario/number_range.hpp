// The range of a number in a signature of verbs.def, behind its type: `num from 0 to 3600000`, `num above 0 or inf`,
// `int from 1`. An end that is not given is open, and without `or inf` the number is finite. Not-a-number is in no
// range. One table so serves `validate`, the run, the JSON Schema and REFERENCE.md.
#pragma once

#include <limits>
#include <string>
#include <string_view>

namespace lockstep::scenario {

struct NumberRange {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool above = false;     // `least` itself is outside
  bool below = false;     // `most` itself is outside
  bool infinite = false;  // infinity is inside
  std::string text;       // "from 0 to 3600000"; empty: any number

  bool any() const { return text.empty(); }
  bool holds(double number) const;
};

// Throws InternalError for a text that is no range.
NumberRange parse_range(std::string_view text);

// "lr is -1; it must be from 0", or nothing when the number is in the range.
std::string out_of_range(std::string_view name, double number, const NumberRange& range);

}  // namespace lockstep::scenario
