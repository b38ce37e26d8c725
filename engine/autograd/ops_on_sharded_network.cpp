// Embedding, index_select, norms, attention and dropout on sharded operands.
#include "engine/autograd/computed.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/autograd/ops_on_sharded_internal.hpp"
#include "engine/autograd/ops_sharded.hpp"
#include "engine/comm/statements.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/mesh/device_mesh.hpp"
#include "engine/tensor/ops.hpp"
#include "engine/tensor/ops_network.hpp"
#include "engine/tensor/ops_shards.hpp"

namespace lockstep::ops {

namespace {

// The rows of a sharded dim that this rank holds.
std::vector<layout::Chunk> held_rows(const sharding::ShardedLayout& a, int dim) {
  std::vector<layout::Chunk> held = held_by_rank(a)[static_cast<std::size_t>(dim)];
  if (defect_armed(Defect::sharded_rows_off_by_one) && !held.empty()) [[unlikely]]
    --held.back().length;
  return held;
}

// Slices of a local shard along its sharded dim, in the order of `index`; zeros for slices of other ranks.
Tensor select_own(const char* name, const Tensor& a, int dim, const Tensor& index, std::int64_t size,
                  const std::vector<layout::Chunk>& held) {
  struct Selected {
    Tensor result, positions;
  };
  const Selected selected = computed(name, [&] {
    const Tensor positions = raw::positions_in(name, index, size, held);
    return Selected{raw::select_held(a, dim, positions), positions};
  });
  return record(name, selected.result, {a}, {selected.positions}, [dim](const Backward& at) -> Gradients {
    const Tensor grad = zeros(at.sizes(0), at.dtype(0), at.device(0));
    raw::add_held_(grad, dim, at.saved(0), at.grad());
    return {grad};
  });
}

// Whether the operation on the local shard finds every index, and wrong ones: without elements it would not look.
bool finds_all(const Tensor& local, const std::vector<layout::Chunk>& held, std::int64_t size) {
  return local.num_elements() > 0 && held.size() == 1 && held[0].length == size;
}

}  // namespace

Tensor embedding_on_sharded(const Tensor& weight, const Tensor& indices) {
  require_unmixed("embedding", {weight, indices});
  const sharding::Binary rule = sharding::embedding(layout_of(weight), layout_of(indices));
  const Tensor rows = local_for(weight, rule.a, rule.a_grad), at = local_for(indices, rule.b, rule.b_grad);
  const std::int64_t size = rule.a.sizes[0];
  const std::vector<layout::Chunk> held = held_rows(rule.a, 0);
  if (finds_all(rows, held, size)) return from_local(embedding(rows, at), make_layout(rule.result));
  const Tensor found = select_own("embedding", rows, 0, raw::reshape(at, Dims{at.num_elements()}), size, held);
  Dims sizes = at.sizes();
  sizes.push_back(rows.size(1));
  return from_local(ops::view(found, sizes), make_layout(rule.result));
}

Tensor index_select_on_sharded(const Tensor& a, int dim, const Tensor& index) {
  require_unmixed("index_select", {a, index});
  const sharding::Binary rule = sharding::index_select(layout_of(a), dim, layout_of(index));
  const Tensor from = local_for(a, rule.a, rule.a_grad), at = local_for(index, rule.b, rule.b_grad);
  const int on = normalize_dim(dim, from.num_dims(), "index_select");
  const std::vector<layout::Chunk> held = held_rows(rule.a, on);
  const Tensor found = finds_all(from, held, rule.a.sizes[on])
                           ? index_select(from, on, at)
                           : select_own("index_select", from, on, at, rule.a.sizes[on], held);
  return from_local(found, make_layout(rule.result));
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

Tensor dropout_on_sharded(const Tensor& a, double p, const OnMasked& f) {
  const sharding::ShardedLayout where = sharding::reduced(layout_of(a), Keeps::sums);
  return by_rule(a, {where, where},
                 [&](const Tensor& x) { return f(x, [&] { return keep_mask_of(where, p, x.device()); }); });
}

namespace {

// The ranks of the mesh compare the states of their generators, from which all draw one mask.
void state_generator(const sharding::ShardedLayout& layout, device::Device device) {
  if (!device::computes(device)) return;
  Generator ahead = RankContext::current().generator();
  const auto next = static_cast<std::int64_t>(ahead.next64() >> 1U);
  const DeviceMesh mesh(layout.mesh);
  for (int axis = 0; axis < mesh.num_axes(); ++axis)
    if (mesh.shape().size(axis) > 1)
      comm::add_statement(mesh.group(axis), {&next, 1}, [next, layout] {
        return str("the dropout of ", layout.text(), " draws from a generator whose next number is ", next,
                   " (seed the ranks of the mesh alike, and let them draw the same numbers)");
      });
}

}  // namespace

Tensor keep_mask_of(const sharding::ShardedLayout& layout, double p, device::Device device) {
  state_generator(layout, device);
  if (defect_armed(Defect::sharded_dropout_draws_shard)) [[unlikely]]
    return raw::keep_mask(layout::local_sizes(layout, RankContext::current().rank()), p, device);
  return raw::keep_mask_of_shard(layout.sizes, held_by_rank(layout), p, device);
}

Tensor attention_on_sharded(const Tensor& q, const Tensor& k, const Tensor& v, double dropout_p, const Tensor* mask,
                            const OnAttended& f) {
  std::vector<Tensor> operands = {q, k, v};
  if (mask) operands.push_back(*mask);
  require_unmixed("attention", operands);
  const sharding::Many rule =
      sharding::attention(layout_of(q), layout_of(k), layout_of(v), mask ? &layout_of(*mask) : nullptr);
  std::vector<Tensor> local;
  for (std::size_t i = 0; i < operands.size(); ++i)
    local.push_back(local_for(operands[i], rule.operands[i], rule.gradients[i]));
  sharding::ShardedLayout scores = rule.result;
  scores.sizes[scores.sizes.size() - 1] = layout_of(k).sizes[scores.sizes.size() - 2];
  const auto draw = [&scores, dropout_p, device = q.device()] { return keep_mask_of(scores, dropout_p, device); };
  return from_local(f(local[0], local[1], local[2], mask ? &local[3] : nullptr, draw), make_layout(rule.result));
}

}  // namespace lockstep::ops
