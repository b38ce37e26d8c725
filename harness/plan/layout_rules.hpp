// The layouts of values between modules: how an operation on sharded tensors changes the layout, from the plan's own
// reading. Only operations without a doubt are listed. For any other the layout is unknown, and the collectives that
// depend on it are not planned.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "engine/layout/placement.hpp"
#include "harness/plan/redistribution_cost.hpp"

namespace lockstep::plan {

struct Operand {
  Dims sizes;                                   // of the full tensor
  std::optional<layout::ShardedLayout> layout;  // empty: a plain tensor
};

// Whether the tape records this name for an operation that changes its first operand in place, such as `add_`.
constexpr bool is_in_place(std::string_view operation) { return operation.ends_with('_'); }

// The layout of the result, which has `sizes` in full. Empty: unknown. At least one operand is sharded. `operation`:
// the name that the tape records.
std::optional<layout::ShardedLayout> layout_after(std::string_view operation, const std::vector<Operand>& operands,
                                                  const Dims& sizes);

// Operations with weights on sharded tensors, whose forward needs no collective. Per axis:
//
//   operation   input          weight      bias        result        partial gradients
//   linear      Replicate      Shard(0)    Shard(0)    Shard(last)   that of the input
//   linear      Shard(last)    Shard(1)    Replicate   Partial       none
//   all three   Replicate      Replicate   Replicate   Replicate     none
//   all three   Shard(other)   Replicate   Replicate   as the input  those of weight and bias
//
// `linear` has an input (..., in), a weight (out, in) and a bias (out). `layer_norm` and `rms_norm` have an input and
// weights of its last dim. Operands are in this order; the bias may be missing.
struct WeightedReading {
  layout::ShardedLayout result;
  bool input_gradient_is_partial = false;
  std::vector<int> partial_axes;  // of the mesh, along which the gradients of weight and bias are partial
};
// Empty: unknown, for other operations and placements.
std::optional<WeightedReading> weighted_reading(std::string_view operation,
                                                const std::vector<layout::ShardedLayout>& operands);

// The axes of the mesh along which an element-wise operation leaves a partial gradient of operand `index`: those over
// which it is replicated and another operand is sharded. Empty for other operations.
std::vector<int> axes_of_partial_gradient(std::string_view operation,
                                          const std::vector<layout::ShardedLayout>& operands, std::size_t index);

// Whether an operation on the local shards of its operands needs no collective in forward, whatever their layout is.
bool is_local_operation(std::string_view operation);

// A cross-entropy of logits (..., classes) as a scenario calls it.
struct Loss {
  bool divides_by_weights = false;  // a mean over rows of unequal weight, or of which some are ignored
  bool shards_weight = false;       // the weights of the classes are sharded as the classes
};
// Its collectives. Where an axis shards the classes, the rows exchange their maximum, the sum of their exponentials and
// the logit of their target, with its weight if no rank has all weights. A mean sums the weights over the axes that
// shard rows. Backward has none.
std::vector<Movement> cross_entropy_movements(const layout::ShardedLayout& logits, const Loss& loss, int rank);

}  // namespace lockstep::plan
