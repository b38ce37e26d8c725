// Operations without gradients.
//
// Each runs on the current stream of the device of its tensors. It accepts non-contiguous, empty and size-1 tensors and
// meta tensors (for which it computes sizes only). It gives the same bits at any offset and alignment. Results are new
// contiguous tensors without a layout unless stated otherwise. float16 and bfloat16 are computed in float32 and rounded
// once. Index values are checked when the kernel runs, all other arguments at the call.
//
// Every operation throws Error for undefined operands, operands on different devices, sizes that do not fit and element
// types that it does not accept. "Any type" includes integers and bool; "numbers" excludes bool; "floating" means
// float64, float32, float16 and bfloat16. result_type() gives the common type of two operands.
#pragma once

#include <optional>
#include <vector>

#include "engine/tensor/number.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep::raw {

// The type of an operation on two tensors, as in PyTorch: promote() (engine/core/types.hpp) of their types. If one of
// the two has no dims, its type counts only if it is of a higher kind (floating, integer, bool) than the other's.
DType result_type(const Tensor& a, const Tensor& b);

// ---- element-wise, two tensors: sizes broadcast, the result has result_type(a, b) ----
// A product or quotient of a 16-bit type with a second operand of one element and another type computes with that
// element in float32. All others round both operands to the type of the result first. Both are as in PyTorch on the
// CPU.
Tensor add(const Tensor& a, const Tensor& b);      // any type
Tensor sub(const Tensor& a, const Tensor& b);      // numbers
Tensor mul(const Tensor& a, const Tensor& b);      // any type
Tensor div(const Tensor& a, const Tensor& b);      // any type; integers give float32
Tensor maximum(const Tensor& a, const Tensor& b);  // any type
Tensor minimum(const Tensor& a, const Tensor& b);  // any type

// ---- element-wise, a tensor and a constant: the sizes of the tensor ----
// A floating tensor keeps its type. An integer tensor keeps its type beside an integer and becomes float32 beside any
// other number, 1.0 included; bool becomes int64 or float32 in the same way. Throws Error for an integer that does not
// fit an int32 tensor. Beside a 16-bit type, add, sub, rsub and pow round the number to that type; mul, div and rdiv
// compute with it in float32.
Tensor add(const Tensor& a, Number b);
Tensor sub(const Tensor& a, Number b);
Tensor rsub(Number a, const Tensor& b);  // a - b
Tensor mul(const Tensor& a, Number b);
Tensor div(const Tensor& a, Number b);         // integers and bool become float32
Tensor rdiv(Number a, const Tensor& b);        // (1 / b) * a, two roundings; integers and bool become float32
Tensor pow(const Tensor& a, Number exponent);  // integers and bool become float32 for a negative exponent too

// ---- element-wise, one tensor: sizes and type of `a` ----
Tensor neg(const Tensor& a);    // numbers
Tensor sqrt(const Tensor& a);   // floating
Tensor rsqrt(const Tensor& a);  // floating; 1 / sqrt(a)
Tensor exp(const Tensor& a);    // floating
Tensor log(const Tensor& a);    // floating
Tensor abs(const Tensor& a);    // numbers
Tensor sign(const Tensor& a);   // numbers; -1, 0 or 1
Tensor relu(const Tensor& a);   // numbers
// grad where result > 0, else 0. grad: floating, sizes of the result of relu.
Tensor relu_backward(const Tensor& grad, const Tensor& result);
// Whether no element is infinite or NaN. Floating; waits for the stream; throws Error for a meta tensor.
bool all_finite(const Tensor& a);

// ---- reductions: partial results of fixed-size blocks, combined in order ----
// sum: any type; integers and bool give int64. mean: floating. Without dims: a scalar over all elements. With dims:
// negative ones count from the end, each may be named once (else Error); they are removed, or become 1 with keep_dims.
Tensor sum(const Tensor& a);
Tensor sum(const Tensor& a, const Dims& dims, bool keep_dims);
Tensor mean(const Tensor& a);
Tensor mean(const Tensor& a, const Dims& dims, bool keep_dims);
// Sums the dims that broadcasting `sizes` to the sizes of `a` expanded; the result has `sizes`. Any type. `a` itself
// when the sizes are equal. Throws Error when `sizes` do not broadcast to those of `a`.
Tensor sum_to(const Tensor& a, const Dims& sizes);
// The mean of (input - target)^2, a scalar of the promoted type. input: floating; target: the same sizes, any type.
Tensor mse_loss(const Tensor& input, const Tensor& target);

// ---- products: floating operands of one type, which is the type of the result ----
// (m, k) x (k, n) -> (m, n); (..., m, k) x (..., k, n) -> (..., m, n) with leading dims that broadcast; a vector (k)
// counts as (1, k) on the left and (k, 1) on the right, and its dim is removed from the result. Throws Error for
// scalars and for inner sizes that differ.
Tensor matmul(const Tensor& a, const Tensor& b);
// x @ weight^T + bias: x (..., in), weight (out, in), bias (out) or null -> (..., out).
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor* bias);

// ---- indexing and concatenation ----
// The elements of `a` (any type, at least one dim) at positions `index` of the dim: index is int64 or int32, at most
// one dim, n elements; the result has size n at the dim. Throws Error for a position outside 0 .. size - 1.
Tensor index_select(const Tensor& a, int dim, const Tensor& index);
// to[index[i]] += value[i] along the dim, in the order of i. value: sizes of `to` with size n at the dim; cast to the
// type of `to`. index as above.
void index_add_(const Tensor& to, int dim, const Tensor& index, const Tensor& value);
// The same for an index that an index_select of these sizes has taken: its positions are not checked, so the host waits
// for nothing.
void add_selected_(const Tensor& to, int dim, const Tensor& index, const Tensor& value);
// At least one tensor; sizes equal except at the dim; the result has the promoted type.
Tensor cat(const std::vector<Tensor>& tensors, int dim);

// ---- copies and conversions: any type ----
Tensor contiguous(const Tensor& a);                  // `a` itself when contiguous
Tensor clone(const Tensor& a);                       // a contiguous copy
Tensor reshape(const Tensor& a, const Dims& sizes);  // a view where possible, else a copy; one size may be -1
Tensor cast(const Tensor& a, DType dtype);           // `a` itself when it has the type
// `a` itself when it is on the device. Throws Error from meta to any other device.
Tensor to_device(const Tensor& a, device::Device device);

// ---- in place: the version of `to` is bumped, its layout stays ----
// `value` broadcasts to the sizes of `to`; its type must not be of a later kind (bool, integer, floating). Throws
// Error when `to` is expanded, that is, when one of its dims repeats one element, and when `value` shares some elements
// with `to` (require_no_partial_overlap in ops_launch.hpp). A wider type is rounded once.
// to += alpha * value, where alpha is rounded to the type of `to`. One rounding.
void add_(const Tensor& to, const Tensor& value, double alpha = 1.0);
void sub_(const Tensor& to, const Tensor& value);  // neither is bool
void mul_(const Tensor& to, const Tensor& value);
void div_(const Tensor& to, const Tensor& value);  // floating `to`
void add_(const Tensor& to, double value);         // floating `to`, as the next three
void sub_(const Tensor& to, double value);
void mul_(const Tensor& to, double value);
void div_(const Tensor& to, double value);
void relu_(const Tensor& to);  // numbers
void zero_(const Tensor& to);  // also into an expanded `to`
// Also into an expanded `to`. An int64 `to` gets an integer exactly. Throws Error for a number that the type cannot
// hold.
void fill_(const Tensor& to, Number value);
// Broadcasts, casts from any type to any type, and copies between devices.
void copy_(const Tensor& to, const Tensor& from);

}  // namespace lockstep::raw
