// The evidence that a scenario states, held against that of a case (declared in judge.hpp).

#include <algorithm>
#include <iterator>
#include <string_view>

#include "engine/core/error.hpp"
#include "harness/verdict/judge.hpp"

namespace lockstep::verdict {

namespace {

struct Measure {
  std::string_view name;
  double (*of)(const Evidence& evidence);
};

template <auto Member>
double count_of(const Evidence& evidence) {
  return static_cast<double>(evidence.*Member);
}

template <auto Member>
double loosest_of(const Evidence& evidence) {
  return evidence.loosest.*Member;
}

constexpr Measure measures[] = {
    {"comparisons", count_of<&Evidence::comparisons>},
    {"trivial", count_of<&Evidence::trivial>},
    {"elements", count_of<&Evidence::elements>},
    {"same_bits", count_of<&Evidence::same_bits>},
    {"bits_required", count_of<&Evidence::bits_required>},
    {"bits_relaxed", count_of<&Evidence::bits_relaxed>},
    {"conditions", count_of<&Evidence::conditions>},
    {"collectives_checked", count_of<&Evidence::collectives_checked>},
    {"orders_checked", count_of<&Evidence::orders_checked>},
    {"errors_expected", count_of<&Evidence::errors_expected>},
    {"planned_in_order", count_of<&Evidence::planned_in_order>},
    {"max_abs_difference", count_of<&Evidence::max_abs_difference>},
    {"rtol", loosest_of<&Tolerance::rtol>},
    {"atol", loosest_of<&Tolerance::atol>},
    {"of_largest", loosest_of<&Tolerance::of_largest>},
};

}  // namespace

std::string evidence_problem(const Evidence& evidence, const std::vector<ExpectedEvidence>& expected) {
  std::string text;
  for (const ExpectedEvidence& one : expected) {
    const auto* const measure = std::ranges::find(measures, one.name, &Measure::name);
    LOCKSTEP_CHECK(measure != std::end(measures), "evidence has no measure `", one.name, "`");
    const double value = measure->of(evidence);
    if (value != one.value) text += str(text.empty() ? "" : ", ", one.name, " is ", value, ", expected ", one.value);
  }
  return text;
}

}  // namespace lockstep::verdict
