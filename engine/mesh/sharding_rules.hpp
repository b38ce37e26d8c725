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

#include <vector>

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
// The same for any number of operands.
struct Many {
  std::vector<ShardedLayout> operands, gradients;
  ShardedLayout result;
};
Many elementwise(const char* operation, const std::vector<ShardedLayout>& operands, Keeps keeps);

// Sum over dims (negative: from the end). The result is partial on the axes that shard one of them.
struct Unary {
  ShardedLayout operand, result;
};
Unary sum(const ShardedLayout& a, const Dims& dims, bool keep_dims);
// An operation along one dim, which no axis may shard; `what` states the effect on the dim.
enum class Dim : std::uint8_t { unchanged, kept_as_one, removed };
Unary along(const char* operation, const ShardedLayout& a, int dim, Dim what, Keeps keeps = Keeps::nothing);
// The largest or smallest element along a dim (`op`: max or min). The result is partial on the axes that shard the dim.
Unary extreme(const char* operation, const ShardedLayout& a, int dim, bool keep_dim, layout::PartialOp op);
// Dim i of the result is dim order[i] of `a`.
Unary permute(const ShardedLayout& a, const Dims& order);
Unary unsqueeze(const ShardedLayout& a, int dim);

// ---- views and joins (sharding_rules_views.cpp): partial placements stay ----
// The same elements in the same order with other (complete) sizes. A sharded dim stays whole, or is the first of the
// dims that are split or merged; then the shards before and after must hold the same elements, as even shards do. A
// later one of merged dims becomes a strided shard, and a strided shard becomes a shard of a later one of the dims into
// which its dim is split.
Unary view(const char* operation, const ShardedLayout& a, const Dims& sizes);
// `sizes` for `num_elements` elements, with the size that stands for a -1.
Dims complete_sizes(const char* operation, const Dims& from, const Dims& sizes);
// Removes a dim of (global) size 1, which no axis may shard; a dim of another size stays.
Unary squeeze(const ShardedLayout& a, int dim);
// Repeats dims of size 1, which no axis may shard, and adds dims in front; -1 keeps the size of a dim.
Unary expand(const ShardedLayout& a, const Dims& sizes);
// Elements begin to end (clamped as in Python) of a dim, which no axis may shard unless all elements stay.
Unary slice(const char* operation, const ShardedLayout& a, int dim, std::int64_t begin, std::int64_t end);
// Operands of equal placements, joined along a dim that no axis shards; `stack`: along a new dim.
Many join(const char* operation, const std::vector<ShardedLayout>& operands, int dim, bool stack);

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
// The same for the slices of `a` along a dim at `index` (one dim or none): the dim takes the part of the rows.
Binary index_select(const ShardedLayout& a, int dim, const ShardedLayout& index);

// ---- networks (sharding_rules_network.cpp) ----
// q, k, v (..., rows, width) and the mask, which may be null. On each axis all are replicated, or q, k and v are
// sharded along the same leading dim (batch or heads). A sharded mask has the same dim sharded; a replicated one has
// size 1 there.
Many attention(const ShardedLayout& q, const ShardedLayout& k, const ShardedLayout& v, const ShardedLayout* mask);
// logits (..., classes), targets (...), one weight per class or null. On each axis one of: both replicated; both
// sharded along the same dim of rows; the classes sharded and the targets replicated, where ranks reduce one number per
// row. The weight is replicated, or sharded like the classes. The result is that of each row (`per_row`), or a scalar
// that is partial over the axes that shard rows.
struct ClassLoss {
  ShardedLayout logits, targets, weight, result;  // weight is unspecified without one
  bool shards_weight = false;
};
ClassLoss cross_entropy(const ShardedLayout& logits, const ShardedLayout& targets,
                        const ShardedLayout* weight = nullptr, bool per_row = false);
// x (batch, in, height, width), weight (out, in, kernel height, kernel width): as linear, with the batch for the rows.
// `sizes`: of the result.
Linear conv2d(const ShardedLayout& x, const ShardedLayout& weight, const ShardedLayout* bias, const Dims& sizes);
// x (batch, channels, ...) sharded along the channels, and outside of training along any dim. One number per channel is
// sharded where the channels are, else replicated; `written`: one that training changes, which must have its layout
// already.
struct BatchNorm {
  ShardedLayout x, per_channel, per_channel_grad;
};
BatchNorm batch_norm(const ShardedLayout& x, const std::vector<ShardedLayout>& read,
                     const std::vector<ShardedLayout>& written, bool training);

}  // namespace lockstep::sharding
