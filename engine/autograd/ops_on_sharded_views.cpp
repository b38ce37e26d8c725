// Views, joins and extremes of sharded operands. Sizes given to a view are those of the full tensor.
#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "engine/autograd/ops.hpp"
#include "engine/autograd/ops_on_sharded_internal.hpp"
#include "engine/autograd/ops_sharded.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::ops {

namespace {

Dims local_sizes_of(const sharding::ShardedLayout& layout) {
  return layout::local_sizes(layout, RankContext::current().rank());
}

// The full tensor without memory, with the strides that follow from those of the local shard. Ranks that decide with it
// decide alike: a dim of one element here, whose stride would not count, may have more elements on other ranks.
Tensor shape_of_full(const Tensor& a) {
  const Dims &sizes = a.sizes(), &strides = a.strides();
  auto full = std::make_shared<TensorImpl>();
  full->sizes = layout_of(a).sizes;
  full->strides = strides;
  full->dtype = a.dtype();
  for (int dim = 0; dim < sizes.size(); ++dim) {
    const std::int64_t length = std::max<std::int64_t>(1, sizes[dim]), full_length = full->sizes[dim];
    if (length == full_length) continue;
    for (int other = 0; other < sizes.size(); ++other) {
      // Of two dims with one stride, the outer one has several elements; of two with one element, it is the first.
      const bool is_outer_of_tie = sizes[other] > 1 || (sizes[dim] <= 1 && other < dim);
      if (other == dim || strides[other] < strides[dim] || (strides[other] == strides[dim] && !is_outer_of_tie))
        continue;
      std::int64_t& stride = full->strides[other];
      stride = bounded_product(stride / length, full_length) + bounded_product(stride % length, full_length) / length;
    }
  }
  return Tensor(std::move(full));
}

// Gives the dims of one element of a local view, whose strides count for no element, the strides of `full`, which is
// the same view of the full tensor: shape_of_full reads them when the result is viewed again.
void keep_strides(const Tensor& local, const Tensor& full) {
  if (full.num_elements() == 0) return;
  Dims strides = full.strides();
  for (int dim = 0; dim < local.num_dims(); ++dim) {
    const std::int64_t length = std::max<std::int64_t>(1, local.size(dim)), full_length = full.size(dim);
    for (int other = 0; other < local.num_dims(); ++other)
      if (length != full_length && full.strides()[other] > full.strides()[dim])
        strides[other] = strides[other] / full_length * length;
  }
  for (int dim = 0; dim < local.num_dims(); ++dim)
    if (local.size(dim) <= 1 || local.num_elements() == 0) local.impl().strides[dim] = strides[dim];
}

}  // namespace

bool is_contiguous_on_sharded(const Tensor& a) { return a.is_contiguous() && shape_of_full(a).is_contiguous(); }

Tensor view_on_sharded(const char* name, const Tensor& a, const Dims& sizes, bool may_copy, const OnSized& f) {
  const Dims complete = sharding::complete_sizes(name, layout_of(a).sizes, sizes);
  const sharding::Unary rule = sharding::view(name, layout_of(a), complete);
  const Tensor full = shape_of_full(a);
  const bool copies = !is_viewable_as(full, complete);
  if (copies && !may_copy)
    throw Error(str(name, ": ", describe_sharded(a), " with strides ", to_text(full.strides()), " cannot be viewed as ",
                    to_text(complete), " without a copy"),
                "use reshape, which copies if necessary");
  return by_rule(a, rule, [&](const Tensor& x) {
    Tensor local = f(x, local_sizes_of(rule.result), copies);
    if (!copies) keep_strides(local, lockstep::view(full, complete));
    return local;
  });
}

Tensor squeeze_on_sharded(const Tensor& a, int dim) {
  const sharding::Unary rule = sharding::squeeze(layout_of(a), dim);
  // A local shard may have size 1 where the full tensor has not. The expansion to its own sizes keeps all strides.
  return by_rule(a, rule, [&](const Tensor& x) {
    return rule.result.sizes.size() == x.num_dims() ? ops::expand(x, x.sizes()) : ops::squeeze(x, dim);
  });
}

Tensor expand_on_sharded(const Tensor& a, const Dims& sizes) {
  const sharding::Unary rule = sharding::expand(layout_of(a), sizes);
  return by_rule(a, rule, [&](const Tensor& x) { return ops::expand(x, local_sizes_of(rule.result)); });
}

Tensor slice_on_sharded(const Tensor& a, int dim, std::int64_t begin, std::int64_t end) {
  const sharding::Unary rule = sharding::slice("slice", layout_of(a), dim, begin, end);
  if (rule.operand == rule.result)  // all elements, also of a sharded dim
    return by_rule(a, rule, [&](const Tensor& x) { return ops::slice(x, dim, 0, x.size(dim)); });
  return by_rule(a, rule, [&](const Tensor& x) { return ops::slice(x, dim, begin, end); });
}

Tensor select_on_sharded(const Tensor& a, int dim, std::int64_t index) {
  const sharding::Unary rule = sharding::along("select", layout_of(a), dim, sharding::Dim::removed, Keeps::all);
  return by_rule(a, rule, [&](const Tensor& x) { return ops::select(x, dim, index); });
}

std::vector<Tensor> split_on_sharded(const char* name, const Tensor& a, std::int64_t size, int dim) {
  if (layout_of(a).sizes.empty() || size < 1)
    throw Error(str(name, ": of ", describe_sharded(a), " into tensors of size ", size),
                "give a tensor with dims and a size of at least 1");
  const int on = normalize_dim(dim, layout_of(a).sizes.size(), name);
  std::vector<sharding::ShardedLayout> layouts;
  std::int64_t begin = 0;
  do {
    layouts.push_back(sharding::slice(name, layout_of(a), on, begin, begin + size).result);
    begin += size;
  } while (begin < layout_of(a).sizes[on]);
  std::vector<Tensor> parts = split(to_local(a), size, on);
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = from_local(parts[i], make_layout(layouts[i]));
  return parts;
}

Tensor join_on_sharded(const char* name, const std::vector<Tensor>& tensors, int dim, bool stacks) {
  require_unmixed(name, tensors);
  std::vector<sharding::ShardedLayout> layouts;
  layouts.reserve(tensors.size());
  for (const Tensor& tensor : tensors) layouts.push_back(layout_of(tensor));
  const sharding::Many rule = sharding::join(name, layouts, dim, stacks);
  std::vector<Tensor> locals;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    locals.push_back(local_for(tensors[i], rule.operands[i], rule.gradients[i]));
  return from_local(stacks ? stack(locals, dim) : cat(locals, dim), make_layout(rule.result));
}

namespace {

// The smallest value of a type for max, the largest for min: no element changes the reduction with it.
Tensor neutral(const Tensor& like, const Dims& sizes, bool largest) {
  if (is_floating(like.dtype())) {
    const double infinity = std::numeric_limits<double>::infinity();
    return full(sizes, largest ? -infinity : infinity, like.dtype(), like.device());
  }
  if (like.dtype() == DType::boolean) return full(sizes, largest ? 0.0 : 1.0, like.dtype(), like.device());
  const bool is_wide = like.dtype() == DType::int64;
  using Wide = std::numeric_limits<std::int64_t>;
  using Narrow = std::numeric_limits<std::int32_t>;
  const std::int64_t value =
      largest ? (is_wide ? Wide::min() : Narrow::min()) : (is_wide ? Wide::max() : Narrow::max());
  const Tensor one = from_values(std::vector<std::int64_t>{value}, {}, like.dtype(), like.device());
  return raw::contiguous(ops::expand(one, sizes));
}

}  // namespace

Tensor extreme_on_sharded(const char* name, const Tensor& a, int dim, bool keep_dim, bool largest, const OnLocal& f) {
  const sharding::Unary rule =
      sharding::extreme(name, layout_of(a), dim, keep_dim, largest ? layout::PartialOp::max : layout::PartialOp::min);
  const int on = normalize_dim(dim, rule.operand.sizes.size(), name);
  return by_rule(a, rule, [&](const Tensor& x) {
    const bool is_empty_shard = !rule.operand.sizes.empty() && rule.operand.sizes[on] > 0 && x.size(on) == 0;
    return is_empty_shard ? neutral(x, local_sizes_of(rule.result), largest) : f(x);
  });
}

}  // namespace lockstep::ops
