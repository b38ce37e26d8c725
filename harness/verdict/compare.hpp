// Comparing values: the measure behind expect_equal, expect_different and expect_across, what it reports, and the
// evidence it counts. Works on plain host buffers, so that it is tested without ranks or devices.
//
//   Operand a{DType::float32, {2, 3}, pointer, storage_id}, b{...};
//   Comparison c = compare(a, b, tolerance_of(DType::float32), {});
//   if (!c.equal) fail(c.message);
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/core/shape.hpp"
#include "engine/core/types.hpp"
#include "harness/verdict/results.hpp"

namespace lockstep::verdict {

// float32 1.3e-6/1e-5, float64 1e-7/1e-7, float16 1e-3/1e-5, bfloat16 1.6e-2/1e-5, everything else exactly.
Tolerance tolerance_of(DType dtype);

// A contiguous host snapshot of one value.
struct Operand {
  DType dtype = DType::float32;
  Dims sizes;
  const void* data = nullptr;
  const void* storage = nullptr;  // identity of what it was taken from; equal identities make the comparison trivial
  std::int64_t storage_offset = 0;
};

struct CompareOptions {
  Tolerance tolerance;
  double of_largest = 0.0;      // adds of_largest * largest_expected to the tolerance, if that is finite
  double largest_expected = 0;  // max |expected| over the whole list the value belongs to
  bool bits = false;            // the same bits are required
};

struct Comparison {
  bool equal = false;  // by the options (bits included)
  bool same_bits = false;
  bool trivial = false;  // all zero on both sides, shared storage, or no element
  std::int64_t elements = 0;
  std::int64_t num_off = 0;
  double max_abs_difference = 0.0;
  // Number and share of elements off, first and worst index with both values, the difference absolute, relative and in
  // units in the last place, and the tolerance. Empty when equal.
  std::string message;
};

// Types and sizes must agree (else not equal, with a message saying so); not-a-number equals nothing; an infinity
// equals itself only. Equal when |actual - expected| <= atol + rtol * |expected| + of_largest * largest_expected
// everywhere, or, with `bits`, when all bits are the same. Booleans are compared exactly, integers too unless a
// tolerance is given. Throws Error for a tolerance that is negative or not finite.
Comparison compare(const Operand& actual, const Operand& expected, const CompareOptions& options);

// Adds a comparison to the evidence (trivial ones apart; `bits` counts as required).
void count(Evidence& evidence, const Comparison& comparison, const CompareOptions& options);

// `text` matches `pattern` where `*` stands for anything, at any place in the text. A pattern that matches the empty
// text is refused by validation; here it throws Error.
bool message_matches(const std::string& text, const std::string& pattern);

}  // namespace lockstep::verdict
