// Reductions over the buffers of several ranks, for ranks that share a device.
//
// Element i of every output becomes the reduction of element i of all inputs. Its order is the pairwise tree of
// comm/reduce.hpp: ((0+1)+(2+3))+..., with an odd count the last input moves up one level. 16-bit types compute in
// float32 and round once. A mean divides once, after the sum. NaN propagates through max and min; integers wrap around.
#pragma once

#include <cstdint>
#include <span>

#include "engine/core/types.hpp"
#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

inline constexpr int max_members = 64;

enum class MemberOp : std::uint8_t { sum, product, max, min };

struct MemberBuffers {
  DType dtype = DType::float32;
  MemberOp op = MemberOp::sum;
  std::span<const std::byte* const> inputs;  // one per member, at most max_members
  std::span<std::byte* const> outputs;       // at most max_members; an output may be an input
  int divisor = 1;                           // of a mean, for floating types
};

// Reduces elements [begin, begin + count) into the same elements of the outputs. bool has max and min only.
void reduce_members(Execution on, const MemberBuffers& buffers, std::int64_t begin, std::int64_t count);

}  // namespace lockstep::kernels
