#include <algorithm>
#include <functional>

#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/mesh/sharding_rules.hpp"

namespace lockstep::sharding {

using layout::Placement;

namespace {

[[noreturn]] void refuse(const char* operation, const ShardedLayout& a, const ShardedLayout& b, const char* remedy) {
  throw Error(str(operation, ": ", a.text(), " with ", b.text()), remedy);
}

Placement moved(Placement placement, int to) {
  placement.dim = to;
  return placement;
}

// Whether the two differ in the dim at most.
bool equal_except_dim(const Placement& a, const Placement& b) { return moved(a, 0) == moved(b, 0); }

void require_one_mesh(const char* operation, const ShardedLayout& a, const ShardedLayout& b) {
  if (!(a.mesh == b.mesh)) refuse(operation, a, b, "distribute both over the same mesh");
}

// A rule that reduces partial operands. The placements of the result are to be filled in.
Binary start(const char* operation, const ShardedLayout& a, const ShardedLayout& b, const Dims& sizes) {
  require_one_mesh(operation, a, b);
  const ShardedLayout left = reduced(a, Keeps::nothing), right = reduced(b, Keeps::nothing);
  return {left, right, {a.mesh, {}, sizes}, left, right};
}

std::size_t num_axes(const ShardedLayout& layout) { return layout.placements.size(); }

}  // namespace

Binary matmul(const ShardedLayout& a, const ShardedLayout& b) {
  const int dims_a = a.sizes.size(), dims_b = b.sizes.size(), dims = std::max(dims_a, dims_b);
  if (dims_a < 2 || dims_b < 2) refuse("matmul", a, b, "unsqueeze the vector: sharded operands need two dims or more");
  if (a.sizes[dims_a - 1] != b.sizes[dims_b - 2]) refuse("matmul", a, b, "give equal inner sizes");
  Dims batch_a, batch_b;
  for (int dim = 0; dim < dims_a - 2; ++dim) batch_a.push_back(a.sizes[dim]);
  for (int dim = 0; dim < dims_b - 2; ++dim) batch_b.push_back(b.sizes[dim]);
  Dims sizes = broadcast_sizes(batch_a, batch_b, "matmul");
  sizes.push_back(a.sizes[dims_a - 2]);
  sizes.push_back(b.sizes[dims_b - 1]);

  Binary rule = start("matmul", a, b, sizes);
  // The size of an operand at a batch dim of the result; 1 if it does not have the dim.
  const auto batch_size = [dims](const Dims& batch, int dim) {
    const int own = dim - (dims - 2 - batch.size());
    return own < 0 ? std::int64_t{1} : batch[own];
  };
  for (std::size_t axis = 0; axis < num_axes(a); ++axis) {
    const Placement &left = rule.a.placements[axis], &right = rule.b.placements[axis];
    const bool left_shards_k = left.is_shard(dims_a - 1), right_shards_k = right.is_shard(dims_b - 2);
    Placement out;
    if (left.is_replicate() && right.is_replicate()) {
      out = layout::replicate();
    } else if (left_shards_k && right_shards_k && equal_except_dim(left, right)) {
      out = layout::partial();
    } else if (left.is_shard() && !left_shards_k && right.is_replicate() &&
               (left.dim == dims_a - 2 || batch_size(batch_b, left.dim + dims - dims_a) == 1)) {
      out = moved(left, left.dim + dims - dims_a);
      rule.b_grad.placements[axis] = layout::partial();
    } else if (right.is_shard() && !right_shards_k && left.is_replicate() &&
               (right.dim == dims_b - 1 || batch_size(batch_a, right.dim + dims - dims_b) == 1)) {
      out = moved(right, right.dim + dims - dims_b);
      rule.a_grad.placements[axis] = layout::partial();
    } else if (left.is_shard() && left.dim < dims_a - 2 && equal_except_dim(left, right) &&
               left.dim + dims - dims_a == right.dim + dims - dims_b && a.sizes[left.dim] == b.sizes[right.dim]) {
      out = moved(left, left.dim + dims - dims_a);
    } else {
      refuse("matmul", a, b,
             "on each axis replicate one and shard the other along its rows or columns, or shard both along the inner "
             "dim");
    }
    rule.result.placements.push_back(out);
  }
  return rule;
}

Linear linear(const ShardedLayout& x, const ShardedLayout& weight, const ShardedLayout* bias) {
  if (weight.sizes.size() != 2 || x.sizes.size() < 2)
    refuse("linear", x, weight, "give x (..., in) of two dims or more and a weight (out, in)");
  const Unary transposed = permute(weight, {1, 0});
  const Binary product = matmul(x, transposed.result);
  const ShardedLayout reduced_weight = reduced(weight, Keeps::nothing);
  Linear rule{product.a,      reduced_weight, reduced_weight,
              product.result, product.a_grad, permute(product.b_grad, {1, 0}).result,
              reduced_weight};
  if (!bias) return rule;
  require_one_mesh("linear", x, *bias);
  if (!(bias->sizes == Dims{weight.sizes[0]})) refuse("linear", weight, *bias, "give a bias (out)");
  rule.bias = rule.bias_grad = reduced(*bias, Keeps::nothing);
  const int last = x.sizes.size() - 1;
  for (std::size_t axis = 0; axis < num_axes(x); ++axis) {
    const Placement& out = product.result.placements[axis];
    Placement &wanted = rule.bias.placements[axis], &gradient = rule.bias_grad.placements[axis];
    const Placement given = wanted;
    wanted = out.is_shard(last)                                                     ? moved(out, 0)
             : out.is_partial() && !defect_armed(Defect::sharded_bias_added_by_all) ? layout::partial()
                                                                                    : layout::replicate();
    if (!given.is_replicate() && !(given == wanted))
      refuse("linear", *bias, weight, "replicate the bias, or shard it like the rows of the weight");
    gradient = out.is_shard(last) ? wanted : out.is_shard() ? layout::partial() : layout::replicate();
  }
  return rule;
}

Norm normalize(const char* operation, const ShardedLayout& x, int num_dims, const ShardedLayout* weight,
               const ShardedLayout* bias) {
  const ShardedLayout reduced_x = reduced(x, Keeps::nothing);
  for (const Placement& placement : reduced_x.placements)
    if (placement.is_shard() && placement.dim >= x.sizes.size() - num_dims)
      throw Error(str(operation, ": over the last ", num_dims, " dims of ", x.text(), ", which are sharded"),
                  "redistribute it so that no axis shards them");
  Norm rule{reduced_x, reduced_x, reduced_x};
  for (const ShardedLayout* given : {weight, bias}) {
    if (!given) continue;
    require_one_mesh(operation, x, *given);
    rule.weight = rule.weight_grad = reduced(*given, Keeps::nothing);
    for (std::size_t axis = 0; axis < num_axes(x); ++axis) {
      if (rule.weight.placements[axis].is_shard()) refuse(operation, x, *given, "replicate the weights");
      if (reduced_x.placements[axis].is_shard()) rule.weight_grad.placements[axis] = layout::partial();
    }
  }
  return rule;
}

namespace {

// Slices of `a` along `dim` at `index`: the rule of embedding and index_select. `to(d)`: the dim of the result for a
// dim of `a` other than `dim`; `first`: the dim of the result that holds the first dim of the index.
Binary selected(const char* operation, const ShardedLayout& a, int dim, const ShardedLayout& index, const Dims& sizes,
                int first, const std::function<int(int)>& to) {
  Binary rule = start(operation, a, index, sizes);
  for (std::size_t axis = 0; axis < num_axes(a); ++axis) {
    const Placement &from = rule.a.placements[axis], &at = rule.b.placements[axis];
    if (from.is_replicate()) {
      rule.result.placements.push_back(at.is_shard() ? moved(at, at.dim + first) : at);
      if (at.is_shard()) rule.a_grad.placements[axis] = layout::partial();
    } else if (!from.is_shard(dim) && at.is_replicate()) {
      rule.result.placements.push_back(moved(from, to(from.dim)));
    } else if (at.is_replicate()) {
      rule.result.placements.push_back(layout::partial());
    } else {
      refuse(operation, a, index, "on each axis shard the first operand or the indices, and replicate the other");
    }
  }
  return rule;
}

}  // namespace

Binary embedding(const ShardedLayout& weight, const ShardedLayout& indices) {
  if (weight.sizes.size() != 2) refuse("embedding", weight, indices, "give a weight of two dims: (rows, width)");
  Dims sizes = indices.sizes;
  sizes.push_back(weight.sizes[1]);
  return selected("embedding", weight, 0, indices, sizes, 0, [&](int) { return indices.sizes.size(); });
}

Binary index_select(const ShardedLayout& a, int dim, const ShardedLayout& index) {
  if (a.sizes.empty() || index.sizes.size() > 1)
    refuse("index_select", a, index, "give a tensor with dims and an index of one dim");
  const int at = normalize_dim(dim, a.sizes.size(), "index_select");
  Dims sizes = a.sizes;
  sizes[at] = num_elements(index.sizes);
  return selected("index_select", a, at, index, sizes, at, [](int d) { return d; });
}

}  // namespace lockstep::sharding
