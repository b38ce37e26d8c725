// What an operation makes of the layouts of its operands, as pure functions: in which layouts it wants them, and in
// which its result then lies when every rank works on its own parts alone. No data, no communication;
// ops_on_sharded.cpp in engine/autograd moves the operands there and runs the operation.
//
//   const auto rule = sharding::elementwise("add", a, b, sharding::Keeps::sums);
//   // rule.a, rule.b: where the operands must lie; rule.result
//
// A partial value that an operation cannot take part by part is reduced first. Layouts that do not go together are an
// Error naming the operation and both.
#pragma once

#include "engine/layout/placement.hpp"

namespace lockstep::sharding {

using layout::ShardedLayout;

// Which partial values an operation takes part by part.
enum class Keeps : std::uint8_t {
  nothing,  // what is not linear
  sums,     // linear operations: sums and means
  all       // copies
};

// The layout with what it does not keep made whole.
ShardedLayout reduced(const ShardedLayout& layout, Keeps keeps);

// Element by element with broadcasting. On each axis both lie alike, or one is whole and has size 1 where the other is
// cut. `a_grad`, `b_grad`: how the gradients come out locally, partial where one part met many.
struct Binary {
  ShardedLayout a, b, result;
  ShardedLayout a_grad, b_grad;
};
Binary elementwise(const char* operation, const ShardedLayout& a, const ShardedLayout& b, Keeps keeps);

// Sums over dims (counted from the back when negative): partial on the axes that cut one of them.
struct Unary {
  ShardedLayout operand, result;
};
Unary sum(const ShardedLayout& a, const Dims& dims, bool keep_dims);
// An operation along one dim, which must be whole; the dim may go.
enum class Dim : std::uint8_t { stays, becomes_one, goes };
Unary along(const char* operation, const ShardedLayout& a, int dim, Dim what);
// The dims in another order: dim i of the result is dim order[i] of `a`.
Unary permute(const ShardedLayout& a, const Dims& order);
Unary unsqueeze(const ShardedLayout& a, int dim);

// ---- products and what is normalized by rows (sharding_rules_products.cpp) ----
// (..., m, k) by (..., k, n), two dims or more. On each axis: rows or batches of one and the other whole; columns of
// `b` and `a` whole; the same batches; or k cut alike, which gives partial sums.
Binary matmul(const ShardedLayout& a, const ShardedLayout& b);
// x (..., in), weight (out, in), bias (out) or null: as x by the transposed weight. A whole bias is cut with the
// columns, and becomes partial where the result is, so that it is added once; both without communication.
struct Linear {
  ShardedLayout x, weight, bias, result;  // bias: of no meaning without one
  ShardedLayout x_grad, weight_grad, bias_grad;
};
Linear linear(const ShardedLayout& x, const ShardedLayout& weight, const ShardedLayout* bias);
// Over the last `num_dims` dims, which must be whole; weights are whole, with gradients that are partial where x is
// cut.
struct Norm {
  ShardedLayout x, weight, weight_grad;
};
Norm normalize(const char* operation, const ShardedLayout& x, int num_dims, const ShardedLayout* weight,
               const ShardedLayout* bias);
// Rows of a weight (n, d): a = weight, b = indices. The indices are cut and the weight whole, or the weight's columns;
// or its rows, which gives partial sums when indices of other ranks' rows count as zeros.
Binary embedding(const ShardedLayout& weight, const ShardedLayout& indices);

}  // namespace lockstep::sharding
