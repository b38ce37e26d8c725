// Reductions over ranks in a fixed order, and copies between ranks, on raw memory.
//
// Per element, a reduction is a pairwise tree over the inputs: ((0+1)+(2+3))+((4+5)+(6+7)); with an odd count the last
// input moves up one level. 16-bit types are computed in float32 and rounded once. A mean divides once, after the whole
// sum, in the computing type. NaN propagates through max and min. The bits depend only on the order of the inputs: not
// on the offset, the chunking, or the rank that computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/comm/process_group.hpp"

namespace lockstep::comm {

struct Reduction {
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  std::span<const std::byte* const> inputs;  // one per member, in group order
  std::span<std::byte* const> outputs;       // each receives the result; an output may be an input
  int divisor = 1;                           // of a mean
  bool nontemporal = false;                  // non-temporal stores: the outputs are large and not read again soon
};

// Each function returns how many bytes its destination holds afterwards, counted by the code that stores them; the
// transport counts nothing else. A destination that is the source itself holds all bytes. Of several destinations, the
// smallest number is returned.

// Reduces elements [begin, begin + count) of all inputs into the same elements of all outputs.
std::size_t reduce(const Reduction& reduction, std::int64_t begin, std::int64_t count);

// A copy, optionally with non-temporal stores.
std::size_t copy(std::byte* to, const std::byte* from, std::size_t bytes, bool nontemporal);

// A copy to several destinations that reads the source once. A null destination is skipped. A destination may be the
// source.
std::size_t copy_to_all(std::span<std::byte* const> to, const std::byte* from, std::size_t bytes, bool nontemporal);

// Throws Error when the reduction does not exist for the type: a mean of integers, or a sum, mean or product of bool.
void check_reduction(DType dtype, ReduceOp op, const char* operation);

}  // namespace lockstep::comm
