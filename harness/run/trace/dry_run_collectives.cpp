// How a dry run performs the collectives of the scenario: their results have shapes and no values.
#include <algorithm>

#include "engine/autograd/autograd.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/core/checked.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/run/trace/dry_run.hpp"

namespace lockstep::run {

void DryRun::count_user_collective(const StepCall& call) {
  user_collectives_[std::string(scenario::name_of(call.step.verb))] += 1;
}

namespace {

// The tensor that takes the result: `into`, or a new one of these sizes.
Value output_of(const StepCall& call, const Dims& sizes, const Tensor& input) {
  if (!call.has("into")) return Value(empty(sizes, input.dtype(), input.device()));
  const Tensor into = detach(call.tensor("into"));
  into.bump_version();
  return Value(into);
}

Value new_tensor_like(const Tensor& tensor) { return Value(empty(tensor.sizes(), tensor.dtype(), tensor.device())); }

}  // namespace

// A tensor that only a run knows is none of the tensors that the plan follows.
Value DryRun::collective_in_place(StepCall& call) {
  count_user_collective(call);
  if (call.step.verb == scenario::Verb::send) return Value();
  try {
    const Tensor tensor = call.tensor("tensor");
    const bool sends =
        call.step.verb == scenario::Verb::broadcast && call.mesh()->mesh_group().rank() == call.integer("from");
    if (!sends) tensor.bump_version();
  } catch (const Unforeseeable&) {
    throw;
  } catch (const Error& error) {
    note_unknown(std::string(scenario::name_of(call.step.verb)), call.step.place, error);
  }
  return Value();
}

Value DryRun::all_gather(StepCall& call) {
  count_user_collective(call);
  const MeshPtr mesh = call.mesh();
  const Tensor tensor = detach(call.tensor("tensor"));
  Dims sizes = tensor.sizes();
  const int dim = normalize_dim(call.integer("dim"), sizes.size(), "dim");
  sizes[dim] = checked_multiply(sizes[dim], mesh->num_ranks(), "all_gather");
  return output_of(call, sizes, tensor);
}

Value DryRun::reduce_scatter(StepCall& call) {
  count_user_collective(call);
  const MeshPtr mesh = call.mesh();
  const Tensor tensor = detach(call.tensor("tensor"));
  Dims sizes = tensor.sizes();
  const int dim = normalize_dim(call.integer("dim"), sizes.size(), "dim");
  sizes[dim] /= mesh->num_ranks();
  return output_of(call, sizes, tensor);
}

Value DryRun::all_to_all(StepCall& call) {
  count_user_collective(call);
  const Tensor tensor = call.tensor("tensor");
  return output_of(call, tensor.sizes(), tensor);
}

Value DryRun::gather(StepCall& call) {
  count_user_collective(call);
  const Tensor tensor = call.tensor("tensor");
  const MeshPtr mesh = call.mesh();
  List items;
  if (mesh->mesh_group().rank() == call.integer("to"))
    for (int rank = 0; rank < mesh->num_ranks(); ++rank) items.push_back(new_tensor_like(tensor));
  return Value::list(std::move(items));
}

Value DryRun::scatter(StepCall& call) {
  count_user_collective(call);
  const List tensors = call.list("tensors");
  if (tensors.empty()) return Value();
  const auto own = static_cast<std::size_t>(call.mesh()->mesh_group().rank());
  return new_tensor_like(tensors[std::min(own, tensors.size() - 1)].as_tensor("an item of `tensors`"));
}

}  // namespace lockstep::run
