// Sharding rules of operations, as pure functions of the layouts of the operands: the layouts to which the operands
// must be redistributed, and the layout of the result when every rank then computes on its local shards alone. No data,
// no communication; engine/autograd/ops_on_sharded.cpp redistributes the operands and runs the operation.
//
//   const auto rule = sharding::elementwise("add", a, b, sharding::Keeps::sums);
//   // rule.a, rule.b: layouts that the operands must have; rule.result: layout of the result
//
// A partial operand that an operation does not accept is reduced first (the rule asks for Replicate). Every rule throws
// Error, with the operation and both layouts, for operands that do not match.
#pragma once

#include "engine/layout/placement.hpp"

namespace lockstep::sharding {

using layout::ShardedLayout;

// The partial placements that an operation accepts, because it may be applied to each summand.
enum class Keeps : std::uint8_t {
  nothing,  // operations that are not linear
  sums,     // linear operations: sums and means
  all       // copies
};

// The layout with Replicate in place of the partial placements that are not kept.
ShardedLayout reduced(const ShardedLayout& layout, Keeps keeps);

// Element-wise with broadcasting. On each axis both operands have the same placement, or one is replicated and has size
// 1 at the dim that the other shards. `a_grad`, `b_grad`: the layouts in which the local gradients arise, partial where
// one element is combined with the elements of several shards.
struct Binary {
  ShardedLayout a, b, result;
  ShardedLayout a_grad, b_grad;
};
Binary elementwise(const char* operation, const ShardedLayout& a, const ShardedLayout& b, Keeps keeps);

// Sum over dims (negative: from the end). The result is partial on the axes that shard one of them.
struct Unary {
  ShardedLayout operand, result;
};
Unary sum(const ShardedLayout& a, const Dims& dims, bool keep_dims);
// An operation along one dim, which no axis may shard; `what` states the effect on the dim.
enum class Dim : std::uint8_t { unchanged, kept_as_one, removed };
Unary along(const char* operation, const ShardedLayout& a, int dim, Dim what);
// Dim i of the result is dim order[i] of `a`.
Unary permute(const ShardedLayout& a, const Dims& order);
Unary unsqueeze(const ShardedLayout& a, int dim);

// ---- products, norms, embedding (sharding_rules_products.cpp) ----
// (..., m, k) x (..., k, n), two dims or more each. On each axis one of: both replicated; `a` sharded along m or a
// batch dim and `b` replicated; `b` sharded along n or a batch dim and `a` replicated; both sharded along the same
// batch dim; both sharded along k in the same way, which gives a partial result.
Binary matmul(const ShardedLayout& a, const ShardedLayout& b);
// x (..., in), weight (out, in), bias (out) or null: as matmul with the transposed weight. A replicated bias is sharded
// where the columns of the result are, and becomes partial where the result is partial, so that it is added once.
// Neither needs communication.
struct Linear {
  ShardedLayout x, weight, bias, result;  // bias is unspecified without one
  ShardedLayout x_grad, weight_grad, bias_grad;
};
Linear linear(const ShardedLayout& x, const ShardedLayout& weight, const ShardedLayout* bias);
// Over the last `num_dims` dims, which no axis may shard. Weights are replicated; their gradients are partial where x
// is sharded.
struct Norm {
  ShardedLayout x, weight, weight_grad;
};
Norm normalize(const char* operation, const ShardedLayout& x, int num_dims, const ShardedLayout* weight,
               const ShardedLayout* bias);
// Rows of a weight (n, d): a = weight, b = indices. On each axis one of: only the indices sharded; only the columns of
// the weight sharded; only the rows sharded, which gives a partial result if rows of other ranks count as zeros.
Binary embedding(const ShardedLayout& weight, const ShardedLayout& indices);

}  // namespace lockstep::sharding
