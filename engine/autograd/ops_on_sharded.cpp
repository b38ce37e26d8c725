#include "engine/autograd/ops_on_sharded.hpp"

#include <algorithm>
#include <memory>

#include "engine/autograd/ops.hpp"
#include "engine/autograd/ops_on_sharded_internal.hpp"
#include "engine/autograd/ops_sharded.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::ops {

namespace {

std::string described(const std::vector<Tensor>& operands) {
  std::string text;
  for (const Tensor& operand : operands)
    if (operand.defined())
      text += str(text.empty() ? "" : " and ", operand.is_sharded() ? "a sharded operand, " : "a plain operand, ",
                  describe_sharded(operand));
  return text;
}

bool mixes(const std::vector<Tensor>& operands) {
  bool plain = false, sharded = false;
  for (const Tensor& operand : operands) (is_sharded(operand) ? sharded : plain) = true;
  return plain && sharded;
}

}  // namespace

LayoutPtr make_layout(const sharding::ShardedLayout& layout) {
  return std::make_shared<const sharding::ShardedLayout>(layout);
}

void require_unmixed(const char* name, const std::vector<Tensor>& operands) {
  if (mixes(operands))
    throw Error(str(name, ": ", described(operands)),
                "distribute the plain one over the mesh, or take full_tensor or the local shard of the sharded one");
}

std::vector<Tensor> given(const Tensor& a, const Tensor* b, const Tensor* c) {
  std::vector<Tensor> all = {a};
  for (const Tensor* operand : {b, c})
    if (operand) all.push_back(*operand);
  return all;
}

Tensor local_for(const Tensor& a, const sharding::ShardedLayout& where, const sharding::ShardedLayout& gradient) {
  if (defect_armed(Defect::sharded_partial_gradient_kept)) [[unlikely]]
    return to_local(ops::redistribute(a, make_layout(where)));
  return to_local(ops::redistribute(a, make_layout(where)), make_layout(gradient));
}

std::vector<std::vector<layout::Chunk>> held_by_rank(const sharding::ShardedLayout& layout) {
  std::vector<std::vector<layout::Chunk>> held;
  held.reserve(static_cast<std::size_t>(layout.sizes.size()));
  for (int dim = 0; dim < layout.sizes.size(); ++dim)
    held.push_back(layout::global_ranges(layout, RankContext::current().rank(), dim));
  return held;
}

void refuse_sharded(const char* name, const std::vector<Tensor>& operands) {
  throw Error(str(name, ": there is no rule for sharded tensors: ", described(operands)),
              mixes(operands)
                  ? "distribute the plain ones for an operation that has a rule, or take full_tensor or the "
                    "local shard of the sharded ones"
                  : "take full_tensor or the local shard");
}

Tensor by_rule(const Tensor& a, const sharding::Unary& rule, const OnLocal& f) {
  return from_local(f(to_local(ops::redistribute(a, make_layout(rule.operand)))), make_layout(rule.result));
}

Tensor on_sharded(const char*, const Tensor& a, Keeps keeps, const OnLocal& f) {
  if (keeps == Keeps::all || !layout::has_partial(layout_of(a))) return from_local(f(to_local(a)), a.layout());
  const sharding::ShardedLayout where = sharding::reduced(layout_of(a), keeps);
  return by_rule(a, {where, where}, f);
}

namespace {

// A factor of one element keeps its bits beside a 16-bit tensor (raw::factor_in). An integer of a tensor of several
// elements is rounded, also where it is the only one of its shard. `operand`: the local shard of `whole`.
Tensor rounded_as_whole(const Tensor& operand, const Tensor& whole, DType beside) {
  const bool is_one_of_several = operand.num_elements() == 1 && num_elements(layout_of(whole).sizes) > 1;
  const bool rounds = is_floating(beside) && size_of(beside) == 2 && !is_floating(operand.dtype());
  return is_one_of_several && rounds ? raw::cast(operand, beside) : operand;
}

}  // namespace

Tensor on_sharded(const char* name, const Tensor& a, const Tensor& b, Keeps keeps, const OnLocals& f) {
  require_unmixed(name, {a, b});
  if (layout_of(a) == layout_of(b) && !layout::has_partial(layout_of(a))) {
    const Tensor local_a = to_local(a), local_b = to_local(b);
    return from_local(f(local_a, rounded_as_whole(local_b, b, a.dtype())), a.layout());
  }
  const sharding::Binary rule = sharding::elementwise(name, layout_of(a), layout_of(b), keeps);
  const Tensor local_a = local_for(a, rule.a, rule.a_grad), local_b = local_for(b, rule.b, rule.b_grad);
  return from_local(f(local_a, rounded_as_whole(local_b, b, a.dtype())), make_layout(rule.result));
}

Tensor matmul_on_sharded(const Tensor& a, const Tensor& b) {
  require_unmixed("matmul", {a, b});
  const sharding::Binary rule = sharding::matmul(layout_of(a), layout_of(b));
  const Tensor local_a = local_for(a, rule.a, rule.a_grad), local_b = local_for(b, rule.b, rule.b_grad);
  return from_local(matmul(local_a, local_b), make_layout(rule.result));
}

Tensor linear_on_sharded(const Tensor& x, const Tensor& weight, const Tensor* bias) {
  std::vector<Tensor> operands = given(x, &weight, bias);
  require_unmixed("linear", operands);
  const sharding::Linear rule = sharding::linear(layout_of(x), layout_of(weight), bias ? &layout_of(*bias) : nullptr);
  const Tensor local_x = local_for(x, rule.x, rule.x_grad);
  const Tensor local_weight = local_for(weight, rule.weight, rule.weight_grad);
  const Tensor local_bias = bias ? local_for(*bias, rule.bias, rule.bias_grad) : Tensor();
  return from_local(linear(local_x, local_weight, bias ? &local_bias : nullptr), make_layout(rule.result));
}

Tensor where_on_sharded(const Tensor& condition, const Tensor& a, const Tensor& b) {
  require_unmixed("where", {condition, a, b});
  const sharding::Many rule =
      sharding::elementwise("where", {layout_of(condition), layout_of(a), layout_of(b)}, Keeps::nothing);
  const Tensor local_condition = local_for(condition, rule.operands[0], rule.gradients[0]);
  const Tensor local_a = local_for(a, rule.operands[1], rule.gradients[1]);
  const Tensor local_b = local_for(b, rule.operands[2], rule.gradients[2]);
  return from_local(where(local_condition, local_a, local_b), make_layout(rule.result));
}

Dims all_dims_of(const Tensor& a) {
  Dims dims;
  for (int dim = 0; dim < a.num_dims(); ++dim) dims.push_back(dim);
  return dims;
}

Tensor sum_on_sharded(const Tensor& a, const Dims& dims, bool keep_dims) {
  return by_rule(a, sharding::sum(layout_of(a), dims, keep_dims), [&](const Tensor& x) {
    return dims.size() == x.num_dims() && !keep_dims ? sum(x) : sum(x, dims, keep_dims);
  });
}

namespace {

// The number of elements of the full tensor along the dims.
double mean_count(const Tensor& a, const Dims& dims) {
  if (defect_armed(Defect::sharded_mean_of_parts)) [[unlikely]]
    return static_cast<double>(std::max<std::int64_t>(1, a.num_elements()));
  double count = 1.0;
  if (layout_of(a).sizes.empty()) return count;
  for (const std::int64_t dim : dims)
    count *= static_cast<double>(layout_of(a).sizes[normalize_dim(dim, layout_of(a).sizes.size(), "mean")]);
  return count;
}

}  // namespace

Tensor mean_on_sharded(const Tensor& a, const Dims& dims, bool keep_dims) {
  const double count = mean_count(a, dims);
  return by_rule(a, sharding::sum(layout_of(a), dims, keep_dims), [&](const Tensor& x) {
    // In 16 bits the sum may exceed the largest number, and the mean would be rounded twice.
    const bool is_narrow = x.dtype() == DType::float16 || x.dtype() == DType::bfloat16;
    const Tensor wide = is_narrow ? cast(x, DType::float32) : x;
    const Tensor total = dims.size() == x.num_dims() && !keep_dims ? sum(wide) : sum(wide, dims, keep_dims);
    const Tensor made = div(total, count);
    return is_narrow ? cast(made, x.dtype()) : made;
  });
}

void require_in_place(const char* name, const Tensor& to, Keeps keeps) {
  if (!(sharding::reduced(layout_of(to), keeps) == layout_of(to)))
    throw Error(str(name, ": in place on ", describe_sharded(to), ", which is partial"), "redistribute it first");
}

namespace {

// The local shard of a value, as the kernel may read it. Whether a plain value overlaps its target, and is refused,
// depends on all elements. A shard may have too few to tell, so one in the same memory is copied.
Tensor value_for(const Tensor& local, const Tensor& to, const Tensor& value) {
  const Tensor target = local_tensor(to);
  const bool is_target = local.offset() == target.offset() && local.sizes() == target.sizes() &&
                         local.strides() == target.strides() && local.dtype() == target.dtype();
  const Tensor apart = local.storage() == target.storage() && !is_target ? ops::clone(local) : local;
  return rounded_as_whole(apart, value, to.dtype());
}

}  // namespace

Tensor in_place_value(const char* name, const Tensor& to, const Tensor& value, Keeps keeps) {
  require_unmixed(name, {to, value});
  require_in_place(name, to, keeps);
  if (layout_of(to) == layout_of(value)) return value_for(to_local(value), to, value);
  const sharding::Binary rule = sharding::elementwise(name, layout_of(to), layout_of(value), keeps);
  // A value of other sizes is repeated; each rank then needs no more of it than it has.
  if (!(rule.result == layout_of(to) && rule.b == layout_of(value)) || layout::has_partial(rule.b))
    throw Error(str(name, ": in place on ", described({to, value})),
                "redistribute the second to the layout of the first");
  return value_for(local_for(value, rule.b, rule.b_grad), to, value);
}

}  // namespace lockstep::ops
