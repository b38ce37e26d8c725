// Operations of networks without gradients, and the kernels of their derivatives.
//
// The conventions of ops.hpp hold: current stream, meta tensors, any strides in, contiguous out (except where stated),
// 16-bit types computed in float32 and rounded once, Error for operands that do not fit. Dropout masks are drawn on the
// host by the generator of the current rank, one number per element in memory order, so they do not depend on the
// device.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "engine/tensor/loss_options.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep::raw {

// ---- activations: floating, sizes and type of `a` ----
Tensor gelu(const Tensor& a);  // the exact form with erf
Tensor gelu_backward(const Tensor& grad, const Tensor& a);
Tensor tanh(const Tensor& a);
Tensor tanh_backward(const Tensor& grad, const Tensor& result);
Tensor sigmoid(const Tensor& a);
Tensor sigmoid_backward(const Tensor& grad, const Tensor& result);

// ---- embedding ----
// The rows of `weight` (n, d) at `indices` (int64 or int32, any sizes): (indices..., d). Throws Error for an index
// outside 0 .. n - 1.
Tensor embedding(const Tensor& weight, const Tensor& indices);
// Adds the rows of `grad` (indices..., d), in the order of the indices, to zeros of the weight's sizes. An embedding()
// of such a weight has checked the indices.
Tensor embedding_backward(const Tensor& grad, const Tensor& indices, const Dims& weight_sizes);

// ---- norms ----
// The result and the statistics that backward needs: one number per row, in float64 for float64 and float32 otherwise.
struct NormResult {
  Tensor result;
  Tensor mean;  // undefined for RMS norm
  Tensor rstd;
};
// Normalizes over the last `num_dims` dims (1 or more) of a floating x. weight and bias have the sizes of these dims
// and the type of x, or are null.
NormResult layer_norm(const Tensor& x, int num_dims, const Tensor* weight, const Tensor* bias, double eps = 1e-5);
NormResult rms_norm(const Tensor& x, int num_dims, const Tensor* weight, double eps = 1e-6);
struct NormGradients {
  Tensor x, weight, bias;  // only the requested ones are defined
};
// An undefined `mean` means RMS norm. `weight` is undefined when there is none.
NormGradients norm_backward(const Tensor& grad, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                            const Tensor& weight, int num_dims, bool for_x, bool for_weight, bool for_bias);

// ---- softmax ----
// Along one dim (negative: from the end) of a floating tensor; sizes and type of `a`.
Tensor softmax(const Tensor& a, int dim);
Tensor log_softmax(const Tensor& a, int dim);
Tensor softmax_backward(const Tensor& grad, const Tensor& result, int dim);
Tensor log_softmax_backward(const Tensor& grad, const Tensor& result, int dim);

// ---- the loss over classes (ops_losses.cpp) ----
struct CrossEntropyResult {
  Tensor result;    // of the type of the logits: a scalar, or the sizes of the targets for Reduction::none
  Tensor log_sums;  // one per row, for backward
  Tensor targets;   // positions among the local classes, for backward; undefined: the given targets
  Tensor weights;   // one per row, 0 for ignored rows; undefined if each row counts once
  Tensor total;     // the sum of the weights, if a mean divides by it; else undefined
};
// logits (..., classes) floating, targets (...) int64 from 0 to classes - 1, or the index that is ignored. A mean
// divides by the sum of the weights of the rows that count: NaN if there is none. Throws Error for other sizes and
// types, and when the logits have no element.
CrossEntropyResult cross_entropy(const Tensor& logits, const Tensor& targets, const LossOptions& options = {});
// The weight of the class of each row, 1 if `weight` is undefined; 0 for `ignored` and negative targets. `dtype`: of
// the result, the computation type of the logits.
Tensor class_weights(const Tensor& targets, const Tensor& weight, DType dtype,
                     std::optional<std::int64_t> ignored = {});
// By which a mean divides: the sum of the weights of the rows.
Tensor total_of_weights(const Tensor& weights);
// losses times weights in place, 0 for ignored rows.
void weigh_class_losses_(const Tensor& losses, const Tensor& weights, const Tensor& targets,
                         std::optional<std::int64_t> ignored);
// The gradient of the logits. grad: that of the result. `loss`: what cross_entropy gave. `divisor`: of a mean without
// `total`, else 1. Negative targets are no local class; `ignored` ones have the gradient 0.
Tensor cross_entropy_backward(const Tensor& grad, const Tensor& logits, const CrossEntropyResult& loss, double divisor,
                              std::optional<std::int64_t> ignored);

// ---- dropout ----
// A bool mask: each element is true with probability 1 - p, for p from 0 to 1. Draws nothing on meta and for p == 1.
Tensor keep_mask(const Dims& sizes, double p, device::Device device);
Tensor keep_mask_like(const Tensor& like, double p);                     // drawn in the order of the memory of `like`
Tensor keep_scaled(const Tensor& a, const Tensor& keep, double factor);  // a * factor where `keep` is true, else 0

// ---- products ----
// Whether float32 products of this rank (matmul, linear, attention, convolution) are computed in float64 and rounded
// once. That is slower, and independent of processor and library. Off by default; backward uses the setting in force
// when it runs.
void set_float32_products_exact(bool exact);
bool are_float32_products_exact();

// matmul into `out`, float32 or float64: all three have the same number of dims (2 or more) and equal leading dims, and
// each row of `out` is contiguous.
void matmul_into(const Tensor& out, const Tensor& a, const Tensor& b);

// ---- attention ----
struct AttentionResult {
  Tensor result;         // (..., queries, dv); may have the strides of q
  Tensor probabilities;  // (..., queries, keys) before dropout, float64 or float32
  Tensor keep;           // the dropout mask; undefined without dropout
};
// softmax(q k^T / sqrt(d)) v for q (..., queries, d), k (..., keys, d), v (..., keys, dv): floating, one type, equal
// leading dims. With `causal`, query i uses keys 0 to i. `mask` (null: none) is bool, broadcasts to the scores and is
// true where a key may be used. A query that may use no key gives zeros. Dropout with probability dropout_p applies to
// the probabilities and draws a number for every score, masked ones included. `draw`, if given, draws the mask of the
// dropout: bool, the sizes of the probabilities.
using DrawMask = std::function<Tensor()>;
AttentionResult attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, double dropout_p,
                          const Tensor* mask = nullptr, const DrawMask& draw = {});
struct AttentionGradients {
  Tensor q, k, v;
};
AttentionGradients attention_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                                      const Tensor& probabilities, const Tensor& keep, bool causal, double dropout_p);

// ---- convolution ----
// x (batch, in, height, width), weight (out, in, kernel height, kernel width), bias (out) or null, all floating of one
// type; stride and padding are (height, width). Result (batch, out, out height, out width). Throws Error for a stride
// below 1, a negative padding, and a kernel larger than the padded image.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor* bias, const Dims& stride, const Dims& padding);
struct ConvolutionGradients {
  Tensor x, weight, bias;  // only the requested ones are defined
};
ConvolutionGradients conv2d_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Dims& stride,
                                     const Dims& padding, bool for_x, bool for_weight, bool for_bias);

// ---- comparisons (ops_compare.cpp): any type ----
// Element-wise with broadcasting, compared in result_type(a, b); the result is bool.
Tensor eq(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);
// a where the bool `condition` is true, else b. All three broadcast; the result has result_type(a, b).
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
// Along one dim, which must have elements (else Error); it is removed, or becomes 1 with keep_dim. max and min keep the
// type of `a`; a NaN wins. argmax gives int64, the first of equal elements.
Tensor max(const Tensor& a, int dim, bool keep_dim = false);
Tensor min(const Tensor& a, int dim, bool keep_dim = false);
Tensor argmax(const Tensor& a, int dim, bool keep_dim = false);

}  // namespace lockstep::raw
