// For the ops_*.cpp of this folder: what their derivatives share.
#pragma once

#include "engine/autograd/ops.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::ops {

// A gradient in the sizes and the type of the input it is for: undoes broadcasting and promotion.
inline Tensor fit(const Backward& at, int input, const Tensor& grad) {
  return raw::cast(raw::sum_to(grad, at.sizes(input)), at.dtype(input));
}

// What is kept of `tensor` when only the gradient of `other` reads it.
inline Tensor kept_for(const Tensor& other, const Tensor& tensor) { return requires_grad(other) ? tensor : Tensor(); }

}  // namespace lockstep::ops
