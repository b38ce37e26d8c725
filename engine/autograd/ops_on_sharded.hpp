// For the ops_*.cpp of this folder: what an operation does when an operand is sharded. It asks the rule of its kind
// (engine/mesh/sharding_rules.hpp), brings the operands to where the rule wants them, runs itself on the local parts
// and gives the result the rule's layout; so derivatives and saved tensors only ever know plain tensors. An operation
// without a rule refuses. Nothing drops a layout.
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

// One pointer test for a plain operand.
inline bool is_sharded(const Tensor& a) { return a.defined() && a.is_sharded(); }
inline bool is_sharded(const Tensor* a) { return a && is_sharded(*a); }
template <class... Operands>
bool any_sharded(const Operands&... operands) {
  return (is_sharded(operands) || ...);
}

using OnLocal = std::function<Tensor(const Tensor&)>;
using OnLocals = std::function<Tensor(const Tensor&, const Tensor&)>;
// Element by element.
Tensor on_sharded(const char* name, const Tensor& a, Keeps keeps, const OnLocal& f);
Tensor on_sharded(const char* name, const Tensor& a, const Tensor& b, Keeps keeps, const OnLocals& f);
Tensor where_on_sharded(const Tensor& condition, const Tensor& a, const Tensor& b);
// Reductions over dims; all dims for sum and mean of everything.
Tensor sum_on_sharded(const Tensor& a, const Dims& dims, bool keep_dims);
Tensor mean_on_sharded(const Tensor& a, const Dims& dims, bool keep_dims);
Dims all_dims_of(const Tensor& a);
Tensor matmul_on_sharded(const Tensor& a, const Tensor& b);
Tensor linear_on_sharded(const Tensor& x, const Tensor& weight, const Tensor* bias);
Tensor embedding_on_sharded(const Tensor& weight, const Tensor& indices);
// layer_norm and rms_norm: `f` takes x, weight and bias, null where there is none.
Tensor norm_on_sharded(const char* name, const Tensor& x, int num_dims, const Tensor* weight, const Tensor* bias,
                       const std::function<Tensor(const Tensor&, const Tensor*, const Tensor*)>& f);
// By a rule that is at hand.
Tensor by_rule(const Tensor& a, const sharding::Unary& rule, const OnLocal& f);
// In place: the layouts are the same, and nothing records.
void require_in_place(const char* name, const Tensor& to, const Tensor& value, Keeps keeps);
void require_in_place(const char* name, const Tensor& to, Keeps keeps);

// There is no rule: throws Error naming the operation and its operands.
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
