// The entries of the registry, one function each, and helpers for their references.
#pragma once

#include <cmath>
#include <utility>
#include <vector>

#include "engine/autograd/op_registry.hpp"

namespace lockstep::ops {

using Inputs = std::vector<Tensor>;
using Plains = std::vector<Plain>;

// ---- references ----
template <class F>
Plain map(const Plain& a, F f) {
  Plain out = a;
  for (double& value : out.values) value = f(value);
  return out;
}
template <class F>
Plain zip(const Plain& a, const Plain& b, F f) {
  return build(broadcast_sizes(a.sizes, b.sizes, "reference"),
               [&](const Dims& at) { return f(a.broadcast_at(at), b.broadcast_at(at)); });
}
// (m, k) x (k, n) -> (m, n)
Plain product(const Plain& a, const Plain& b);
// The sum over the dims, which are removed.
Plain total(const Plain& a, const Dims& dims);
inline Plain resized(Plain a, const Dims& sizes) {
  a.sizes = sizes;
  return a;
}
Plain swapped(const Plain& a, int dim0, int dim1);

// ---- operands ----
// A constant as an operand beside `operand`: replicated over the mesh of a sharded operand.
Tensor beside(const Tensor& operand, const Tensor& constant);

// ---- entries ----
OpCase add_case();
OpCase sub_case();
OpCase rsub_case();
OpCase mul_case();
OpCase div_case();
OpCase rdiv_case();
OpCase neg_case();
OpCase sqrt_case();
OpCase rsqrt_case();
OpCase exp_case();
OpCase log_case();
OpCase abs_case();
OpCase relu_case();
OpCase pow_case();
OpCase matmul_case();
OpCase linear_case();
OpCase sum_case();
OpCase mean_case();
OpCase mse_loss_case();
OpCase index_select_case();
OpCase gelu_case();
OpCase tanh_case();
OpCase sigmoid_case();
OpCase embedding_case();
OpCase layer_norm_case();
OpCase rms_norm_case();
OpCase batch_norm_case();
OpCase conv2d_case();
OpCase eq_case();
OpCase ne_case();
OpCase lt_case();
OpCase le_case();
OpCase gt_case();
OpCase ge_case();
OpCase where_case();
OpCase max_case();
OpCase min_case();
OpCase argmax_case();
OpCase softmax_case();
OpCase log_softmax_case();
OpCase cross_entropy_case();
OpCase dropout_case();
OpCase attention_case();
OpCase view_case();
OpCase reshape_case();
OpCase flatten_case();
OpCase transpose_case();
OpCase permute_case();
OpCase slice_case();
OpCase select_case();
OpCase expand_case();
OpCase squeeze_case();
OpCase unsqueeze_case();
OpCase split_case();
OpCase chunk_case();
OpCase cat_case();
OpCase stack_case();
OpCase cast_case();
OpCase clone_case();
OpCase contiguous_case();
OpCase to_device_case();
OpCase detach_case();
OpCase add_in_place_case();
OpCase sub_in_place_case();
OpCase mul_in_place_case();
OpCase div_in_place_case();
OpCase relu_in_place_case();
OpCase copy_in_place_case();
OpCase zero_in_place_case();
OpCase fill_in_place_case();

}  // namespace lockstep::ops
