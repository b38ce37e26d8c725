// The differentiable operations. Each runs the operation without gradients (engine/tensor/ops.hpp, same names, same
// checks, types and bits) and records how it is differentiated; what backward does not read is not kept.
//
//   Tensor loss = ops::mean(ops::pow(ops::sub(ops::linear(x, weight, &bias), y), 2.0));
//   backward({loss});
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/autograd/autograd.hpp"

namespace lockstep::ops {

// Element-wise with broadcasting and type promotion (ops_arithmetic.cpp).
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor add(const Tensor& a, double b);
Tensor sub(const Tensor& a, double b);
Tensor rsub(double a, const Tensor& b);  // a - b
Tensor mul(const Tensor& a, double b);
Tensor div(const Tensor& a, double b);
Tensor rdiv(double a, const Tensor& b);  // a / b

// Element-wise (ops_functions.cpp).
Tensor neg(const Tensor& a);
Tensor sqrt(const Tensor& a);
Tensor rsqrt(const Tensor& a);
Tensor exp(const Tensor& a);
Tensor log(const Tensor& a);
Tensor abs(const Tensor& a);
Tensor relu(const Tensor& a);
Tensor pow(const Tensor& a, double exponent);

// Products (ops_product.cpp).
Tensor matmul(const Tensor& a, const Tensor& b);
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor* bias);  // bias may be null

// Reductions and picking (ops_reduce.cpp).
Tensor sum(const Tensor& a);
Tensor sum(const Tensor& a, const Dims& dims, bool keep_dims);
Tensor mean(const Tensor& a);
Tensor mean(const Tensor& a, const Dims& dims, bool keep_dims);
Tensor mse_loss(const Tensor& input, const Tensor& target);
Tensor index_select(const Tensor& a, int dim, const Tensor& index);

// Activations, norms, embedding (ops_network.cpp).
Tensor gelu(const Tensor& a);  // with erf
Tensor tanh(const Tensor& a);
Tensor sigmoid(const Tensor& a);
// Rows of `weight` (n, d) at int64 indices of any sizes; gradients of a row used often are added in order of the
// indices.
Tensor embedding(const Tensor& weight, const Tensor& indices);
// Over the last `num_dims` dims, whose sizes weight and bias have; null: none.
Tensor layer_norm(const Tensor& x, int num_dims, const Tensor* weight, const Tensor* bias, double eps = 1e-5);
Tensor rms_norm(const Tensor& x, int num_dims, const Tensor* weight, double eps = 1e-6);

// Over (batch, channels, ...), one mean a channel. Training: of the batch, and the running statistics (null: none) move
// towards them by `momentum`, the variance with the divisor count - 1. Else: the running statistics.
Tensor batch_norm(const Tensor& x, const Tensor* weight, const Tensor* bias, const Tensor* running_mean,
                  const Tensor* running_var, bool training, double momentum = 0.1, double eps = 1e-5);
// x (batch, in, height, width), weight (out, in, height, width), bias (out) or null; stride, padding: (height, width).
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor* bias, const Dims& stride = {1, 1},
              const Dims& padding = {0, 0});

// Comparisons and choices (ops_compare.cpp). Only where() has a derivative.
Tensor eq(const Tensor& a, const Tensor& b);  // bool, as all six
Tensor ne(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);  // condition bool; all broadcast
Tensor max(const Tensor& a, int dim, bool keep_dim = false);
Tensor min(const Tensor& a, int dim, bool keep_dim = false);
Tensor argmax(const Tensor& a, int dim, bool keep_dim = false);  // int64, the first of equals

// Softmax and what is built on it (ops_attention.cpp). Dropout draws one number an element, in memory order, from the
// rank's generator on the host, whatever the device; what is kept is scaled by 1 / (1 - p).
Tensor softmax(const Tensor& a, int dim);
Tensor log_softmax(const Tensor& a, int dim);
Tensor cross_entropy(const Tensor& logits, const Tensor& targets);  // (rows, classes), int64 (rows); the mean
Tensor dropout(const Tensor& a, double p, bool training = true);
// softmax(q k^T / sqrt(d)) v over (..., queries, d), (..., keys, d), (..., keys, dv), of any strides. Causal: a query
// sees the keys up to its own number; `mask` (bool, broadcasts to the scores; null: none): those where it is true; one
// that sees none gives zeros. dropout_p acts on the probabilities and draws for all of them, also those masked away.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal = false, double dropout_p = 0.0,
                 const Tensor* mask = nullptr);

// Views and copies (ops_shape.cpp). The views share memory with `a`, as those of engine/tensor do.
Tensor view(const Tensor& a, const Dims& sizes);
Tensor reshape(const Tensor& a, const Dims& sizes);
Tensor flatten(const Tensor& a, int first_dim = 0, int last_dim = -1);  // both included
Tensor transpose(const Tensor& a, int dim0, int dim1);
Tensor permute(const Tensor& a, const Dims& order);
Tensor slice(const Tensor& a, int dim, std::int64_t begin, std::int64_t end);
Tensor select(const Tensor& a, int dim, std::int64_t index);
Tensor expand(const Tensor& a, const Dims& sizes);
Tensor squeeze(const Tensor& a, int dim);
Tensor unsqueeze(const Tensor& a, int dim);
// Views of `size` elements along the dim, the last of what is left; or of at most `count` parts by ceiling division.
std::vector<Tensor> split(const Tensor& a, std::int64_t size, int dim);
std::vector<Tensor> chunk(const Tensor& a, int count, int dim);
Tensor cat(const std::vector<Tensor>& tensors, int dim);
Tensor stack(const std::vector<Tensor>& tensors, int dim);
Tensor cast(const Tensor& a, DType dtype);
Tensor clone(const Tensor& a);
Tensor contiguous(const Tensor& a);
Tensor to_device(const Tensor& a, device::Device device);
Tensor detach(const Tensor& a);

// In place (ops_in_place.cpp): the tensor becomes the result of a new node. While recording, a leaf that requires a
// gradient and a view of a recorded tensor are refused before anything is written.
void add_(const Tensor& to, const Tensor& value, double alpha = 1.0);
void sub_(const Tensor& to, const Tensor& value);
void mul_(const Tensor& to, const Tensor& value);
void mul_(const Tensor& to, double value);
void copy_(const Tensor& to, const Tensor& from);
void zero_(const Tensor& to);

// Every operation above. Each has an entry in the registry (op_registry.hpp), which does not compile when one has none.
inline constexpr std::string_view operation_names[] = {"add",
                                                       "sub",
                                                       "rsub",
                                                       "mul",
                                                       "div",
                                                       "rdiv",
                                                       "neg",
                                                       "sqrt",
                                                       "rsqrt",
                                                       "exp",
                                                       "log",
                                                       "abs",
                                                       "relu",
                                                       "pow",
                                                       "matmul",
                                                       "linear",
                                                       "sum",
                                                       "mean",
                                                       "mse_loss",
                                                       "index_select",
                                                       "gelu",
                                                       "tanh",
                                                       "sigmoid",
                                                       "embedding",
                                                       "layer_norm",
                                                       "rms_norm",
                                                       "batch_norm",
                                                       "conv2d",
                                                       "eq",
                                                       "ne",
                                                       "lt",
                                                       "le",
                                                       "gt",
                                                       "ge",
                                                       "where",
                                                       "max",
                                                       "min",
                                                       "argmax",
                                                       "softmax",
                                                       "log_softmax",
                                                       "cross_entropy",
                                                       "dropout",
                                                       "attention",
                                                       "view",
                                                       "reshape",
                                                       "flatten",
                                                       "transpose",
                                                       "permute",
                                                       "slice",
                                                       "select",
                                                       "expand",
                                                       "squeeze",
                                                       "unsqueeze",
                                                       "split",
                                                       "chunk",
                                                       "cat",
                                                       "stack",
                                                       "cast",
                                                       "clone",
                                                       "contiguous",
                                                       "to_device",
                                                       "detach",
                                                       "add_",
                                                       "sub_",
                                                       "mul_",
                                                       "copy_",
                                                       "zero_"};

}  // namespace lockstep::ops
