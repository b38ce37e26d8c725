#include "harness/verdict/compare.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>

#include <fmt/format.h>

#include "engine/core/checked.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"

namespace lockstep::verdict {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t block = 2048;  // elements judged before their places are looked for; both sides stay in cache
constexpr int lanes = 8;

// What one element is read as, and its bits. bool is read as a byte, for a byte other than 0 and 1 must not be
// undefined.
template <class T>
struct ElementOf {
  using Stored = T;
};
template <>
struct ElementOf<bool> {
  using Stored = std::uint8_t;
};

template <class T>
using Bits = std::conditional_t<
    sizeof(T) == 8, std::uint64_t,
    std::conditional_t<sizeof(T) == 4, std::uint32_t, std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint8_t>>>;

// One side; loads by copy, so that a snapshot may lie anywhere.
template <class T>
class Side {
 public:
  explicit Side(const void* data) : data_(static_cast<const char*>(data)) {}
  T operator[](std::int64_t i) const {
    T value;
    std::memcpy(&value, data_ + element_offset(i, static_cast<std::int64_t>(sizeof(T))), sizeof(T));
    return value;
  }
  Bits<T> bits(std::int64_t i) const {
    Bits<T> value;
    std::memcpy(&value, data_ + element_offset(i, static_cast<std::int64_t>(sizeof(T))), sizeof(T));
    return value;
  }

 private:
  const char* data_;
};

template <class T>
constexpr bool is_float = !std::is_integral_v<T>;

template <class T>
double as_double(T value) {
  if constexpr (is_float<T>) {
    return static_cast<double>(static_cast<ComputeType<T>>(value));
  } else {
    return static_cast<double>(value);
  }
}

template <class T>
std::uint64_t integer_distance(T a, T b) {
  const auto wide_a = static_cast<std::uint64_t>(static_cast<std::int64_t>(a));
  const auto wide_b = static_cast<std::uint64_t>(static_cast<std::int64_t>(b));
  return a > b ? wide_a - wide_b : wide_b - wide_a;
}

struct Allowed {
  double rtol;
  double absolute;  // atol and the share of the largest
};

// Within the tolerance by value. An infinite difference never is, whatever the tolerance comes to.
template <class T>
bool within(T a, T b, const Allowed& allowed) {
  if constexpr (is_float<T>) {
    const double x = as_double(a);
    const double y = as_double(b);
    const double difference = std::fabs(x - y);
    return (x == y) | ((difference <= allowed.absolute + allowed.rtol * std::fabs(y)) & (difference < infinity));
  } else {
    if (a == b) return true;
    // 64 bits of mantissa hold every difference of two int64.
    const auto limit = static_cast<long double>(allowed.absolute) +
                       static_cast<long double>(allowed.rtol) * std::fabs(static_cast<long double>(b));
    return static_cast<long double>(integer_distance(a, b)) <= limit;
  }
}

template <class T>
double difference_of(T a, T b) {
  if constexpr (is_float<T>) {
    const double x = as_double(a);
    const double y = as_double(b);
    return x == y ? 0.0 : std::fabs(x - y);
  } else {
    return static_cast<double>(integer_distance(a, b));
  }
}

template <class T>
bool is_nan(T value) {
  if constexpr (std::is_same_v<T, Half>) {
    return (value.bits & 0x7fffu) > 0x7c00u;
  } else if constexpr (is_float<T>) {
    return std::isnan(static_cast<ComputeType<T>>(value));
  } else {
    return false;
  }
}

template <class T>
bool is_zero(T value) {
  if constexpr (is_float<T>) {
    return static_cast<ComputeType<T>>(value) == 0;
  } else {
    return value == 0;
  }
}

template <class T>
bool all_zero(const Side<T>& side, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (!is_zero(side[i])) return false;
  }
  return true;
}

template <class T>
bool any_nan(const Side<T>& side, std::int64_t n) {
  if constexpr (is_float<T>) {
    for (std::int64_t start = 0; start < n; start += block) {
      const std::int64_t end = std::min(n, start + block);
      int found = 0;
      for (std::int64_t i = start; i < end; ++i) found |= is_nan(side[i]) ? 1 : 0;
      if (found != 0) return true;
    }
  }
  return false;
}

// What the pass over both sides found.
struct Findings {
  std::int64_t num_off = 0;
  std::int64_t num_nan = 0;     // of which have a not-a-number
  std::int64_t num_beyond = 0;  // of which are beyond the tolerance by value
  std::int64_t first = -1;
  std::int64_t worst = -1;
  double worst_difference = -1.0;
  double max_difference = 0.0;
};

// One element that is off: counted, and kept when it is the first or the worst.
template <class T>
void note(Findings& findings, std::int64_t i, T a, T b, const Allowed& allowed) {
  const bool nan = is_nan(a) || is_nan(b);
  const double difference = nan ? std::numeric_limits<double>::quiet_NaN() : difference_of(a, b);
  ++findings.num_off;
  if (nan) ++findings.num_nan;
  if (nan || !within(a, b, allowed)) ++findings.num_beyond;
  if (findings.first < 0) findings.first = i;
  const double badness = nan ? infinity : difference;
  if (badness > findings.worst_difference) {
    findings.worst = i;
    findings.worst_difference = badness;
  }
  if (nan) findings.max_difference = difference;
}

// Is element i off? `bits` asks for the same bits (and for a number).
template <class T>
bool is_off(const Side<T>& a, const Side<T>& b, std::int64_t i, const Allowed& allowed, bool bits) {
  const T x = a[i];
  if (bits) return a.bits(i) != b.bits(i) || is_nan(x);
  return !within(x, b[i], allowed);
}

template <class T>
Findings examine(const Side<T>& a, const Side<T>& b, std::int64_t n, const Allowed& allowed, bool bits) {
  Findings findings;
  double largest[lanes] = {};
  for (std::int64_t start = 0; start < n; start += block) {
    const std::int64_t end = std::min(n, start + block);
    // Independent lanes and no branches, so that the loop over them becomes vector instructions.
    std::int64_t off[lanes] = {};
    std::int64_t i = start;
    for (; i + lanes <= end; i += lanes) {
      for (int lane = 0; lane < lanes; ++lane) {
        const double difference = difference_of(a[i + lane], b[i + lane]);
        largest[lane] = difference > largest[lane] ? difference : largest[lane];
        off[lane] += is_off(a, b, i + lane, allowed, bits) ? 1 : 0;
      }
    }
    std::int64_t num_off = 0;
    for (std::int64_t count : off) num_off += count;
    for (; i < end; ++i) {
      const double difference = difference_of(a[i], b[i]);
      largest[0] = difference > largest[0] ? difference : largest[0];
      num_off += is_off(a, b, i, allowed, bits) ? 1 : 0;
    }
    if (num_off == 0) continue;
    for (i = start; i < end; ++i) {
      if (is_off(a, b, i, allowed, bits)) note(findings, i, a[i], b[i], allowed);
    }
  }
  if (!std::isnan(findings.max_difference)) findings.max_difference = *std::max_element(largest, largest + lanes);
  return findings;
}

// Steps from one representable number to the other; both zeros are the same place.
template <class T>
std::uint64_t units_apart(T a, T b) {
  constexpr int width = sizeof(T) * 8;
  const auto place = [](T value) {
    Bits<T> bits;
    std::memcpy(&bits, &value, sizeof bits);
    const std::uint64_t magnitude = bits & (~std::uint64_t{0} >> (65 - width));
    const bool negative = (bits >> (width - 1)) != 0;
    return std::pair(negative, magnitude);
  };
  const auto [negative_a, magnitude_a] = place(a);
  const auto [negative_b, magnitude_b] = place(b);
  if (negative_a != negative_b) return magnitude_a + magnitude_b;
  return magnitude_a > magnitude_b ? magnitude_a - magnitude_b : magnitude_b - magnitude_a;
}

template <class T>
std::string value_text(T value) {
  if constexpr (std::is_same_v<T, std::uint8_t>) {
    return value != 0 ? "true" : "false";
  } else if constexpr (is_float<T>) {
    return is_nan(value) ? "nan" : str(static_cast<ComputeType<T>>(value));
  } else {
    return str(value);
  }
}

std::string index_text(std::int64_t flat, const Dims& sizes) {
  Dims index(sizes.size(), 0);
  for (int dim = sizes.size() - 1; dim >= 0; --dim) {
    index[dim] = flat % sizes[dim];
    flat /= sizes[dim];
  }
  return to_text(index);
}

// "actual 1.5, expected 1.25, difference 0.25 absolute, 0.2 relative, 2097152 units in the last place"
template <class T>
std::string pair_text(T a, T b) {
  std::string text = str("actual ", value_text(a), ", expected ", value_text(b));
  if constexpr (!std::is_same_v<T, std::uint8_t>) {
    if (is_nan(a) || is_nan(b)) return text;
    const double difference = difference_of(a, b);
    const double magnitude = std::fabs(as_double(b));
    const double relative = difference == 0 ? 0.0 : difference / magnitude;
    if constexpr (is_float<T>) {
      text += fmt::format(", difference {:.6g} absolute", difference);
    } else {
      text += str(", difference ", integer_distance(a, b), " absolute");
    }
    if (!std::isnan(relative)) text += fmt::format(", {:.4g} relative", relative);
    if constexpr (is_float<T>) {
      if (std::isfinite(as_double(a)) && std::isfinite(as_double(b))) {
        const std::uint64_t units = units_apart(a, b);
        text += str(", ", units, units == 1 ? " unit" : " units", " in the last place");
      }
    }
  }
  return text;
}

std::string tolerance_text(const CompareOptions& options, double share) {
  std::string text = str("rtol ", options.tolerance.rtol, ", atol ", options.tolerance.atol);
  if (options.of_largest != 0) {
    text += str(", of_largest ", options.of_largest, " of ", options.largest_expected, " = ", share);
  }
  return text;
}

template <class T>
std::string describe(const Findings& findings, const Side<T>& a, const Side<T>& b, const Dims& sizes, std::int64_t n,
                     const CompareOptions& options, double share) {
  const std::string tolerance = tolerance_text(options, share);
  const auto percent = 100.0 * static_cast<double>(findings.num_off) / static_cast<double>(n);
  std::string text = fmt::format("{} of {} element{} ({:.3g} %) ", findings.num_off, n, n == 1 ? "" : "s", percent);
  const bool one = findings.num_off == 1;
  const bool no_tolerance = options.tolerance.rtol == 0 && options.tolerance.atol == 0 && options.of_largest == 0;
  const bool exact = std::is_same_v<T, std::uint8_t> || (!is_float<T> && no_tolerance);
  if (options.bits) {
    text += one ? "has other bits" : "have other bits";
    if (findings.num_beyond == 0) {
      text += str(", all within ", tolerance);
    } else {
      text += str(", ", findings.num_beyond, findings.num_beyond == 1 ? " is" : " are", " beyond ", tolerance);
    }
  } else if (exact) {
    text += one ? "differs, compared exactly" : "differ, compared exactly";
  } else {
    text += str(one ? "is" : "are", " beyond ", tolerance);
  }
  if (findings.num_nan > 0) {
    text +=
        str("; ", findings.num_nan, findings.num_nan == 1 ? " has" : " have", " a not-a-number, which equals nothing");
  }
  const auto place = [&](std::int64_t i) { return sizes.empty() ? std::string{} : " at " + index_text(i, sizes); };
  const auto line = [&](std::string_view which, std::int64_t i) {
    return str("\n  ", which, place(i), ": ", pair_text(a[i], b[i]));
  };
  if (findings.first == findings.worst) {
    text += line(n == 1 ? "value" : one ? "there" : "first and worst", findings.first);
  } else {
    text += line("first", findings.first);
    text += line("worst", findings.worst);
  }
  return text;
}

template <class T>
void judge_elements(Comparison& result, const Operand& actual, const Operand& expected, std::int64_t n,
                    const CompareOptions& options) {
  using Stored = typename ElementOf<T>::Stored;
  const Side<Stored> a(actual.data);
  const Side<Stored> b(expected.data);
  const bool shared = actual.storage != nullptr && actual.storage == expected.storage &&
                      actual.storage_offset == expected.storage_offset;
  result.same_bits = std::memcmp(actual.data, expected.data, bounded_bytes<Stored>(n)) == 0;
  result.trivial = shared || (all_zero(a, result.elements) && all_zero(b, result.elements));
  if (result.same_bits && !any_nan(a, n)) {
    result.equal = true;
    return;
  }
  double share = options.of_largest * options.largest_expected;
  if (!std::isfinite(share)) share = 0.0;
  Allowed allowed{options.tolerance.rtol, options.tolerance.atol + share};
  if constexpr (std::is_same_v<T, bool>) allowed = Allowed{0.0, 0.0};
  const Findings findings = examine(a, b, n, allowed, options.bits);
  result.equal = findings.num_off == 0;
  result.num_off = findings.num_off;
  result.max_abs_difference = findings.max_difference;
  if (!result.equal) result.message = describe(findings, a, b, actual.sizes, n, options, share);
}

void refuse_bad_tolerance(std::string_view name, double value) {
  if (std::isfinite(value) && value >= 0) return;
  throw Error(str("a comparison with ", name, " ", value, " says nothing"), "give a finite number, zero or more");
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

Comparison compare(const Operand& actual, const Operand& expected, const CompareOptions& options) {
  refuse_bad_tolerance("rtol", options.tolerance.rtol);
  refuse_bad_tolerance("atol", options.tolerance.atol);
  refuse_bad_tolerance("of_largest", options.of_largest);
  Comparison result;
  if (defect_armed(Defect::compare_always_equal)) [[unlikely]] {
    result.elements = num_elements(expected.sizes);
    result.equal = true;
    result.same_bits = true;
    return result;
  }
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
  LOCKSTEP_CHECK(actual.data != nullptr && expected.data != nullptr, "a comparison of ", to_text(actual.sizes),
                 " was given no data");
  std::int64_t num_judged = result.elements;
  if (defect_armed(Defect::compare_ignores_last)) [[unlikely]]
    --num_judged;
  dispatch_all(actual.dtype, [&]<class T>() { judge_elements<T>(result, actual, expected, num_judged, options); });
  return result;
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
  one.max_abs_difference = comparison.max_abs_difference;
  one.loosest = options.tolerance;
  one.loosest.of_largest = options.of_largest;
  evidence.add(one);
}

bool message_matches(const std::string& text, const std::string& pattern) {
  if (pattern.find_first_not_of('*') == std::string::npos) {
    throw Error(str("the pattern '", pattern, "' matches any message, even an empty one"),
                "give a part of the message that is expected");
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
