#include "harness/plan/tensor_parallel_plan.hpp"

#include <utility>

#include "engine/core/checked.hpp"

namespace lockstep::plan {

using layout::Placement;
using layout::ShardedLayout;

namespace {

constexpr std::int64_t number_bytes = 8;  // per count that ranks exchange

// The placements of an unreduced gradient.
Placements partial_where_replicated(Placements placements) {
  for (Placement& placement : placements)
    if (placement.is_replicate()) placement = layout::partial();
  return placements;
}

}  // namespace

// ---- values at the border of a module ----
// A plain tensor is the local shard under `given`. All shards are as large as this one, except that the input features
// of a Linear are known.
ShardedLayout TensorParallelPlan::layout_of(const StyledModule& module, const Value& value, Placement given) const {
  if (value.layout) return *value.layout;
  given = counted_from_front(given, value.sizes.size());
  Dims sizes = value.sizes;
  if (given.is_shard()) {
    const bool is_features = module.input_features > 0 && given.dim == sizes.size() - 1;
    sizes[given.dim] =
        is_features ? module.input_features : checked_multiply(sizes[given.dim], module.mesh.size(0), "plan");
  }
  return {module.mesh, {given}, sizes};
}

Change TensorParallelPlan::input(ModuleId module, const Value& value) const {
  const StyledModule& styled = modules_.at(module);
  const ValueReading reading = input_reading(styled.style, styled.kind);
  const ShardedLayout from = layout_of(styled, value, reading.given);
  const int num_dims = from.sizes.size();
  return {styled.owner,
          value.dtype,
          from,
          {counted_from_front(reading.wanted, num_dims)},
          {counted_from_front(reading.gradient, num_dims)},
          value.open};
}

Change TensorParallelPlan::output(ModuleId module, const Dims& sizes, DType dtype) const {
  const StyledModule& styled = modules_.at(module);
  const ValueReading reading = output_reading(styled.style, styled.kind);
  const Placement wanted = counted_from_front(reading.wanted, sizes.size());
  return {styled.owner,
          dtype,
          {styled.mesh, {counted_from_front(reading.given, sizes.size())}, sizes},
          {wanted},
          gradient_placements({wanted})};
}

Change TensorParallelPlan::prepared(ModuleId module, const Value& value, const Placement& given,
                                    const std::optional<Placement>& wanted) const {
  const StyledModule& styled = modules_.at(module);
  const ShardedLayout from = layout_of(styled, value, given);
  const Placements to = wanted ? Placements{counted_from_front(*wanted, from.sizes.size())} : from.placements;
  return {styled.owner, value.dtype, from, to, gradient_placements(to), value.open};
}

Change TensorParallelPlan::by_step(const std::string& owner, const ShardedLayout& from, const Placements& to,
                                   DType dtype) {
  return {owner, dtype, from, to, gradient_placements(to)};
}

// ---- collectives ----
void TensorParallelPlan::issue(const std::string& owner, const layout::MeshShape& mesh,
                               const std::vector<Movement>& movements, DType dtype) const {
  for (const Movement& movement : movements) {
    Collective collective;
    collective.family = "tensor_parallel";
    collective.operation = movement.operation;
    collective.axis = mesh.names()[static_cast<std::size_t>(movement.axis)];
    collective.group_size = mesh.size(movement.axis);
    collective.owner = owner;
    collective.bytes = bytes_of({movement.elements}, dtype);
    issue_(std::move(collective));
  }
}

void TensorParallelPlan::start(const std::string& owner, const layout::MeshShape& mesh,
                               const std::vector<std::int64_t>& bytes, bool has_parameters, bool one_type) {
  const auto start_up = [&](const char* operation, std::int64_t num_bytes, bool is_least) {
    Collective collective;
    collective.family = "start_up";
    collective.operation = operation;
    collective.axis = mesh.names()[0];
    collective.group_size = mesh.size(0);
    collective.owner = owner;
    collective.bytes = num_bytes;
    collective.bytes_are_least = is_least;
    issue_(std::move(collective));
  };
  start_up("all_gather", checked_multiply(number_bytes, mesh.size(0), "plan"), false);
  if (has_parameters) start_up("broadcast", 0, true);  // shapes and types
  for (const std::int64_t of_device : bytes) start_up("broadcast", of_device, !one_type);
}

void TensorParallelPlan::forward(const Change& change) const {
  issue(change.owner, change.from.mesh, redistribution(change.from, change.to, rank_), change.dtype);
}

void TensorParallelPlan::backward(const Change& change) const {
  const bool is_partial = change.result && std::exchange(change.result->is_partial, false);
  const ShardedLayout arrived{
      change.from.mesh, is_partial ? partial_where_replicated(change.gradient) : change.gradient, change.from.sizes};
  if (change.source && change.from.placements == change.to && layout::has_partial(arrived)) {
    *change.source = {true, change.owner};
    return;
  }
  issue(change.owner, change.from.mesh, redistribution(arrived, gradient_placements(change.from.placements), rank_),
        change.dtype);
}

void TensorParallelPlan::backward(const Value& value) const {
  if (!value.layout || !value.open || !std::exchange(value.open->is_partial, false)) return;
  const Placements final = gradient_placements(value.layout->placements);
  const ShardedLayout arrived{value.layout->mesh, partial_where_replicated(final), value.layout->sizes};
  issue(value.open->owner, value.layout->mesh, redistribution(arrived, final, rank_), value.dtype);
}

void TensorParallelPlan::reduce_gradient(const std::string& owner, const layout::MeshShape& mesh, const Dims& sizes,
                                         DType dtype) const {
  issue(owner, mesh, redistribution({mesh, {layout::partial()}, sizes}, {layout::replicate()}, rank_), dtype);
}

}  // namespace lockstep::plan
