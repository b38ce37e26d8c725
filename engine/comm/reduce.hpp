// Sums (and products, largest, smallest) over ranks in the fixed order, on raw memory: per element a pairwise tree over
// the inputs, ((0+1)+(2+3))+((4+5)+(6+7)), odd counts carry the last one up. 16-bit types compute in float32 and round
// once; a mean divides once, after the whole sum, in the computing type. Not-a-number wins in max and min. The bits
// depend on the order of the inputs alone, never on the offset, the split or who computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/comm/process_group.hpp"

namespace lockstep::comm {

struct Reduction {
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  std::span<const std::byte* const> inputs;  // one a member, in group order
  std::span<std::byte* const> outputs;       // may be inputs; each gets the result
  int divisor = 1;                           // of a mean
  bool streams = false;                      // results go past the caches: large, and not read again soon
};

// Each of these returns the bytes that its place holds afterwards, counted by the code that stores them; the transport
// counts nothing else. A place that is the source itself holds them before. Of several places it is the least.

// Elements [begin, begin + count) of all inputs to those of all outputs.
std::size_t reduce(const Reduction& reduction, std::int64_t begin, std::int64_t count);

// A copy; past the caches when `streams`.
std::size_t copy(std::byte* to, const std::byte* from, std::size_t bytes, bool streams);

// A copy to each of several places, which reads the source once. A place may be the source itself, or null: none.
std::size_t copy_to_all(std::span<std::byte* const> to, const std::byte* from, std::size_t bytes, bool streams);

// Throws Error when the type has no such reduction (mean of integers, sums of bool).
void check_reduction(DType dtype, ReduceOp op, const char* operation);

}  // namespace lockstep::comm
