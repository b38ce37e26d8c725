#include "engine/optim/clip.hpp"

#include <cmath>

#include "engine/autograd/autograd.hpp"
#include "engine/core/error.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::optim {

namespace {

// The largest magnitude: halves are compared with halves, so that no operation of its own is needed.
Tensor largest(Tensor values) {
  values = raw::contiguous(view(values, {-1}));
  while (values.size(0) > 1) {
    const std::int64_t half = (values.size(0) + 1) / 2;
    values = raw::maximum(slice(values, 0, 0, half), slice(values, 0, values.size(0) - half, values.size(0)));
  }
  return view(values, {});
}

Tensor root(const Tensor& total, double kind) { return kind == 2.0 ? raw::sqrt(total) : raw::pow(total, 1.0 / kind); }

// What one gradient adds to the norm: the largest magnitude, or the sum of powers.
Tensor share_of(const Tensor& gradient, double kind) {
  const Tensor wide = size_of(gradient.dtype()) == 2 ? raw::cast(gradient, DType::float32) : gradient;
  if (std::isinf(kind)) return largest(raw::abs(raw::contiguous(wide)));
  return raw::sum(kind == 2.0 ? raw::mul(wide, wide) : raw::pow(raw::abs(wide), kind));
}

}  // namespace

Tensor clip_grad_norm(const std::vector<Tensor>& parameters, double max_norm, double kind) {
  if (!(max_norm >= 0.0)) throw Error(str("clip_grad_norm: max_norm is ", max_norm), "give 0 or more");
  if (!(kind > 0.0)) throw Error(str("clip_grad_norm: the norm of kind ", kind), "give a number above 0, such as 2");
  const NoGrad no_grad;
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : parameters)
    if (const Tensor gradient = grad(parameter); gradient.defined() && gradient.num_elements() > 0)
      gradients.push_back(gradient);
  if (gradients.empty())
    return zeros({}, DType::float32, parameters.empty() ? device::Device{} : parameters.front().device());

  Tensor norm;
  for (const Tensor& gradient : gradients) {
    const Tensor share = share_of(gradient, kind);
    norm = !norm.defined() ? share : std::isinf(kind) ? raw::maximum(norm, share) : raw::add(norm, share);
  }
  if (!std::isinf(kind)) norm = root(norm, kind);
  const Tensor factor = raw::minimum(raw::rdiv(max_norm, raw::add(norm, 1e-6)), ones({}, norm.dtype(), norm.device()));
  for (const Tensor& gradient : gradients) raw::mul_(gradient, raw::cast(factor, gradient.dtype()));
  return norm;
}

}  // namespace lockstep::optim
