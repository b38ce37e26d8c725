// flat_shard, summon_full_parameters.
#include "engine/parallel/flat_shard.hpp"
#include "engine/parallel/flat_summon.hpp"
#include "harness/run/observe/observation.hpp"
#include "harness/run/verbs/parallel_arguments.hpp"

namespace lockstep::run::verbs {

namespace {

parallel::FlatStrategy strategy_of(FlatStrategyArgument argument) {
  switch (argument) {
    case FlatStrategyArgument::full_shard:
      return parallel::FlatStrategy::full_shard;
    case FlatStrategyArgument::shard_grad_op:
      return parallel::FlatStrategy::shard_grad_op;
    case FlatStrategyArgument::no_shard:
      return parallel::FlatStrategy::no_shard;
    case FlatStrategyArgument::hybrid_shard:
      return parallel::FlatStrategy::hybrid_shard;
    case FlatStrategyArgument::hybrid_shard_grad_op:
      return parallel::FlatStrategy::hybrid_shard_grad_op;
  }
  throw InternalError("an unknown `strategy`");
}

parallel::BackwardPrefetch prefetch_of(PrefetchArgument argument) {
  switch (argument) {
    case PrefetchArgument::before:
      return parallel::BackwardPrefetch::before;
    case PrefetchArgument::after:
      return parallel::BackwardPrefetch::after;
    case PrefetchArgument::none:
      return parallel::BackwardPrefetch::none;
  }
  throw InternalError("an unknown `backward_prefetch`");
}

parallel::FlatPrecision precision_of(const FlatPrecisionArgument& argument) {
  parallel::FlatPrecision precision;
  precision.param = argument.param;
  precision.reduce = argument.reduce;
  precision.buffer = argument.buffer;
  precision.cast_forward_inputs = argument.cast_forward_inputs;
  precision.cast_root_forward_inputs = argument.cast_root_forward_inputs;
  precision.keep_low_precision_gradients = argument.keep_low_precision_gradients;
  return precision;
}

}  // namespace

Value flat_shard(StepCall& call) {
  const FlatShardArguments arguments = flat_shard_arguments(call);
  parallel::FlatShardOptions options;
  options.mesh = *arguments.mesh;
  options.device = call.in.session().device;
  options.strategy = strategy_of(arguments.strategy);
  options.unit_types = arguments.unit_types;
  options.offload = arguments.offload ? parallel::Offload::cpu : parallel::Offload::none;
  options.mixed_precision = precision_of(arguments.mixed_precision);
  options.original_parameters = arguments.original_parameters;
  options.sync_module_states = arguments.sync_module_states;
  for (const ModuleMatch& found : arguments.ignored_modules) options.ignored.push_back(found.module);
  for (const TensorMatch& found : arguments.ignored_parameters) options.ignored_parameters.push_back(found.tensor());
  options.backward_prefetch = prefetch_of(arguments.backward_prefetch);
  options.forward_prefetch = arguments.forward_prefetch;
  for (const ModuleMatch& found : arguments.modules) {
    options.name = found.path;
    for (const parallel::FlatUnit& unit : parallel::flat_shard(found.module, options))
      note_owner(unit.name, {unit.module});
  }
  return Value();
}

Value summon_full_parameters(StepCall& call) {
  parallel::SummonOptions options;
  options.writeback = call.boolean("writeback");
  options.gradients = call.boolean("gradients");
  options.rank0_only = call.boolean("rank0_only");
  options.offload = call.text("offload") != "none";
  options.recurse = call.boolean("recurse");
  parallel::SummonedParameters summoned(call.module("model").module, options);
  call.in.run_steps(call.step.steps, call.scope);
  summoned.finish();
  return Value();
}

}  // namespace lockstep::run::verbs
