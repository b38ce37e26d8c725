// What works on whole rows in one go: softmax, norms, the scores of attention, the loss over classes. All views are
// contiguous; the last `length` elements of each, as given, make a row. Sums are in the order of reduce.hpp, in the
// type that is computed in (float for the 16-bit types) with a float64 total; each result is rounded once.
#pragma once

#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

// e^(x - max) / sum, or its logarithm; rows along the last dim. Backward reads the result.
void softmax(Space space, const View& out, const View& a, bool logarithm);
void softmax_backward(Space space, const View& out, const View& grad, const View& result, bool logarithm);

struct NormRows {
  std::int64_t length = 1;  // elements that share a mean
  double eps = 1e-5;
  bool centred = true;  // false: the mean is not taken off (RMS norm), and there is no `mean`
};
// out = (x - mean) * rstd * weight + bias; mean and rstd (one a row, of the type computed in) are written for backward.
// weight, bias: `length` elements, no data where there is none.
void norm(Space space, const NormRows& rows, const View& out, const View& mean, const View& rstd, const View& x,
          const View& weight, const View& bias);
void norm_backward(Space space, const NormRows& rows, const View& out, const View& grad, const View& x,
                   const View& mean, const View& rstd, const View& weight);
// Sums over the rows: of grad * (x - mean) * rstd into `weight_grad`, of grad into `bias_grad`; either may have no
// data. A column's rows are added one after the other in blocks of 1024 rows, the blocks in a float64: the order that
// comes closest to the traces of scenarios/golden/, and one that needs no lanes, as the columns are what vectorises.
void norm_backward_weights(Space space, const NormRows& rows, const View& weight_grad, const View& bias_grad,
                           const View& grad, const View& x, const View& mean, const View& rstd);

// Scores (..., queries, keys), float32 or float64, become probabilities in place: softmax of score * scale, over the
// keys up to the query's own number when causal, over those that `mask` (bool, as scores; may have no data) allows. A
// row that allows none is zeros. Where `keep` (bool) has data, `dropped` gets probability * factor where kept, else 0.
struct AttentionRows {
  double scale = 1.0;
  bool causal = false;
  double factor = 1.0;  // of what dropout keeps
};
void attention_probabilities(Space space, const AttentionRows& rows, const View& scores, const View& dropped,
                             const View& mask, const View& keep);
// In place: the gradient of what multiplied the values becomes that of the scores.
void attention_backward(Space space, const AttentionRows& rows, const View& grad, const View& probabilities,
                        const View& keep);

// losses, log_sums (rows; of the type computed in): log(sum(e^x)) - x[target], and its first term, for backward. Throws
// Error for a target out of range.
void class_losses(Space space, const View& losses, const View& log_sums, const View& logits, const View& targets);
// out = (e^(x - log_sum) - (1 at the target)) * grad / divisor; `grad` is one element of the type of the logits.
void class_losses_backward(Space space, const View& out, const View& logits, const View& log_sums, const View& targets,
                           const View& grad, double divisor);

}  // namespace lockstep::kernels
