// Comparing values: the measure behind expect_equal, expect_different and expect_across, its message, and the evidence
// it counts. It works on plain host buffers, so it is tested without ranks or devices.
//
//   Operand a{DType::float32, {2, 3}, pointer, storage_id}, b{...};
//   Comparison c = compare(a, b, {.tolerance = tolerance_of(DType::float32)});
//   if (!c.equal) fail(c.message);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/core/shape.hpp"
#include "engine/core/types.hpp"
#include "harness/verdict/results.hpp"

namespace lockstep::verdict {

// The default tolerance (rtol/atol): float32 1.3e-6/1e-5, float64 1e-7/1e-7, float16 1e-3/1e-5, bfloat16 1.6e-2/1e-5.
// Integers and booleans are compared exactly.
Tolerance tolerance_of(DType dtype);

// The tolerance that takes the place of equal bits where sums over ranks have the order of a library: rounding in
// another order, carried through some training steps (rtol/of_largest): float32 1e-3/1e-4, float64 1e-9/1e-10, float16
// 1e-2/1e-2, bfloat16 5e-2/5e-2. `dtype` is the coarsest type that the values went through
// (engine/tensor/types_made.hpp). Integers and booleans have no other order: equal.
Tolerance tolerance_of_another_order(DType dtype);

// A snapshot of one value in host memory, contiguous in row-major order. It does not own its data.
struct Operand {
  DType dtype = DType::float32;
  Dims sizes;
  const void* data = nullptr;
  const void* storage = nullptr;    // identity of the tensor's storage; null: unknown
  std::int64_t storage_offset = 0;  // of the first element, in elements
};

struct CompareOptions {
  Tolerance tolerance;
  double of_largest = 0.0;      // adds of_largest * largest_expected to the tolerance, if that product is finite
  double largest_expected = 0;  // max |expected| over the whole list to which the value belongs
  bool bits = false;            // the same bits are required
  bool bits_relaxed = false;    // they would be, but for the order of sums; the tolerance takes their place
  std::string_view before_actual = "actual ", before_expected = "expected ";  // before the values in the message
};

struct Comparison {
  bool equal = false;  // under the options, `bits` included
  bool same_bits = false;
  bool trivial = false;  // both sides all zero, the same storage at the same offset, or no element
  std::int64_t elements = 0;
  std::int64_t num_off = 0;  // elements for which the comparison does not hold
  double max_abs_difference = 0.0;
  // Number and share of elements off, the first and the worst index with both values, the difference (absolute,
  // relative, and in units in the last place), and the tolerance. Empty when equal.
  std::string message;
};

// Compares two operands element by element. Equal when |actual - expected| <= atol + rtol * |expected| + of_largest *
// largest_expected for every element, or, with `bits`, when all bits are the same. Operands of different dtype or sizes
// are not equal, and the message says so. A not-a-number equals nothing; an infinity equals only itself. Booleans are
// always compared exactly. Integers are compared exactly unless a tolerance is given. Tolerances are finite and not
// negative.
Comparison compare(const Operand& actual, const Operand& expected, const CompareOptions& options);

// Adds a comparison to the evidence. Trivial comparisons are counted apart; `bits` counts as required,
// `bits_relaxed` apart.
void count(Evidence& evidence, const Comparison& comparison, const CompareOptions& options);

// Whether `pattern` matches at any place in `text`; `*` matches any characters. Throws Error for a pattern that would
// match the empty text (validation refuses such patterns earlier).
bool message_matches(const std::string& text, const std::string& pattern);

}  // namespace lockstep::verdict
