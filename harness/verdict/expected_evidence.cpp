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

#define LOCKSTEP_EVIDENCE(member) {#member, count_of<&Evidence::member>},
#define LOCKSTEP_LOOSEST(member) {#member, loosest_of<&Tolerance::member>},
constexpr Measure measures[] = {
#include "harness/scenario/evidence.def"
};
#undef LOCKSTEP_EVIDENCE
#undef LOCKSTEP_LOOSEST

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
