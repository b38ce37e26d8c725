// replicate, fully_shard, unshard, reshard, wait, set_flags, prefetch, register_forward_method, set_post_optim_event.
#include "engine/parallel/fully_shard.hpp"
#include "engine/parallel/replicate.hpp"
#include "harness/run/live_run.hpp"
#include "harness/run/observe/observation.hpp"
#include "harness/run/verbs/parallel_arguments.hpp"

namespace lockstep::run::verbs {

namespace {

parallel::ReshardAfterForward reshard_after_forward_of(const ReshardArgument& argument) {
  if (const bool* flag = std::get_if<bool>(&argument)) return parallel::ReshardAfterForward::of(*flag);
  return parallel::ReshardAfterForward::among(std::get<int>(argument));
}

parallel::Offload offload_of(OffloadArgument argument) {
  switch (argument) {
    case OffloadArgument::none:
      return parallel::Offload::none;
    case OffloadArgument::cpu:
      return parallel::Offload::cpu;
    case OffloadArgument::cpu_pinned:
      return parallel::Offload::cpu_pinned;
  }
  throw InternalError("an unknown `offload`");
}

std::vector<nn::ModulePtr> modules_of(const std::vector<ModuleMatch>& found) {
  std::vector<nn::ModulePtr> modules;
  modules.reserve(found.size());
  for (const ModuleMatch& at : found) modules.push_back(at.module);
  return modules;
}

// Throws Error when a pattern of `shard_dim` states no dim, before anything is sharded. The modules of a group are left
// out of the later ones.
void check_shard_dim(const FullyShardArguments& arguments, parallel::FullyShardOptions options,
                     ShardDimArgument& shard_dim) {
  for (const std::vector<ModuleMatch>& group : arguments.groups) {
    const std::vector<nn::ModulePtr> modules = modules_of(group);
    for (const std::string& path : parallel::parameters_to_shard(modules, options)) shard_dim.stated_for(path);
    options.ignored.insert(options.ignored.end(), modules.begin(), modules.end());
  }
  shard_dim.check_all_matched();
}

void shard_group(const std::vector<ModuleMatch>& found, parallel::FullyShardOptions& options) {
  std::vector<nn::ModulePtr> modules;
  options.name.clear();
  for (const ModuleMatch& at : found) {
    modules.push_back(at.module);
    options.name += str(options.name.empty() ? "" : "+", at.path);
  }
  parallel::fully_shard(modules, options);
  note_owner(options.name, modules);
}

}  // namespace

Value replicate(StepCall& call) {
  const ReplicateArguments arguments = replicate_arguments(call);
  parallel::ReplicateOptions options;
  options.mesh = *arguments.mesh;
  options.ignored = modules_of(arguments.ignored);
  options.bucket_cap_mb = arguments.bucket_cap_mb;
  options.gradient_as_bucket_view = arguments.gradient_as_bucket_view;
  options.find_unused_parameters = arguments.find_unused_parameters;
  options.broadcast_buffers = arguments.broadcast_buffers;
  options.device_id = to_nn(arguments.device_id);
  for (const ModuleMatch& found : arguments.modules) {
    options.name = found.path;
    parallel::replicate(found.module, options);
  }
  return Value();
}

Value fully_shard(StepCall& call) {
  const FullyShardArguments arguments = fully_shard_arguments(call);
  parallel::FullyShardOptions options;
  options.mesh = *arguments.mesh;
  options.device = call.in.session().device;
  if (arguments.reshard_after_forward)
    options.reshard_after_forward = reshard_after_forward_of(*arguments.reshard_after_forward);
  options.offload = offload_of(arguments.offload);
  const MixedPrecisionArgument& precision = arguments.mixed_precision;
  options.mixed_precision = {precision.param, precision.reduce, precision.output, precision.cast_forward_inputs};
  options.ignored = modules_of(arguments.ignored_modules);
  for (const TensorMatch& found : arguments.ignored_parameters) options.ignored_parameters.push_back(found.tensor());
  const auto shard_dim = std::make_shared<ShardDimArgument>(arguments.shard_dim);
  options.shard_dim = [shard_dim](const std::string& path, const Tensor&) {
    return shard_dim->stated_for(path).value_or(0);
  };
  check_shard_dim(arguments, options, *shard_dim);
  for (const std::vector<ModuleMatch>& group : arguments.groups) shard_group(group, options);
  return Value();
}

Value unshard(StepCall& call) {
  const bool async = call.boolean("async");
  auto handles = std::make_shared<std::vector<parallel::UnshardHandle>>();
  for (const nn::ModulePtr& module : modules_of(call.modules("modules")))
    handles->push_back(parallel::unshard(module, async));
  if (!async) return Value();
  Handle handle;
  handle.finish = [handles] {
    for (parallel::UnshardHandle& one : *handles) one.wait();
    handles->clear();
  };
  return Value(std::move(handle));
}

Value reshard(StepCall& call) {
  for (const nn::ModulePtr& module : modules_of(call.modules("modules"))) parallel::reshard(module);
  return Value();
}

Value wait(StepCall& call) {
  const Value target = call.value("for");
  if (const Handle* handle = target.get_if<Handle>())
    handle->wait();
  else if (const device::Event* event = target.get_if<device::Event>())
    device::current_stream(call.in.session().device).wait(*event);
  else
    throw Error(str("`for` of wait is a handle or an event, not ", describe(target)));
  return Value();
}

Value set_flags(StepCall& call) {
  const FlagArguments arguments = flag_arguments(call);
  parallel::ShardFlags flags;
  flags.requires_gradient_sync = arguments.requires_gradient_sync;
  flags.requires_all_reduce = arguments.requires_all_reduce;
  flags.is_last_backward = arguments.is_last_backward;
  flags.reshard_after_backward = arguments.reshard_after_backward;
  if (arguments.reshard_after_forward)
    flags.reshard_after_forward = reshard_after_forward_of(*arguments.reshard_after_forward);
  flags.reduce_divide_factor = arguments.reduce_divide_factor;
  const bool of_shards = flags.requires_all_reduce || flags.is_last_backward || flags.reshard_after_backward ||
                         flags.reshard_after_forward || flags.reduce_divide_factor;
  const std::optional<bool> sync = flags.requires_gradient_sync;
  if (!sync && !of_shards) throw Error("set_flags changes nothing", "give one of its flags");
  int sharded = 0, replicated = 0;
  for (const ModuleMatch& found : arguments.modules)
    sharded += parallel::check_flags(found.module, flags, arguments.recurse);
  const std::string where = str("`", arguments.modules.front().path, "`", arguments.recurse ? " or below" : "");
  if (of_shards && sharded == 0)
    throw Error(str("set_flags: nothing is sharded at ", where), "apply fully_shard first");
  for (const ModuleMatch& found : arguments.modules) {
    parallel::set_flags(found.module, flags, arguments.recurse);
    if (flags.is_last_backward) call.live().note_last_backward(found.module, *flags.is_last_backward);
    if (sync) replicated += parallel::set_requires_gradient_sync(found.module, *sync, arguments.recurse);
  }
  if (sharded + replicated == 0)
    throw Error(str("set_flags: nothing that synchronises gradients is applied to ", where),
                "apply replicate or fully_shard first");
  return Value();
}

Value prefetch(StepCall& call) {
  const PrefetchArguments arguments = prefetch_arguments(call);
  const nn::ModulePtr& module = arguments.module.module;
  if (arguments.forward) parallel::set_forward_prefetch(module, modules_of(*arguments.forward));
  if (arguments.backward) parallel::set_backward_prefetch(module, modules_of(*arguments.backward));
  return Value();
}

Value register_forward_method(StepCall& call) {
  parallel::register_forward_method(call.module("module").module, call.text("method"));
  return Value();
}

Value set_post_optim_event(StepCall& call) {
  const Value event = call.value("event");
  const device::Event* found = event.get_if<device::Event>();
  if (!found) throw Error(str("`event` must be an event, not ", describe(event)), "record_event gives one");
  parallel::set_post_optim_event(call.module("module").module, *found);
  return Value();
}

}  // namespace lockstep::run::verbs
