// Operations without gradients. Each runs on the current stream of its tensors' device, checks types, sizes and devices
// (mixing devices is an error), works on meta (shapes only), on non-contiguous, empty and size-1 inputs, and gives the
// same bits at any offset and alignment. Results are contiguous. 16-bit types compute in float32 and round once.
#pragma once

#include <optional>
#include <vector>

#include "engine/tensor/tensor.hpp"

namespace lockstep::raw {

// Element-wise with broadcasting and type promotion; integer division `div` gives float32.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);
// With a number, the type stays the tensor's (an integer tensor with a fractional number becomes float32).
Tensor add(const Tensor& a, double b);
Tensor sub(const Tensor& a, double b);
Tensor rsub(double a, const Tensor& b);  // a - b
Tensor mul(const Tensor& a, double b);
Tensor div(const Tensor& a, double b);
Tensor rdiv(double a, const Tensor& b);  // a / b
Tensor pow(const Tensor& a, double exponent);

Tensor neg(const Tensor& a);
Tensor sqrt(const Tensor& a);
Tensor rsqrt(const Tensor& a);
Tensor exp(const Tensor& a);
Tensor log(const Tensor& a);
Tensor abs(const Tensor& a);
Tensor sign(const Tensor& a);
Tensor relu(const Tensor& a);
Tensor relu_backward(const Tensor& grad, const Tensor& result);  // grad where result > 0, else 0
bool all_finite(const Tensor& a);                                // waits for the stream

// Reductions: fixed-size blocks, then the block partials in order. Over all elements, or some dims.
Tensor sum(const Tensor& a);  // a scalar; integers and bool sum as int64
Tensor sum(const Tensor& a, const Dims& dims, bool keep_dims);
Tensor mean(const Tensor& a);
Tensor mean(const Tensor& a, const Dims& dims, bool keep_dims);
Tensor sum_to(const Tensor& a, const Dims& sizes);  // undoes a broadcast

// Products. matmul: 1-d, 2-d and batched with broadcasting, as PyTorch's; linear: x @ weight^T (+ bias), x (..., in),
// weight (out, in). Floating types; GEMM of the vendor library.
Tensor matmul(const Tensor& a, const Tensor& b);
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor* bias);
Tensor mse_loss(const Tensor& input, const Tensor& target);  // mean of squares, a scalar
Tensor index_select(const Tensor& a, int dim, const Tensor& index);
void index_add_(const Tensor& to, int dim, const Tensor& index, const Tensor& value);

Tensor contiguous(const Tensor& a);                  // the tensor itself when it is
Tensor clone(const Tensor& a);                       // contiguous copy
Tensor reshape(const Tensor& a, const Dims& sizes);  // a view where possible, else a copy
Tensor cat(const std::vector<Tensor>& tensors, int dim);
Tensor cast(const Tensor& a, DType dtype);                 // the tensor itself when it has the type
Tensor to_device(const Tensor& a, device::Device device);  // the tensor itself when it is there

// In place; bump the version of the written tensor.
void add_(const Tensor& to, const Tensor& value, double alpha = 1.0);
void sub_(const Tensor& to, const Tensor& value);
void mul_(const Tensor& to, const Tensor& value);
void mul_(const Tensor& to, double value);
void div_(const Tensor& to, double value);
void zero_(const Tensor& to);
void fill_(const Tensor& to, double value);
void copy_(const Tensor& to, const Tensor& from);  // broadcasts, casts, crosses devices

}  // namespace lockstep::raw
