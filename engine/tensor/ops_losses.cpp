// The loss over classes.
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/kernels/normalize.hpp"
#include "engine/tensor/ops.hpp"
#include "engine/tensor/ops_launch.hpp"
#include "engine/tensor/ops_network.hpp"
#include "engine/tensor/ops_shards.hpp"

namespace lockstep::raw {

namespace {

using device::Mode;

DType compute_type(DType dtype) { return size_of(dtype) == 2 ? DType::float32 : dtype; }

Dims without(const Dims& sizes, int dim) {
  Dims rest;
  for (int i = 0; i < sizes.size(); ++i)
    if (i != dim) rest.push_back(sizes[i]);
  return rest;
}

void require_classes_last(const Tensor& logits, const Tensor& targets) {
  const int n = logits.num_dims();
  if (n > 0 && targets.sizes() == without(logits.sizes(), n - 1) && targets.dtype() == DType::int64) return;
  const bool classes_second = n > 2 && targets.sizes() == without(logits.sizes(), 1);
  throw Error(str("cross_entropy: logits ", describe(logits), ", targets ", describe(targets)),
              classes_second ? "the classes are the last dim of the logits: transpose dim 1 to the end"
                             : "give logits (..., classes) and int64 targets (...)");
}

void require_weight(const Tensor& logits, const Tensor& weight) {
  require_same_device("cross_entropy", logits, weight);
  if (weight.num_dims() != 1 || weight.size(0) != logits.size(-1) || weight.dtype() != logits.dtype())
    throw Error(str("cross_entropy: logits ", describe(logits), ", weight ", describe(weight)),
                "give one weight per class, of the type of the logits");
}

Tensor reduced(const Tensor& losses, Reduction reduction) {
  if (reduction == Reduction::none) return losses;
  return reduction == Reduction::sum ? sum(losses) : mean(losses);
}

}  // namespace

CrossEntropyResult cross_entropy(const Tensor& logits, const Tensor& targets, const LossOptions& options) {
  require_floating("cross_entropy", logits);
  require_same_device("cross_entropy", logits, targets);
  require_classes_last(logits, targets);
  if (options.weight.defined()) require_weight(logits, options.weight);
  if (logits.num_elements() == 0)
    throw Error(str("cross_entropy: no rows or no classes: ", describe(logits)), "give at least one row and one class");
  const DType wide = compute_type(logits.dtype());
  const Tensor losses = empty(targets.sizes(), wide, logits.device());
  const Tensor at = contiguous(targets);
  CrossEntropyResult out{{}, empty(targets.sizes(), wide, logits.device()), {}, {}, {}};
  run_operands("cross_entropy", logits.device(), logits.num_elements(),
               {{losses, Mode::write}, {out.log_sums, Mode::write}, {contiguous(logits)}, {at}},
               [ignored = options.ignore_index](kernels::Execution execution, const auto& views) {
                 kernels::class_losses(execution, views[0], views[1], views[2], views[3], ignored);
               });
  if (options.weight.defined() || options.ignore_index) {
    out.weights = class_weights(at, options.weight, wide, options.ignore_index);
    weigh_class_losses_(losses, out.weights, at, options.ignore_index);
    if (options.reduction == Reduction::mean) out.total = total_of_weights(out.weights);
  }
  out.result =
      cast(out.total.defined() ? div(sum(losses), out.total) : reduced(losses, options.reduction), logits.dtype());
  return out;
}

ClassSums class_sums(const Tensor& logits, const Tensor& targets, const Tensor& tops) {
  const ClassSums out{zeros(targets.sizes(), tops.dtype(), tops.device()),
                      zeros(targets.sizes(), tops.dtype(), tops.device())};
  run_operands("cross_entropy", logits.device(), logits.num_elements(),
               {{out.sums, Mode::write}, {out.picked, Mode::write}, {contiguous(logits)}, {targets}, {tops}},
               [](kernels::Execution execution, const auto& at) {
                 kernels::class_sums(execution, at[0], at[1], at[2], at[3], at[4]);
               });
  return out;
}

Tensor class_weights(const Tensor& targets, const Tensor& weight, DType dtype, std::optional<std::int64_t> ignored) {
  const Tensor out = empty(targets.sizes(), dtype, targets.device());
  run_operands("class_weights", targets.device(), targets.num_elements(),
               {{out, Mode::write}, {contiguous(targets)}, {weight.defined() ? contiguous(weight) : weight}},
               [ignored](kernels::Execution execution, const auto& at) {
                 kernels::class_weights(execution, at[0], at[1], at[2], ignored);
               });
  return out;
}

Tensor total_of_weights(const Tensor& weights) {
  if (defect_armed(Defect::loss_weights_counted)) [[unlikely]]
    return full({}, static_cast<double>(weights.num_elements()), weights.dtype(), weights.device());
  return sum(weights);
}

void weigh_class_losses_(const Tensor& losses, const Tensor& weights, const Tensor& targets,
                         std::optional<std::int64_t> ignored) {
  run_update(
      "weigh_class_losses",
      [ignored](kernels::Execution execution, const kernels::View& to, const kernels::View& by,
                const kernels::View& at) { kernels::weigh_class_losses(execution, to, by, at, ignored); },
      losses, weights, targets);
}

Tensor cross_entropy_backward(const Tensor& grad, const Tensor& logits, const CrossEntropyResult& loss, double divisor,
                              std::optional<std::int64_t> ignored) {
  const Tensor out = empty_like(logits);
  run_operands(
      "cross_entropy_backward", logits.device(), logits.num_elements(),
      {{out, Mode::write},
       {contiguous(logits)},
       {loss.log_sums},
       {contiguous(loss.targets)},
       {contiguous(grad)},
       {loss.weights},
       {loss.total}},
      [divisor, ignored](kernels::Execution execution, const auto& at) {
        kernels::class_losses_backward(execution, at[0], at[1], at[2], at[3], at[4], {at[5], at[6], divisor, ignored});
      });
  return out;
}

}  // namespace lockstep::raw
