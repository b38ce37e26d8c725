#include "harness/verdict/compare.hpp"

#include <cmath>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "engine/core/checked.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "harness/verdict/difference_text.hpp"
#include "harness/verdict/elements.hpp"

namespace lockstep::verdict {

namespace {

using elementwise::Allowed;
using elementwise::Elements;

template <class T>
void judge_elements(Comparison& result, const Operand& actual, const Operand& expected, std::int64_t n,
                    const CompareOptions& options) {
  using Stored = typename elementwise::ElementOf<T>::Stored;
  const Elements<Stored> a(actual.data);
  const Elements<Stored> b(expected.data);
  const bool shared = actual.storage != nullptr && actual.storage == expected.storage &&
                      actual.storage_offset == expected.storage_offset;
  result.same_bits = std::memcmp(actual.data, expected.data, bounded_bytes<Stored>(n)) == 0;
  result.trivial = shared || (all_zero(a, result.elements) && all_zero(b, result.elements));
  if (result.same_bits && !any_nan(a, n)) {
    result.equal = true;
    return;
  }
  double allowance = options.of_largest * options.largest_expected;
  if (!std::isfinite(allowance)) allowance = 0.0;
  Allowed allowed{options.tolerance.rtol, options.tolerance.atol + allowance};
  if constexpr (std::is_same_v<T, bool>) allowed = Allowed{0.0, 0.0};
  const elementwise::Findings findings = examine(a, b, n, allowed, options.bits);
  result.equal = findings.num_off == 0;
  result.num_off = findings.num_off;
  result.max_abs_difference = findings.max_difference;
  if (!result.equal) result.message = describe(findings, a, b, actual.sizes, n, options, allowance);
}

// The number of elements that a comparison looks at.
std::int64_t num_judged(std::int64_t elements) {
  return defect_armed(Defect::compare_ignores_last) ? elements - 1 : elements;
}

Comparison compare_operands(const Operand& actual, const Operand& expected, const CompareOptions& options) {
  Comparison result;
  if (actual.dtype != expected.dtype) {
    result.message = str("types differ: actual is ", name_of(actual.dtype), ", expected is ", name_of(expected.dtype));
    return result;
  }
  if (!(actual.sizes == expected.sizes)) {
    result.message = str("sizes differ: actual is ", to_text(actual.sizes), ", expected is ", to_text(expected.sizes));
    return result;
  }
  result.elements = num_elements(actual.sizes);
  if (result.elements == 0) {
    result.equal = true;
    result.same_bits = true;
    result.trivial = true;
    return result;
  }
  LOCKSTEP_CHECK(actual.data != nullptr && expected.data != nullptr, "compare: no data of sizes ",
                 to_text(actual.sizes));
  dispatch_all(actual.dtype,
               [&]<class T>() { judge_elements<T>(result, actual, expected, num_judged(result.elements), options); });
  return result;
}

// The result of a comparison that looks at nothing, for the seeded defect.
Comparison assumed_equal(const Operand& expected) {
  Comparison result;
  result.elements = num_elements(expected.sizes);
  result.equal = true;
  result.same_bits = true;
  return result;
}

}  // namespace

Tolerance tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return {1.3e-6, 1e-5};
    case DType::float64:
      return {1e-7, 1e-7};
    case DType::float16:
      return {1e-3, 1e-5};
    case DType::bfloat16:
      return {1.6e-2, 1e-5};
    case DType::int64:
    case DType::int32:
    case DType::boolean:
      break;
  }
  return {0.0, 0.0};
}

Tolerance tolerance_of_another_order(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return {1e-3, 1e-5, 1e-4};
    case DType::float64:
      return {1e-9, 1e-12, 1e-10};
    case DType::float16:
      return {1e-2, 1e-5, 1e-2};
    case DType::bfloat16:
      return {5e-2, 1e-5, 5e-2};
    case DType::int64:
    case DType::int32:
    case DType::boolean:
      break;
  }
  return {0.0, 0.0};
}

Comparison compare(const Operand& actual, const Operand& expected, const CompareOptions& options) {
  for (const double value : {options.tolerance.rtol, options.tolerance.atol, options.of_largest})
    LOCKSTEP_CHECK(std::isfinite(value) && value >= 0, "compare: a tolerance is ", value);
  if (defect_armed(Defect::compare_always_equal)) [[unlikely]]
    return assumed_equal(expected);
  return compare_operands(actual, expected, options);
}

void count(Evidence& evidence, const Comparison& comparison, const CompareOptions& options) {
  if (comparison.trivial) {
    ++evidence.trivial;
    return;
  }
  Evidence one;
  one.comparisons = 1;
  one.elements = comparison.elements;
  one.same_bits = comparison.same_bits ? 1 : 0;
  one.bits_required = options.bits ? 1 : 0;
  one.bits_relaxed = options.bits_relaxed ? 1 : 0;
  one.max_abs_difference = comparison.max_abs_difference;
  one.loosest = options.tolerance;
  one.loosest.of_largest = options.of_largest;
  evidence.add(one);
}

bool message_matches(const std::string& text, const std::string& pattern) {
  if (pattern.find_first_not_of('*') == std::string::npos) {
    throw Error(str("the pattern '", pattern, "' matches any message, even an empty one"),
                "give a part of the expected message");
  }
  std::size_t from = 0;
  std::string_view rest = pattern;
  while (true) {
    const std::size_t star = rest.find('*');
    const std::string_view piece = rest.substr(0, star);
    const std::size_t found = text.find(piece, from);
    if (found == std::string::npos) return false;
    from = found + piece.size();
    if (star == std::string_view::npos) return true;
    rest.remove_prefix(star + 1);
  }
}

}  // namespace lockstep::verdict
