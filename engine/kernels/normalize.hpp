// Kernels over complete rows: softmax, norms, attention probabilities, and the loss over classes.
//
// All views are contiguous and have one type unless stated otherwise. A row is the last dim, or `length` elements. Sums
// follow the order of reduce.hpp in the computation type (float for the 16-bit types) with a float64 total. Each result
// is rounded once.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

// out = e^(a - max) / sum over each row of the last dim, or its logarithm. Floating types. Backward reads the result.
void softmax(Execution on, const View& out, const View& a, bool logarithm);
void softmax_backward(Execution on, const View& out, const View& grad, const View& result, bool logarithm);

struct NormRows {
  std::int64_t length = 1;  // number of elements in a row
  double eps = 1e-5;
  bool centred = true;  // false: the mean is not subtracted (RMS norm), and `mean` has no data
};
// out = (x - mean) * rstd * weight + bias, over rows of `length` elements. mean and rstd (one element per row, of the
// computation type) are written for backward. weight and bias have `length` elements; either may have no data.
void norm(Execution on, const NormRows& rows, const View& out, const View& mean, const View& rstd, const View& x,
          const View& weight, const View& bias);
void norm_backward(Execution on, const NormRows& rows, const View& out, const View& grad, const View& x,
                   const View& mean, const View& rstd, const View& weight);
// Sums over the rows: grad * (x - mean) * rstd into `weight_grad`, grad into `bias_grad`; either may have no data. The
// rows of a column are added in order within blocks of 1024 rows, and the blocks as in reduce.hpp. This order comes
// closest to the traces in scenarios/golden/. It needs no lanes, because the loop over the columns vectorises.
void norm_backward_weights(Execution on, const NormRows& rows, const View& weight_grad, const View& bias_grad,
                           const View& grad, const View& x, const View& mean, const View& rstd);

// Replaces scores (..., queries, keys), float32 or float64, by probabilities: the softmax of score * scale over the
// visible keys. Causal attention shows query i the keys 0 to i. `mask` (bool, the sizes of scores, may have no data)
// shows the keys where it is true. A row without visible keys becomes zeros. If `keep` (bool, the sizes of scores) has
// data, `dropped` is probability * factor where keep is true and 0 elsewhere.
struct AttentionRows {
  double scale = 1.0;
  bool causal = false;
  double factor = 1.0;  // applied to the elements that dropout keeps
};
void attention_probabilities(Execution on, const AttentionRows& rows, const View& scores, const View& dropped,
                             const View& mask, const View& keep);
// Replaces `grad`, the gradient of the (dropped) probabilities, by the gradient of the scores.
void attention_backward(Execution on, const AttentionRows& rows, const View& grad, const View& probabilities,
                        const View& keep);

// ---- the loss over classes: logits (..., classes), one row per target; targets are contiguous int64 ----
// `ignored`: the target of rows that do not count. One element per row has the computation type of the logits.

// losses = log(sum(e^x)) - x[target], 0 for ignored rows; log_sums is the first term, for backward. Throws Error for a
// target out of range.
void class_losses(Execution on, const View& losses, const View& log_sums, const View& logits, const View& targets,
                  std::optional<std::int64_t> ignored);
// Of the classes that this rank holds: sums = sum(e^(x - top)), picked = x[target], or 0 where the target is negative,
// a class of another rank. tops: one element per row.
void class_sums(Execution on, const View& sums, const View& picked, const View& logits, const View& targets,
                const View& tops);
// out (one element per row) = weights[target]: one weight per class, of the type of the logits, or no data, which
// counts each row once. 0 for ignored rows and negative targets.
void class_weights(Execution on, const View& out, const View& targets, const View& weights,
                   std::optional<std::int64_t> ignored);
// losses = losses * weights, 0 for ignored rows; one element per row each.
void weigh_class_losses(Execution on, const View& losses, const View& weights, const View& targets,
                        std::optional<std::int64_t> ignored);

struct ClassLossGradient {
  View weights{};  // one element per row; no data: 1
  View total{};    // one element in place of the divisor; no data: none
  double divisor = 1.0;
  std::optional<std::int64_t> ignored{};
};
// out = (e^(x - log_sum) - (1 at the target)) * grad * weight / divisor; no element is a negative target, and the
// factor is 0 for ignored rows. `out` has the sizes of logits; `grad`, of their type, has one element, or one per row.
void class_losses_backward(Execution on, const View& out, const View& logits, const View& log_sums, const View& targets,
                           const View& grad, const ClassLossGradient& by);

}  // namespace lockstep::kernels
