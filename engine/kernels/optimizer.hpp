// One optimizer step over many parameters. The update of an element is one pass and has the bits of PyTorch's CPU
// formulas.
//
// Scalars are computed in float64 and rounded to the computation type. Each fma is fused; every other operation rounds.
// All views of an item are contiguous and have the same sizes and one floating type; a mismatch throws InternalError.
// 16-bit types compute in float32 and round at the store.
//
//   std::vector<AdamItem> items = ...;                     // inside one launch that declares all their memory
//   kernels::adam(Space::host, items, {.lr = 1e-3});
#pragma once

#include <span>

#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

struct SgdItem {
  View parameter;
  View grad;
  View buffer;              // the momentum buffer; no data when momentum is 0
  bool first_step = false;  // the buffer is not initialised; it becomes the gradient
};
struct SgdNumbers {
  double lr = 1e-3;
  double momentum = 0.0;
  double weight_decay = 0.0;
};
// g = fma(weight_decay, p, g) if weight_decay is not 0. buffer = g in the first step, later buffer * momentum + g.
// p = fma(-lr, buffer, p), with g instead of the buffer if momentum is 0. The gradient is not changed.
void sgd(Execution on, std::span<const SgdItem> items, const SgdNumbers& numbers);

struct AdamItem {
  View parameter;
  View grad;
  View exp_avg;
  View exp_avg_sq;
  std::int64_t step = 1;  // number of this update, starting at 1
};
struct AdamNumbers {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.0;
  bool decoupled = false;  // AdamW: p = p * (1 - lr * weight_decay) first; otherwise g = fma(weight_decay, p, g)
};
// With w = 1 - beta1: m = fma(w, g - m, m) for w < 0.5, otherwise m = fma(w - 1, g - m, g).
// v = fma((1 - beta2) * g, g, v * beta2); with c_i = 1 - beta_i^step:
// p = p + (-(lr / c_1) * m) / (sqrt(v) / sqrt(c_2) + eps).
void adam(Execution on, std::span<const AdamItem> items, const AdamNumbers& numbers);

}  // namespace lockstep::kernels
