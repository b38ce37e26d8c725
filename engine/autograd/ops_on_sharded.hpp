// Operations on sharded operands; for the ops_*.cpp of this folder. An operation applies the rule of its kind
// (engine/mesh/sharding_rules.hpp), redistributes the operands to the layouts of the rule, calls itself on the local
// shards and gives the result the layout of the rule. So derivatives and saved tensors are always plain tensors. An
// operation without a rule throws Error; no operation drops a layout. Mixing sharded and plain operands is an Error.
//
//   Tensor sqrt(const Tensor& a) {
//     if (is_sharded(a)) return on_sharded("sqrt", a, Keeps::nothing, [](const Tensor& x) { return sqrt(x); });
//     ...
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "engine/autograd/autograd.hpp"
#include "engine/mesh/sharding_rules.hpp"
#include "engine/tensor/loss_options.hpp"

namespace lockstep::ops {

using sharding::Keeps;

// Costs one pointer test for a plain operand.
inline bool is_sharded(const Tensor& a) { return a.defined() && a.is_sharded(); }
inline bool is_sharded(const Tensor* a) { return a && is_sharded(*a); }
template <class... Operands>
bool any_sharded(const Operands&... operands) {
  return (is_sharded(operands) || ...);
}

// Whether the conversion of each summand of a partial sum gives summands of the converted sum: integer parts and truth
// values of the summands do not.
inline bool converts_summands(DType from, DType to) {
  return from == to || is_floating(to) || (!is_floating(from) && to != DType::boolean);
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
Tensor index_select_on_sharded(const Tensor& a, int dim, const Tensor& index);
Tensor cross_entropy_on_sharded(const Tensor& logits, const Tensor& targets, const LossOptions& options);
// dropout. The mask is the shard of the mask that the full tensor would get; the generators of all ranks of the mesh
// must have the same state. `f` takes the local shard and a function that draws the mask.
using OnMasked = std::function<Tensor(const Tensor& x, const std::function<Tensor()>& draw)>;
Tensor dropout_on_sharded(const Tensor& a, double p, const OnMasked& f);
// The local shard of the dropout mask of a tensor with this layout.
Tensor keep_mask_of(const sharding::ShardedLayout& layout, double p, device::Device device);
// `f` takes the local operands (`mask` may be null) and a function that draws the dropout mask.
using OnAttended = std::function<Tensor(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor* mask,
                                        const std::function<Tensor()>& draw)>;
Tensor attention_on_sharded(const Tensor& q, const Tensor& k, const Tensor& v, double dropout_p, const Tensor* mask,
                            const OnAttended& f);
Tensor conv2d_on_sharded(const Tensor& x, const Tensor& weight, const Tensor* bias, const Dims& result_sizes,
                         const std::function<Tensor(const Tensor&, const Tensor&, const Tensor*)>& f);
// `per_channel`: weight, bias, running mean, running variance, each null or one number per channel. `f` takes the local
// ones.
using OnChannels = std::function<Tensor(const Tensor& x, const std::array<const Tensor*, 4>& per_channel)>;
Tensor batch_norm_on_sharded(const Tensor& x, const std::array<const Tensor*, 4>& per_channel, bool training,
                             const OnChannels& f);
// layer_norm and rms_norm. `f` takes the local x, weight and bias; a missing one is null.
Tensor norm_on_sharded(const char* name, const Tensor& x, int num_dims, const Tensor* weight, const Tensor* bias,
                       const std::function<Tensor(const Tensor&, const Tensor*, const Tensor*)>& f);
// ---- views, joins, extremes (ops_on_sharded_views.cpp) ----
// view, reshape and flatten. `f` takes the local shard, the local sizes of the result, and whether it must copy, which
// is decided for the full tensor. Throws Error if it must and `may_copy` is false.
using OnSized = std::function<Tensor(const Tensor& x, const Dims& sizes, bool copies)>;
Tensor view_on_sharded(const char* name, const Tensor& a, const Dims& sizes, bool may_copy, const OnSized& f);
// Whether the elements of the local shard and of the full tensor are in the order of their dims.
bool is_contiguous_on_sharded(const Tensor& a);
Tensor squeeze_on_sharded(const Tensor& a, int dim);
Tensor expand_on_sharded(const Tensor& a, const Dims& sizes);
Tensor slice_on_sharded(const Tensor& a, int dim, std::int64_t begin, std::int64_t end);
Tensor select_on_sharded(const Tensor& a, int dim, std::int64_t index);
std::vector<Tensor> split_on_sharded(const char* name, const Tensor& a, std::int64_t size, int dim);
// cat, or stack with `stacks`.
Tensor join_on_sharded(const char* name, const std::vector<Tensor>& tensors, int dim, bool stacks);
// max, or min without `largest`.
Tensor extreme_on_sharded(const char* name, const Tensor& a, int dim, bool keep_dim, bool largest, const OnLocal& f);
// An operation of one operand with a given rule.
Tensor by_rule(const Tensor& a, const sharding::Unary& rule, const OnLocal& f);
// For in-place operations: throws Error unless `keeps` accepts the layout of `to`, which stays.
void require_in_place(const char* name, const Tensor& to, Keeps keeps);
// The local shard of a value in the layout of `to`, or of one that broadcasts to it without communication. Error for
// other layouts.
Tensor in_place_value(const char* name, const Tensor& to, const Tensor& value, Keeps keeps);

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

}  // namespace lockstep::ops
