// How a dry run performs the verbs of the parallel APIs. The planner learns which API is applied to which modules, and
// parameters get the types, layouts and devices of the policies. No code of engine/parallel is called.
#include <algorithm>

#include "engine/autograd/autograd.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/run/interpreter.hpp"
#include "harness/run/trace/dry_run.hpp"
#include "harness/run/trace/stand_in.hpp"

namespace lockstep::run {

namespace {

plan::Reshard reshard_of(const ReshardArgument& argument) {
  using Kind = plan::Reshard::Kind;
  if (const bool* flag = std::get_if<bool>(&argument)) return {*flag ? Kind::yes : Kind::no, 0};
  return {Kind::among, std::get<int>(argument)};
}

// The accelerator of a `device_id`: a device's name, or the index of a device of the kind that holds the parameters.
// Empty for a device that is no accelerator.
std::optional<device::Device> accelerator_of(const Value& device_id, const nn::ModulePtr& module,
                                             const Session& session) {
  if (device_id.is_none()) return std::nullopt;
  device::Device device;
  if (const std::string* name = device_id.get_if<std::string>()) {
    device = device_named(session, *name);
  } else {
    const std::vector<nn::NamedParameter> parameters = nn::named_parameters(module);
    if (!parameters.empty()) device.kind = real_device_of(parameters.front().tensor().device()).kind;
    device.index = static_cast<int>(device_id.as_int("device_id"));
    device = stand_in(device);
  }
  if (!device::is_accelerator(real_device_of(device))) return std::nullopt;
  return device;
}

// Such a module of a group adds nothing to it.
bool is_below_another(const ModuleMatch& at, const std::vector<ModuleMatch>& group) {
  const auto is_at = [&at](const nn::NamedModule& one) { return one.module == at.module; };
  return std::any_of(group.begin(), group.end(), [&](const ModuleMatch& other) {
    const std::vector<nn::NamedModule> below = nn::named_modules(other.module);
    return other.module != at.module && std::any_of(below.begin(), below.end(), is_at);
  });
}

}  // namespace

std::vector<plan::Axis> DryRun::axes_of(const DeviceMesh& mesh) {
  std::vector<plan::Axis> axes;
  axes.reserve(static_cast<std::size_t>(mesh.num_axes()));
  for (int axis = 0; axis < mesh.num_axes(); ++axis)
    axes.push_back({mesh.shape().names()[static_cast<std::size_t>(axis)], mesh.shape().size(axis)});
  return axes;
}

std::vector<plan::ModuleId> DryRun::refreshed_ids(const std::vector<ModuleMatch>& found) {
  std::vector<plan::ModuleId> ids;
  for (const ModuleMatch& at : found) {
    watch_.refresh(at.module);
    ids.push_back(model_.id_of(at.module));
  }
  return ids;
}

Value DryRun::mesh(StepCall& call) {
  Value made = run_verb(call);
  meshes_.push_back(made.as_mesh("the result of `mesh`")->shape());
  return made;
}

Value DryRun::replicate(StepCall& call) {
  watch_.report_position();
  const ReplicateArguments arguments = replicate_arguments(call);
  plan::ReplicateChoices choices;
  choices.axes = axes_of(*arguments.mesh);
  for (const plan::ModuleId id : refreshed_ids(arguments.ignored)) choices.ignored.insert(id);
  if (arguments.bucket_cap_mb)
    choices.bucket_cap_bytes = static_cast<std::int64_t>(*arguments.bucket_cap_mb * 1024 * 1024);
  choices.find_unused_parameters = arguments.find_unused_parameters;
  choices.broadcast_buffers = arguments.broadcast_buffers;
  for (const ModuleMatch& found : arguments.modules) {
    watch_.watch(found.module);
    const plan::ModuleId id = model_.id_of(found.module);
    choices.owner = found.path;
    const auto device = accelerator_of(arguments.device_id, found.module, call.in.session());
    if (device) watch_.move_inputs_of(id, *device);
    planner_.replicate(id, choices);
    replicated_.push_back(found.module);
  }
  return Value();
}

// A replicated module averages the gradient of a parameter that its forward used, even if it has been frozen since.
// Other frozen tensors get no gradient.
Value DryRun::set_requires_grad(StepCall& call) {
  Value done = run_verb(call);
  for (const nn::ModulePtr& module : replicated_)
    for (const nn::NamedParameter& parameter : nn::named_parameters(module)) {
      const Tensor& tensor = parameter.trained();
      if (!is_leaf(tensor) || planner_.shards().owns(model_.id_of(tensor))) continue;
      if (requires_grad(tensor))
        set_accumulator(tensor, {});
      else
        set_accumulator(tensor, [](const Tensor& leaf, const Tensor& gradient) {
          accumulate_grad(leaf, gradient);
          run_post_accumulate_hooks(leaf);
        });
    }
  return done;
}

// ---- fully_shard ----
Value DryRun::fully_shard(StepCall& call) {
  watch_.report_position();
  FullyShardArguments arguments = fully_shard_arguments(call);
  plan::ShardChoices choices;
  const std::vector<plan::Axis> axes = axes_of(*arguments.mesh);
  choices.shard = axes.back();
  if (axes.size() == 2) choices.replicate = axes.front();
  if (arguments.reshard_after_forward) choices.reshard_after_forward = reshard_of(*arguments.reshard_after_forward);
  choices.param = arguments.mixed_precision.param;
  choices.reduce = arguments.mixed_precision.reduce;
  ShardPolicy policy;
  policy.param = arguments.mixed_precision.param;
  policy.reduce = arguments.mixed_precision.reduce;
  policy.output = arguments.mixed_precision.output;
  policy.casts_inputs = arguments.mixed_precision.cast_forward_inputs;
  policy.compute_device = call.in.session().device;
  const bool is_offloaded = arguments.offload != OffloadArgument::none;
  policy.shard_device = is_offloaded ? stand_in(device::Device{}) : policy.compute_device;
  const MeshPtr gather_mesh =
      axes.size() == 2 ? std::make_shared<const DeviceMesh>(arguments.mesh->slice({axes.back().name})) : arguments.mesh;
  for (const std::vector<ModuleMatch>& group : arguments.groups)
    for (const ModuleMatch& at : group)
      for (const nn::NamedParameter& parameter : nn::named_parameters(at.module))
        gather_meshes_.emplace(model_.id_of(parameter.tensor()), gather_mesh);
  for (const std::vector<ModuleMatch>& group : arguments.groups) shard_group(group, arguments, choices, policy);
  return Value();
}

void DryRun::shard_group(const std::vector<ModuleMatch>& found, FullyShardArguments& arguments,
                         plan::ShardChoices choices, const ShardPolicy& policy) {
  std::vector<plan::ModuleId> ids;
  std::vector<nn::ModulePtr> modules;
  std::vector<ModuleMatch> outermost;
  for (const ModuleMatch& at : found) {
    choices.owner += str(choices.owner.empty() ? "" : "+", at.path);
    if (is_below_another(at, found)) continue;
    outermost.push_back(at);
    watch_.watch(at.module);
    ids.push_back(model_.id_of(at.module));
    modules.push_back(at.module);
  }
  choices.dims = shard_dims_of(outermost, arguments.shard_dim);
  plan::Planner::Ignored ignored;
  for (const ModuleMatch& one : arguments.ignored_modules) ignored.modules.insert(model_.id_of(one.module));
  for (const TensorMatch& one : arguments.ignored_parameters) ignored.parameters.insert(model_.id_of(one.tensor()));
  for (const ModuleMatch& one : arguments.ignored_modules)
    for (const nn::NamedParameter& shared : nn::named_parameters(one.module))
      ignored.parameters.insert(model_.id_of(shared.tensor()));
  const plan::Planner::Managed managed = planner_.managed_by(ids, ignored);
  for (const plan::TensorId id : managed.parameters)
    if (const std::optional<plan::Axis> axis = tensor_parallel_.partial_axis_of(id))
      choices.partial_gradients.emplace(id, *axis);
  const std::map<plan::TensorId, int> dims = choices.dims;
  planner_.fully_shard(ids, std::move(choices), ignored);
  shard_parameters(modules, ids, managed, dims, arguments.mesh, policy);
}

// The dims that are stated, counted from the front.
std::map<plan::TensorId, int> DryRun::shard_dims_of(const std::vector<ModuleMatch>& found, ShardDimArgument& stated) {
  std::map<plan::TensorId, int> dims;
  for (std::size_t i = 0; i < found.size(); ++i)
    for (const nn::NamedParameter& parameter : nn::named_parameters(found[i].module))
      if (const auto dim = stated.stated_for(found.size() == 1 ? parameter.path : str(i, ".", parameter.path)))
        dims[model_.id_of(parameter.tensor())] = *dim;
  for (auto& [id, dim] : dims) {
    const int num_dims = model_.tensor(id).num_dims();
    if (dim < 0) dim += num_dims;
    if (dim < 0 || dim >= num_dims)
      throw Unforeseeable(str("a parameter of ", num_dims, " dims cannot be sharded along dim ", dim));
  }
  return dims;
}

void DryRun::shard_parameters(const std::vector<nn::ModulePtr>& modules, const std::vector<plan::ModuleId>& ids,
                              const plan::Planner::Managed& managed, const std::map<plan::TensorId, int>& dims,
                              const MeshPtr& mesh, const ShardPolicy& policy) {
  std::vector<TracedShards::Parameter> parameters = traced(managed.parameters, managed.modules);
  for (TracedShards::Parameter& parameter : parameters)
    if (const auto dim = dims.find(parameter.id); dim != dims.end()) parameter.dim = dim->second;
  place_buffers(managed.modules, policy.compute_device);
  shards_.add_group(modules, ids, std::move(parameters), mesh, policy);
}

// The parameters, with all slots of these modules that hold them.
std::vector<TracedShards::Parameter> DryRun::traced(const std::vector<plan::TensorId>& ids,
                                                    const std::vector<plan::ModuleId>& modules) {
  std::vector<TracedShards::Parameter> parameters;
  for (const plan::TensorId id : ids) parameters.emplace_back().id = id;
  for (const plan::ModuleId id : modules) {
    const nn::ModulePtr& module = model_.module(id);
    for (std::size_t index = 0; index < module->parameters.size(); ++index) {
      const Tensor& tensor = module->parameters[index].tensor;
      if (!tensor.defined()) continue;
      const auto at = std::find(ids.begin(), ids.end(), model_.id_of(tensor));
      if (at != ids.end()) parameters[static_cast<std::size_t>(at - ids.begin())].slots.push_back({module, index});
    }
  }
  return parameters;
}

// Buffers move to the device on which the group computes.
void DryRun::place_buffers(const std::vector<plan::ModuleId>& modules, device::Device device) const {
  const NoGrad no_grad;
  for (const plan::ModuleId id : modules)
    for (const nn::BufferSlot& buffer : model_.module(id)->buffers)
      if (buffer.tensor.defined() && is_stand_in(buffer.tensor.device()))
        nn::swap_data(buffer.tensor, raw::to_device(detach(buffer.tensor), device));
}

Value DryRun::tensor_parallel(StepCall& call) {
  watch_.report_position();
  tensor_parallel_.apply(tensor_parallel_arguments(call));
  return Value();
}

// ---- verbs on sharded modules ----
Value DryRun::unshard(StepCall& call) {
  watch_.report_position();
  const bool async = call.boolean("async");
  const std::vector<plan::ModuleId> ids = refreshed_ids(call.modules("modules"));
  // A group of several modules gathers the parameters of all of them.
  for (const plan::ModuleId id : ids)
    for (const plan::ModuleId member : planner_.shards().modules_of_group(id)) watch_.refresh(model_.module(member));
  for (const plan::ModuleId id : ids) planner_.shards().unshard(id, async);
  shards_.follow();
  if (!async) return Value();
  Handle handle;
  handle.finish = [this, ids] {
    for (const plan::ModuleId id : ids) planner_.shards().wait_for_unshard(id);
    shards_.follow();
  };
  return Value(std::move(handle));
}

Value DryRun::reshard(StepCall& call) {
  watch_.report_position();
  for (const plan::ModuleId id : refreshed_ids(call.modules("modules"))) planner_.shards().reshard(id);
  shards_.follow();
  return Value();
}

Value DryRun::set_flags(StepCall& call) {
  watch_.report_position();
  const FlagArguments arguments = flag_arguments(call);
  plan::FlagChange flags;
  flags.requires_gradient_sync = arguments.requires_gradient_sync;
  flags.requires_all_reduce = arguments.requires_all_reduce;
  flags.is_last_backward = arguments.is_last_backward;
  flags.reshard_after_backward = arguments.reshard_after_backward;
  if (arguments.reshard_after_forward) flags.reshard_after_forward = reshard_of(*arguments.reshard_after_forward);
  for (const plan::ModuleId id : refreshed_ids(arguments.modules)) planner_.set_flags(id, flags, arguments.recurse);
  return Value();
}

Value DryRun::prefetch(StepCall& call) {
  watch_.report_position();
  const PrefetchArguments arguments = prefetch_arguments(call);
  const plan::ModuleId of = refreshed_ids({arguments.module}).front();
  if (arguments.forward) planner_.shards().set_forward_prefetch(of, refreshed_ids(*arguments.forward));
  if (arguments.backward) planner_.shards().set_backward_prefetch(of, refreshed_ids(*arguments.backward));
  return Value();
}

Value DryRun::register_forward_method(StepCall& call) {
  watch_.report_position();
  call.module("module").module->register_forward_method(call.text("method"));
  return Value();
}

// Calls the method `send` with a shard that has no values.
Value DryRun::extend_gather(StepCall& call) {
  watch_.report_position();
  const nn::ModulePtr through = call.value("through").as_module("through");
  const plan::ShardPlan& shards = planner_.shards();
  for (const TensorMatch& found : call.parameters("parameters")) {
    const plan::TensorId id = model_.id_of(found.tensor());
    const plan::TensorFacts& facts = planner_.facts().tensor(id);
    const Value site = gather_site_value({.name = found.path,
                                          .mesh = gather_meshes_.at(id),
                                          .shape = facts.sizes,
                                          .dim = shards.dim_of(id),
                                          .part_shape = shards.padded_shard_sizes(id),
                                          .dtype = shards.compute_type(id)});
    const Tensor shard = empty(shards.padded_shard_sizes(id), facts.dtype, call.in.session().device);
    std::vector<plan::ShardPlan::GatherInput> sent;
    for (const Tensor& tensor : sent_tensors(call_module(through, "send", {Value(shard), site}, {})).tensors)
      sent.push_back({tensor.num_bytes(), tensor.dtype()});
    planner_.shards().set_gather_inputs(id, std::move(sent));
  }
  return Value();
}

}  // namespace lockstep::run
