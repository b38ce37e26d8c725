// Clips gradients by their joint norm.
//
//   const Tensor norm = clip_grad_norm(parameters, 1.0);   // before the step
#pragma once

#include <string>
#include <vector>

#include "engine/layout/placement.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep::optim {

// Multiplies every gradient by min(1, max_norm / (norm + 1e-6)) and returns the norm before clipping: a scalar on the
// device of the gradients, of float32 or wider. `kind` is the p of the norm; infinity selects the largest magnitude.
// The host does not wait for the device. Parameters without a gradient are skipped; the norm of no gradients is 0. All
// gradients are on one device.
//
// For sharded gradients the norm is that of the full gradients and the same on all ranks. Each rank sums over its
// shards. The sums of all parameters are then reduced with one all_reduce per shard axis (family tensor_parallel,
// innermost axis first); replicate axes need none. Plain gradients, which are full on each rank, may be among them. All
// ranks call together. Throws Error for max_norm < 0, kind <= 0 and partial gradients.
Tensor clip_grad_norm(const std::vector<Tensor>& parameters, double max_norm, double kind = 2.0);

// ---- for APIs whose gradients have no layout that says which ranks hold the rest ----
// An axis whose ranks hold different elements of a gradient.
struct NormAxis {
  std::string name;
  std::vector<int> members;  // the ranks along the axis, including this one
  friend bool operator==(const NormAxis&, const NormAxis&) = default;
};
std::vector<NormAxis> norm_axes_of(const LayoutPtr& layout);  // none for null

struct GradientPart {
  Tensor local;                 // plain; undefined: this rank has none, but takes part in the reductions
  std::vector<NormAxis> axes;   // the innermost last
  DType type = DType::float32;  // of the gradient on the other ranks if it is undefined
};
// The local gradient of a parameter and the axes of its layout; undefined if it has no elements. Throws Error if it is
// partial.
GradientPart gradient_part(const Tensor& parameter);
// clip_grad_norm of the gradients of which these are the parts. All ranks of an axis give a part with it. `device`: of
// the sums, their reductions and the result; the parts may be on others.
Tensor clip_parts(const std::vector<GradientPart>& parts, double max_norm, double kind, device::Device device);

}  // namespace lockstep::optim
