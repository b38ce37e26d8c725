// Functions of sharded tensors. A placement is a text, as in `placements` of a tensor: 'Shard(0)', 'Replicate',
// 'Partial(sum)'.
#include "engine/autograd/ops_sharded.hpp"
#include "engine/core/checked.hpp"
#include "harness/run/trace/traced_layouts.hpp"
#include "harness/run/values/functions.hpp"

namespace lockstep::run::functions {

namespace {

// A negative dim of a placement counts from the last one.
Placements placements_at(const CallArguments& call, std::size_t position, int num_dims) {
  const Value& given = call.at(position, "placements");
  const List items = given.is(Value::Kind::list) ? given.as_list("placements") : List{given};
  Placements placements;
  for (const Value& item : items) {
    placements.push_back(layout::placement_from_text(item.as_text("a placement")));
    if (placements.back().is_shard() && placements.back().dim < 0 && placements.back().dim >= -num_dims)
      placements.back().dim += num_dims;
  }
  return placements;
}

}  // namespace

Value shard(const CallArguments& call) {
  const int dim = checked_int(call.integer(0, "dim"), "shard: dim");
  const Value* split = call.keyword("split");
  if (!split) return Value(layout::to_text(layout::shard(dim)));
  return Value(layout::to_text(layout::strided_shard(dim, checked_int(split->as_int("split"), "shard: split"))));
}

Value replicate(const CallArguments&) { return Value(layout::to_text(layout::replicate())); }

Value partial(const CallArguments& call) {
  const Value* op = call.find(0, "op");
  return Value(layout::to_text(layout::placement_from_text(str("Partial(", op ? op->as_text("op") : "sum", ")"))));
}

Value from_local(const CallArguments& call) {
  const Tensor& local = call.tensor(0, "x");
  const MeshPtr& mesh = call.at(1, "mesh").as_mesh("mesh");
  const Placements placements = placements_at(call, 2, local.num_dims());
  const Value* shape = call.keyword("shape");
  if (!shape) return Value(ops::from_local(local, *mesh, placements));
  const Dims sizes = sizes_of(shape->as_list("shape"), "from_local");
  return Value(ops::from_local(local, *mesh, placements, &sizes));
}

Value distribute(const CallArguments& call) {
  const Tensor& full = call.tensor(0, "x");
  return Value(ops::distribute(full, *call.at(1, "mesh").as_mesh("mesh"), placements_at(call, 2, full.num_dims())));
}

Value redistribute(const CallArguments& call) {
  const Tensor& tensor = call.tensor(0, "x");
  const Placements placements = placements_at(call, 1, tensor.num_dims());
  if (TracedLayouts* traced = TracedLayouts::active()) return Value(traced->redistribute(tensor, placements));
  return Value(ops::redistribute(tensor, placements));
}

Value full_tensor(const CallArguments& call) {
  const Tensor& tensor = call.tensor(0, "x");
  if (TracedLayouts* traced = TracedLayouts::active()) return Value(traced->full_tensor(tensor));
  return Value(ops::full_tensor(tensor));
}

}  // namespace lockstep::run::functions
