#include "engine/autograd/ops_on_sharded.hpp"

#include <algorithm>
#include <memory>

#include "engine/autograd/ops.hpp"
#include "engine/autograd/ops_sharded.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"

namespace lockstep::ops {

namespace {

LayoutPtr make_layout(const sharding::ShardedLayout& layout) {
  return std::make_shared<const sharding::ShardedLayout>(layout);
}

const sharding::ShardedLayout& layout_of(const Tensor& a) { return *a.layout(); }

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

void require_unmixed(const char* name, const std::vector<Tensor>& operands) {
  if (mixes(operands))
    throw Error(str(name, ": ", described(operands)),
                "distribute the plain one over the mesh, or take full_tensor or the local shard of the sharded one");
}

// The local shard of an operand in the layout that a rule asks for; its gradient has the layout of the rule. This may
// run a collective, so callers evaluate operands in separate statements, in a fixed order.
Tensor local_for(const Tensor& a, const sharding::ShardedLayout& where, const sharding::ShardedLayout& gradient) {
  return to_local(ops::redistribute(a, make_layout(where)), make_layout(gradient));
}

}  // namespace

void refuse_sharded(const char* name, const std::vector<Tensor>& operands) {
  throw Error(str(name, ": there is no rule for sharded tensors: ", described(operands)),
              mixes(operands)
                  ? "distribute the plain ones for an operation that has a rule, or take full_tensor or the "
                    "local shard of the sharded ones"
                  : "take full_tensor or the local shard");
}

void require_all_plain(const char* name, const std::vector<Tensor>& operands) {
  for (const Tensor& operand : operands)
    if (is_sharded(operand)) refuse_sharded(name, operands);
}

Tensor by_rule(const Tensor& a, const sharding::Unary& rule, const OnLocal& f) {
  return from_local(f(to_local(ops::redistribute(a, make_layout(rule.operand)))), make_layout(rule.result));
}

Tensor on_sharded(const char*, const Tensor& a, Keeps keeps, const OnLocal& f) {
  if (keeps == Keeps::all || !layout::has_partial(layout_of(a))) return from_local(f(to_local(a)), a.layout());
  const sharding::ShardedLayout where = sharding::reduced(layout_of(a), keeps);
  return by_rule(a, {where, where}, f);
}

Tensor on_sharded(const char* name, const Tensor& a, const Tensor& b, Keeps keeps, const OnLocals& f) {
  require_unmixed(name, {a, b});
  if (layout_of(a) == layout_of(b) && !layout::has_partial(layout_of(a))) {
    const Tensor local_a = to_local(a), local_b = to_local(b);
    return from_local(f(local_a, local_b), a.layout());
  }
  const sharding::Binary rule = sharding::elementwise(name, layout_of(a), layout_of(b), keeps);
  const Tensor local_a = local_for(a, rule.a, rule.a_grad), local_b = local_for(b, rule.b, rule.b_grad);
  return from_local(f(local_a, local_b), make_layout(rule.result));
}

namespace {

std::vector<Tensor> given(const Tensor& a, const Tensor* b, const Tensor* c) {
  std::vector<Tensor> all = {a};
  for (const Tensor* operand : {b, c})
    if (operand) all.push_back(*operand);
  return all;
}

}  // namespace

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

namespace {

// The embedding with the rows of this rank; zeros for indices of other rows.
Tensor embedding_of_range(const Tensor& rows, const Tensor& indices, const std::vector<layout::Chunk>& held) {
  const auto number = [&indices](std::int64_t value) {
    return full({}, static_cast<double>(value), indices.dtype(), indices.device());
  };
  const Tensor zero = zeros({}, rows.dtype(), rows.device());
  if (held.empty()) {  // no rows: the result is zero, but depends on `rows` so that they get a gradient
    Dims sizes = indices.sizes();
    sizes.push_back(rows.size(1));
    return add(zeros(sizes, rows.dtype(), rows.device()), sum(rows));
  }
  const Tensor first = number(held[0].begin), end = number(held[0].begin + held[0].length);
  const Tensor from_first = ge(indices, first), before_end = lt(indices, end);
  const Tensor mine = where(from_first, where(before_end, sub(indices, first), number(0)), number(0));
  const Tensor found = embedding(rows, mine);
  return where(ops::unsqueeze(from_first, -1), where(ops::unsqueeze(before_end, -1), found, zero), zero);
}

}  // namespace

Tensor embedding_on_sharded(const Tensor& weight, const Tensor& indices) {
  require_unmixed("embedding", {weight, indices});
  const sharding::Binary rule = sharding::embedding(layout_of(weight), layout_of(indices));
  const Tensor rows = local_for(weight, rule.a, rule.a_grad), at = local_for(indices, rule.b, rule.b_grad);
  const std::vector<layout::Chunk> held = layout::global_ranges(rule.a, RankContext::current().rank(), 0);
  if (held.size() > 1)
    throw Error(str("embedding: the rows of ", describe_sharded(weight), " form several ranges on a rank"),
                "redistribute it");
  const bool all_rows = held.size() == 1 && held[0].length == rule.a.sizes[0];
  return from_local(all_rows ? embedding(rows, at) : embedding_of_range(rows, at, held), make_layout(rule.result));
}

Tensor norm_on_sharded(const char* name, const Tensor& x, int num_dims, const Tensor* weight, const Tensor* bias,
                       const std::function<Tensor(const Tensor&, const Tensor*, const Tensor*)>& f) {
  require_unmixed(name, given(x, weight, bias));
  const sharding::Norm rule = sharding::normalize(name, layout_of(x), num_dims, weight ? &layout_of(*weight) : nullptr,
                                                  bias ? &layout_of(*bias) : nullptr);
  const auto local_weight = [&](const Tensor* w) {
    return w ? local_for(*w, rule.weight, rule.weight_grad) : Tensor();
  };
  const Tensor local_x = local_for(x, rule.x, rule.x), w = local_weight(weight), b = local_weight(bias);
  return from_local(f(local_x, weight ? &w : nullptr, bias ? &b : nullptr), make_layout(rule.x));
}

Tensor where_on_sharded(const Tensor& condition, const Tensor& a, const Tensor& b) {
  require_unmixed("where", {condition, a, b});
  if (!(layout_of(condition) == layout_of(a)) || !(layout_of(a) == layout_of(b)) || layout::has_partial(layout_of(a)))
    throw Error(str("where: ", described({condition, a, b})),
                "redistribute them to one layout without partial placements");
  const Tensor local_condition = to_local(condition), local_a = to_local(a), local_b = to_local(b);
  return from_local(where(local_condition, local_a, local_b), a.layout());
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
  for (const std::int64_t dim : dims)
    count *= static_cast<double>(layout_of(a).sizes[normalize_dim(dim, layout_of(a).sizes.size(), "mean")]);
  return count;
}

}  // namespace

Tensor mean_on_sharded(const Tensor& a, const Dims& dims, bool keep_dims) {
  return div(sum_on_sharded(a, dims, keep_dims), mean_count(a, dims));
}

void require_in_place(const char* name, const Tensor& to, Keeps keeps) {
  if (recording({to}))
    throw Error(str(name, ": ", describe_sharded(to), " cannot be changed in place while recording"),
                "use the operation that gives a new tensor, or change it without gradients");
  if (!(sharding::reduced(layout_of(to), keeps) == layout_of(to)))
    throw Error(str(name, ": in place on ", describe_sharded(to), ", which is partial"), "redistribute it first");
}

void require_in_place(const char* name, const Tensor& to, const Tensor& value, Keeps keeps) {
  require_unmixed(name, {to, value});
  if (!(layout_of(to) == layout_of(value)))
    throw Error(str(name, ": in place on ", described({to, value})),
                "redistribute the second to the layout of the first");
  if (recording({value})) require_in_place(name, value, Keeps::all);
  require_in_place(name, to, keeps);
}

}  // namespace lockstep::ops
