// Operations of networks, without gradients, and the kernels of their derivatives. As ops.hpp: the current stream,
// meta, any strides in, contiguous out; 16-bit types compute in float32 and round once. Dropout masks are drawn on the
// host by the current rank's generator, one number an element in memory order, so that no device changes them.
#pragma once

#include "engine/tensor/tensor.hpp"

namespace lockstep::raw {

// ---- activations ----
Tensor gelu(const Tensor& a);  // with erf
Tensor gelu_backward(const Tensor& grad, const Tensor& a);
Tensor tanh(const Tensor& a);
Tensor tanh_backward(const Tensor& grad, const Tensor& result);
Tensor sigmoid(const Tensor& a);
Tensor sigmoid_backward(const Tensor& grad, const Tensor& result);

// ---- picking ----
// Rows of `weight` (n, d) at int64 indices of any sizes: (indices..., d).
Tensor embedding(const Tensor& weight, const Tensor& indices);
// Adds the rows of grad up, in the order of the indices, into zeros of the weight's sizes.
Tensor embedding_backward(const Tensor& grad, const Tensor& indices, const Dims& weight_sizes);

// ---- norms ----
// What the forward keeps for backward: one number a row, of the type computed in.
struct Normed {
  Tensor result;
  Tensor mean;  // undefined for RMS norm
  Tensor rstd;
};
// Over the last `num_dims` dims; weight and bias (null: none) have their sizes and the type of x.
Normed layer_norm(const Tensor& x, int num_dims, const Tensor* weight, const Tensor* bias, double eps = 1e-5);
Normed rms_norm(const Tensor& x, int num_dims, const Tensor* weight, double eps = 1e-6);
struct NormGradients {
  Tensor x, weight, bias;  // those that were asked for
};
// `mean` undefined: of an RMS norm. `weight` may be undefined.
NormGradients norm_backward(const Tensor& grad, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                            const Tensor& weight, int num_dims, bool for_x, bool for_weight, bool for_bias);

// ---- softmax and what is built on it ----
Tensor softmax(const Tensor& a, int dim);
Tensor log_softmax(const Tensor& a, int dim);
Tensor softmax_backward(const Tensor& grad, const Tensor& result, int dim);
Tensor log_softmax_backward(const Tensor& grad, const Tensor& result, int dim);

struct ClassLoss {
  Tensor result;    // the mean over the rows, a scalar
  Tensor log_sums;  // for backward
};
// logits (rows, classes), targets (rows) of int64.
ClassLoss cross_entropy(const Tensor& logits, const Tensor& targets);
Tensor cross_entropy_backward(const Tensor& grad, const Tensor& logits, const Tensor& log_sums, const Tensor& targets);

// bool: true with probability 1 - p each. Draws nothing on meta.
Tensor keep_mask(const Dims& sizes, double p, device::Device device);
Tensor keep_scaled(const Tensor& a, const Tensor& keep, double factor);  // a * factor where kept, else 0

// Whether this rank's float32 products (matmul, linear, attention, convolution) are worked out in float64 and rounded
// once: slower, and the same whatever processor and library multiply. Off at first; backward follows what is set then.
void set_float32_products_exact(bool exact);
bool are_float32_products_exact();

// matmul into memory of the caller's: as many dims on each side, the leading ones equal, float32 or float64; the
// elements of a row of `out` lie one after the other.
void matmul_into(const Tensor& out, const Tensor& a, const Tensor& b);

struct Attended {
  Tensor result;         // (..., queries, d of v)
  Tensor probabilities;  // (..., queries, keys), before dropout; float64 or float32
  Tensor keep;           // undefined without dropout
};
// softmax(q k^T / sqrt(d)) v over (..., queries, d), (..., keys, d), (..., keys, dv) with equal leading dims. Causal: a
// query sees the keys up to its own number. `mask` (null: none), bool, broadcasts to the scores: true where a key may
// be seen. A query that sees none gives zeros. dropout_p acts on the probabilities; numbers are drawn for all scores,
// also those masked away.
Attended attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, double dropout_p,
                   const Tensor* mask = nullptr);
struct AttentionGradients {
  Tensor q, k, v;
};
AttentionGradients attention_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                                      const Tensor& probabilities, const Tensor& keep, bool causal, double dropout_p);

// ---- convolution ----
// x (batch, in, height, width), weight (out, in, height, width), bias (out); stride and padding: (height, width).
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor* bias, const Dims& stride, const Dims& padding);
struct ConvolutionGradients {
  Tensor x, weight, bias;  // those that were asked for
};
ConvolutionGradients conv2d_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Dims& stride,
                                     const Dims& padding, bool for_x, bool for_weight, bool for_bias);

// ---- comparisons (ops_compare.cpp) ----
// Element-wise with broadcasting, in the promoted type; the result is bool.
Tensor eq(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);  // a where true, else b
// Along a dim; what is no number is the largest, and the smallest. argmax: int64, the first of equals.
Tensor max(const Tensor& a, int dim, bool keep_dim = false);
Tensor min(const Tensor& a, int dim, bool keep_dim = false);
Tensor argmax(const Tensor& a, int dim, bool keep_dim = false);

}  // namespace lockstep::raw
