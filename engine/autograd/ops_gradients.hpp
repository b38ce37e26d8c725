// Shared by the derivatives in the ops_*.cpp of this folder.
#pragma once

#include "engine/autograd/computed.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::ops {

// The gradient in the sizes and type of the input: undoes broadcasting and promotion.
inline Tensor fit(const Backward& at, int input, const Tensor& grad) {
  return raw::cast(raw::sum_to(grad, at.sizes(input)), at.dtype(input));
}

// `tensor`, to be saved because the gradient of `other` reads it; undefined when `other` needs no gradient.
inline Tensor kept_for(const Tensor& other, const Tensor& tensor) { return requires_grad(other) ? tensor : Tensor(); }

}  // namespace lockstep::ops
