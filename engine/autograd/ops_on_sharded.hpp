// Operations on sharded operands; for the ops_*.cpp of this folder. An operation applies the rule of its kind
// (engine/mesh/sharding_rules.hpp), redistributes the operands to the layouts of the rule, calls itself on the local
// shards and gives the result the layout of the rule. So derivatives and saved tensors are always plain tensors. An
// operation without a rule throws Error; no operation drops a layout. Mixing sharded and plain operands is an Error.
//
//   Tensor sqrt(const Tensor& a) {
//     if (is_sharded(a)) return on_sharded("sqrt", a, Keeps::nothing, [](const Tensor& x) { return sqrt(x); });
//     ...
#pragma once

#include <functional>
#include <vector>

#include "engine/autograd/autograd.hpp"
#include "engine/mesh/sharding_rules.hpp"

namespace lockstep::ops {

using sharding::Keeps;

// Costs one pointer test for a plain operand.
inline bool is_sharded(const Tensor& a) { return a.defined() && a.is_sharded(); }
inline bool is_sharded(const Tensor* a) { return a && is_sharded(*a); }
template <class... Operands>
bool any_sharded(const Operands&... operands) {
  return (is_sharded(operands) || ...);
}

using OnLocal = std::function<Tensor(const Tensor&)>;
using OnLocals = std::function<Tensor(const Tensor&, const Tensor&)>;
// Element-wise operations. `keeps`: the partial placements that the operation accepts without a reduction.
Tensor on_sharded(const char* name, const Tensor& a, Keeps keeps, const OnLocal& f);
Tensor on_sharded(const char* name, const Tensor& a, const Tensor& b, Keeps keeps, const OnLocals& f);
Tensor where_on_sharded(const Tensor& condition, const Tensor& a, const Tensor& b);
// Reductions over dims; all_dims_of(a) for reductions over all elements.
Tensor sum_on_sharded(const Tensor& a, const Dims& dims, bool keep_dims);
Tensor mean_on_sharded(const Tensor& a, const Dims& dims, bool keep_dims);
Dims all_dims_of(const Tensor& a);
Tensor matmul_on_sharded(const Tensor& a, const Tensor& b);
Tensor linear_on_sharded(const Tensor& x, const Tensor& weight, const Tensor* bias);
Tensor embedding_on_sharded(const Tensor& weight, const Tensor& indices);
// layer_norm and rms_norm. `f` takes the local x, weight and bias; a missing one is null.
Tensor norm_on_sharded(const char* name, const Tensor& x, int num_dims, const Tensor* weight, const Tensor* bias,
                       const std::function<Tensor(const Tensor&, const Tensor*, const Tensor*)>& f);
// An operation of one operand with a given rule.
Tensor by_rule(const Tensor& a, const sharding::Unary& rule, const OnLocal& f);
// Checks of in-place operations: throws Error unless both layouts are equal, `keeps` accepts them, and recording is
// off.
void require_in_place(const char* name, const Tensor& to, const Tensor& value, Keeps keeps);
void require_in_place(const char* name, const Tensor& to, Keeps keeps);

// For operations without a rule: throws Error that names the operation and its operands.
[[noreturn]] void refuse_sharded(const char* name, const std::vector<Tensor>& operands);
template <class... Operands>
void require_plain(const char* name, const Operands&... operands) {
  if (!any_sharded(operands...)) [[likely]]
    return;
  std::vector<Tensor> all;
  const auto add = [&all](const auto& operand) {
    if constexpr (std::is_pointer_v<std::decay_t<decltype(operand)>>) {
      if (operand) all.push_back(*operand);
    } else {
      all.push_back(operand);
    }
  };
  (add(operands), ...);
  refuse_sharded(name, all);
}
void require_all_plain(const char* name, const std::vector<Tensor>& operands);

}  // namespace lockstep::ops
