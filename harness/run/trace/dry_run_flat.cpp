// How a dry run performs flat_shard: units are found, their choices read, and their parameters become views of chunks.
#include <algorithm>
#include <map>

#include "engine/autograd/autograd.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/run/interpreter.hpp"
#include "harness/run/trace/dry_run.hpp"
#include "harness/run/trace/stand_in.hpp"

namespace lockstep::run {

namespace {

plan::FlatStrategy strategy_of(FlatStrategyArgument argument) {
  using Given = FlatStrategyArgument;
  switch (argument) {
    case Given::full_shard:
      return plan::FlatStrategy::full_shard;
    case Given::shard_grad_op:
      return plan::FlatStrategy::shard_grad_op;
    case Given::no_shard:
      return plan::FlatStrategy::no_shard;
    case Given::hybrid_shard:
      return plan::FlatStrategy::hybrid_shard;
    case Given::hybrid_shard_grad_op:
      return plan::FlatStrategy::hybrid_shard_grad_op;
  }
  throw InternalError("an unknown strategy of flat_shard");
}

plan::BackwardPrefetch prefetch_of(PrefetchArgument argument) {
  switch (argument) {
    case PrefetchArgument::before:
      return plan::BackwardPrefetch::before;
    case PrefetchArgument::after:
      return plan::BackwardPrefetch::after;
    case PrefetchArgument::none:
      return plan::BackwardPrefetch::none;
  }
  throw InternalError("an unknown prefetch of flat_shard");
}

}  // namespace

Value DryRun::flat_shard(StepCall& call) {
  watch_.report_position();
  const FlatShardArguments arguments = flat_shard_arguments(call);
  plan::ShardChoices choices;
  plan::apply_strategy(strategy_of(arguments.strategy), axes_of(*arguments.mesh), choices);
  choices.flat->aligned = arguments.original_parameters;
  choices.flat->backward_prefetch = prefetch_of(arguments.backward_prefetch);
  choices.flat->forward_prefetch = arguments.forward_prefetch;
  choices.param = arguments.mixed_precision.param;
  choices.reduce = arguments.mixed_precision.reduce;
  ShardPolicy policy;
  policy.param = arguments.mixed_precision.param;
  policy.casts_inputs = arguments.mixed_precision.cast_forward_inputs;
  policy.casts_inputs_of_root = arguments.mixed_precision.cast_root_forward_inputs;
  policy.compute_device = call.in.session().device;
  policy.shard_device = arguments.offload ? stand_in(device::Device{}) : policy.compute_device;
  for (const ModuleMatch& root : arguments.modules) make_units(root, arguments, choices, policy);
  return Value();
}

void DryRun::make_units(const ModuleMatch& root, const FlatShardArguments& arguments, const plan::ShardChoices& choices,
                        const ShardPolicy& policy) {
  watch_.watch(root.module);
  std::set<plan::ModuleId> of_types;
  std::map<plan::ModuleId, std::string> paths;
  const std::vector<std::string>& types = arguments.unit_types;
  for (const nn::NamedModule& below : nn::named_modules(root.module)) {
    const plan::ModuleId id = model_.id_of(below.module);
    paths.emplace(id, below.path.empty() ? root.path : str(root.path, ".", below.path));
    if (std::find(types.begin(), types.end(), below.module->type()) != types.end()) of_types.insert(id);
  }
  plan::Planner::Ignored ignored;
  for (const ModuleMatch& one : arguments.ignored_modules) ignored.modules.insert(model_.id_of(one.module));
  for (const TensorMatch& one : arguments.ignored_parameters) ignored.parameters.insert(model_.id_of(one.tensor()));
  for (const ModuleMatch& one : arguments.ignored_modules)
    for (const nn::NamedParameter& shared : nn::named_parameters(one.module))
      ignored.parameters.insert(model_.id_of(shared.tensor()));
  const std::vector<plan::Planner::FlatUnit> units = planner_.flat_units(model_.id_of(root.module), of_types, ignored);
  give_storage(units, policy.compute_device);
  if (arguments.sync_module_states) {
    std::vector<plan::Axis> axes;
    if (choices.replicate) axes.push_back(*choices.replicate);
    if (choices.flat->shards) axes.push_back(choices.shard);
    planner_.broadcast_states(units, axes, root.path);
  }
  for (const plan::Planner::FlatUnit& unit : units) {
    watch_.watch(model_.module(unit.module));
    plan::ShardChoices own = choices;
    own.owner = paths.at(unit.module);
    for (const plan::TensorId id : unit.parameters)
      if (const std::optional<plan::Axis> axis = tensor_parallel_.partial_axis_of(id))
        own.partial_gradients.emplace(id, *axis);
    planner_.flat_shard(unit, own);
    std::vector<nn::ModulePtr> modules;
    for (const plan::ModuleId id : unit.modules) modules.push_back(model_.module(id));
    place_buffers(unit.modules, policy.compute_device);
    shards_.add_unit(unit.module, modules, traced(unit.parameters, unit.modules), arguments.mesh, policy,
                     {.choices = *own.flat,
                      .original_parameters = arguments.original_parameters,
                      .keeps_compute_type = arguments.mixed_precision.keep_low_precision_gradients,
                      .buffer = arguments.mixed_precision.buffer});
  }
}

Value DryRun::summon_full_parameters(StepCall& call) {
  watch_.report_position();
  TracedShards::Summon summon;
  summon.gradients = call.boolean("gradients");
  summon.only_first_rank = call.boolean("rank0_only");
  summon.on_host = call.text("offload") != "none";
  const plan::ModuleId root = refreshed_ids({call.module("model")}).front();
  std::vector<plan::ModuleId> units;
  for (const plan::ModuleId id : planner_.facts().pre_order(root))
    if (planner_.shards().is_flat(id) && (id == root || call.boolean("recurse"))) units.push_back(id);
  for (const plan::ModuleId id : units) {
    std::optional<plan::ShardPlan::SummonedGradients> gradients;
    if (summon.gradients)
      gradients = {.compute_type = shards_.gives_compute_type(id),
                   .original_parameters = shards_.has_original_parameters(id)};
    planner_.shards().summon(id, gradients);
  }
  shards_.follow();
  shards_.show_full(units, summon);
  call.in.run_steps(call.step.steps, call.scope);
  const bool writes = call.boolean("writeback");
  shards_.hide_full(units, writes, writes && summon.gradients);
  return Value();
}

// Parameters and buffers that the scenario made on meta get storage.
void DryRun::give_storage(const std::vector<plan::Planner::FlatUnit>& units, device::Device device) const {
  const NoGrad no_grad;
  const auto place = [device](const Tensor& tensor) {
    if (tensor.defined() && tensor.is_meta() && !is_stand_in(tensor.device()))
      nn::swap_data(tensor, empty(tensor.sizes(), tensor.dtype(), device));
  };
  for (const plan::Planner::FlatUnit& unit : units)
    for (const plan::ModuleId id : unit.modules) {
      for (const nn::ParameterSlot& slot : model_.module(id)->parameters) place(slot.tensor);
      for (const nn::BufferSlot& slot : model_.module(id)->buffers) place(slot.tensor);
    }
}

}  // namespace lockstep::run
