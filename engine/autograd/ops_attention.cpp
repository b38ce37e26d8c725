#include <array>

#include "engine/autograd/ops_gradients.hpp"
#include "engine/autograd/ops_on_sharded.hpp"
#include "engine/core/error.hpp"
#include "engine/tensor/ops_launch.hpp"
#include "engine/tensor/ops_network.hpp"

namespace lockstep::ops {

Tensor softmax(const Tensor& a, int dim) {
  if (is_sharded(a)) [[unlikely]]
    return by_rule(a, sharding::along("softmax", *a.layout(), dim, sharding::Dim::unchanged),
                   [=](const Tensor& x) { return softmax(x, dim); });
  const Tensor result = computed("softmax", [&] { return raw::softmax(a, dim); });
  return record("softmax", result, {a}, {result}, [dim](const Backward& at) -> Gradients {
    return {raw::softmax_backward(at.grad(), at.saved(0), dim)};
  });
}
Tensor log_softmax(const Tensor& a, int dim) {
  if (is_sharded(a)) [[unlikely]]
    return by_rule(a, sharding::along("log_softmax", *a.layout(), dim, sharding::Dim::unchanged),
                   [=](const Tensor& x) { return log_softmax(x, dim); });
  const Tensor result = computed("log_softmax", [&] { return raw::log_softmax(a, dim); });
  return record("log_softmax", result, {a}, {result}, [dim](const Backward& at) -> Gradients {
    return {raw::log_softmax_backward(at.grad(), at.saved(0), dim)};
  });
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const LossOptions& options) {
  if (options.weight.defined() && requires_grad(options.weight))
    throw Error(
        str("cross_entropy: the weight ", describe(options.weight), " requires a gradient, and the loss has none"),
        "detach the weight");
  if (any_sharded(logits, targets, options.weight)) [[unlikely]]
    return cross_entropy_on_sharded(logits, targets, options);
  const raw::CrossEntropyResult loss =
      computed("cross_entropy", [&] { return raw::cross_entropy(logits, targets, options); });
  const double divisor = options.reduction == Reduction::mean ? static_cast<double>(targets.num_elements()) : 1.0;
  return record(
      "cross_entropy", loss.result, {logits}, {logits, loss.log_sums, targets, loss.weights, loss.total},
      [divisor, ignored = options.ignore_index](const Backward& at) -> Gradients {
        return {raw::cross_entropy_backward(
            at.grad(), at.saved(0), {{}, at.saved(1), at.saved(2), at.saved(3), at.saved(4)}, divisor, ignored)};
      });
}

namespace {

struct Dropped {
  Tensor result, keep;
};

Tensor drop(const Tensor& a, const raw::DrawMask& draw, double p) {
  const double factor = p < 1.0 ? 1.0 / (1.0 - p) : 0.0;
  const Dropped dropped = computed("dropout", [&] {
    raw::require_floating("dropout", a);  // a refused call draws nothing
    const Tensor keep = draw();
    return Dropped{raw::keep_scaled(a, keep, factor), keep};
  });
  return record("dropout", dropped.result, {a}, {dropped.keep}, [factor](const Backward& at) -> Gradients {
    return {raw::keep_scaled(at.grad(), at.saved(0), factor)};
  });
}

// `draw`: draws the dropout mask of a sharded operand; empty for plain operands.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, double dropout_p, const Tensor* mask,
              const raw::DrawMask& draw) {
  const raw::AttentionResult attended =
      computed("attention", [&] { return raw::attention(q, k, v, causal, dropout_p, mask, draw); });
  // PyTorch records attention as one node. With dropout, or without heads, it records one node per product, the product
  // with v last.
  static constexpr std::array v_first{2, 1, 0};
  const bool has_node_per_product = dropout_p > 0.0 || q.num_dims() != 4;
  return record(
      "attention", attended.result, {q, k, v}, {q, k, v, attended.probabilities, attended.keep},
      [causal, dropout_p](const Backward& at) -> Gradients {
        raw::AttentionGradients grads = raw::attention_backward(at.grad(), at.saved(0), at.saved(1), at.saved(2),
                                                                at.saved(3), at.saved(4), causal, dropout_p);
        return {grads.q, grads.k, grads.v};
      },
      has_node_per_product ? std::span<const int>(v_first) : std::span<const int>());
}

}  // namespace

Tensor dropout(const Tensor& a, double p, bool training) {
  if (!(p >= 0.0 && p <= 1.0))
    throw Error(str("dropout: a probability of ", p, " to drop an element"), "give a probability from 0 to 1");
  if (!training || p == 0.0) return a;
  if (is_sharded(a)) [[unlikely]]
    return dropout_on_sharded(a, p, [p](const Tensor& x, const raw::DrawMask& draw) { return drop(x, draw, p); });
  return drop(
      a, [&] { return raw::keep_mask_like(a, p); }, p);
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, double dropout_p, const Tensor* mask) {
  if (any_sharded(q, k, v, mask)) [[unlikely]]
    return attention_on_sharded(q, k, v, dropout_p, mask,
                                [=](const Tensor& local_q, const Tensor& local_k, const Tensor& local_v,
                                    const Tensor* local_mask, const raw::DrawMask& draw) {
                                  return attend(local_q, local_k, local_v, causal, dropout_p, local_mask, draw);
                                });
  return attend(q, k, v, causal, dropout_p, mask, {});
}

}  // namespace lockstep::ops
