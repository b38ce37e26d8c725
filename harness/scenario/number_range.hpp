// The range of a number in a signature of verbs.def, after its type: `num from 0 to 3600000`, `num above 0 or inf`,
// `int from 1`. A missing end is unbounded. Without `or inf` the number must be finite. Not-a-number is in no range.
// `validate`, the run, the JSON Schema and REFERENCE.md all use these ranges.
#pragma once

#include <limits>
#include <string>
#include <string_view>

namespace lockstep::scenario {

struct NumberRange {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool above = false;     // excludes `least` itself
  bool below = false;     // excludes `most` itself
  bool infinite = false;  // includes infinity
  std::string text;       // "from 0 to 3600000"; empty: any number

  bool any() const { return text.empty(); }
  bool holds(double number) const;
};

// Parses the text of a range. Throws InternalError for another text.
NumberRange parse_range(std::string_view text);

// The error message "lr is -1; it must be from 0"; empty when the number is in the range.
std::string out_of_range(std::string_view name, double number, const NumberRange& range);

}  // namespace lockstep::scenario
