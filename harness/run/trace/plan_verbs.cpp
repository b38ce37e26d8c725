// The verbs that apply an API, as the trace performs them: the planner learns what is applied where, and parameters
// become what the policies make of them. And what stands in for verbs that build a model, communicate or observe.
#include <algorithm>

#include "engine/autograd/autograd.hpp"
#include "engine/core/checked.hpp"
#include "engine/layout/placement.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/run/observe/observation.hpp"
#include "harness/run/trace/plan_trace.hpp"
#include "harness/run/trace/stand_in.hpp"

namespace lockstep::run {

namespace {

plan::Reshard reshard_of(const Value& value) {
  using Kind = plan::Reshard::Kind;
  if (const bool* flag = value.get_if<bool>()) return {*flag ? Kind::yes : Kind::no, 0};
  return {Kind::among, checked_int(value.as_int("reshard_after_forward"), "reshard_after_forward")};
}

std::vector<plan::Axis> axes_of(const DeviceMesh& mesh) {
  std::vector<plan::Axis> axes;
  axes.reserve(static_cast<std::size_t>(mesh.num_axes()));
  for (int axis = 0; axis < mesh.num_axes(); ++axis)
    axes.push_back({mesh.shape().names()[static_cast<std::size_t>(axis)], mesh.shape().size(axis)});
  return axes;
}

}  // namespace

Value PlanTrace::perform_applying(StepCall& call, std::string_view verb) {
  here();
  if (verb == "replicate") {
    replicate(call);
  } else if (verb == "fully_shard") {
    fully_shard(call);
  } else if (verb == "set_flags") {
    set_flags(call);
  } else if (verb == "prefetch") {
    prefetch(call);
  } else if (verb == "extend_gather") {
    extend_gather(call);
  } else if (verb == "unshard") {
    return unshard(call);
  } else if (verb == "reshard") {
    for (const plan::ModuleId id : watched_ids(call, "modules")) planner_.shards().reshard(id);
    shards_.follow();
  } else if (verb == "register_forward_method") {
    call.module("module").module->register_forward_method(call.text("method"));
  } else if (verb == "activation_checkpoint") {
    // It communicates nothing: what it runs again is part of the trace.
    return run_verb(call);
  } else if (verb == "tensor_parallel" && cut_for_tensor_parallel(call)) {
    return Value();
  } else if (not_planned_.empty()) {
    not_planned_ = verb;
  }
  return Value();
}

std::vector<plan::ModuleId> PlanTrace::watched_ids(StepCall& call, const char* name) {
  std::vector<plan::ModuleId> ids;
  for (const ModuleAt& found : call.modules(name)) {
    refresh(found.module);
    ids.push_back(id_of(found.module));
  }
  return ids;
}

Value PlanTrace::unshard(StepCall& call) {
  const bool async = call.boolean("async");
  const std::vector<plan::ModuleId> ids = watched_ids(call, "modules");
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

// The accelerator that a device id names: its name, or the index of one of the kind that the parameters are on.
std::optional<device::Device> PlanTrace::accelerator_of(const Value& device_id, const nn::ModulePtr& module,
                                                        const Session& session) {
  if (device_id.is_none()) return std::nullopt;
  device::Device device;
  if (const std::string* name = device_id.get_if<std::string>()) {
    device = device_named(session, *name);
  } else {
    const std::vector<nn::NamedParameter> parameters = nn::named_parameters(module);
    if (!parameters.empty()) device.kind = stood_for(parameters.front().tensor().device()).kind;
    device.index = static_cast<int>(device_id.as_int("device_id"));
    device = stand_in(device);
  }
  const device::Kind kind = stood_for(device).kind;
  if (kind != device::Kind::sim && kind != device::Kind::cuda) return std::nullopt;
  return device;
}

void PlanTrace::replicate(StepCall& call) {
  plan::ReplicateChoices choices;
  choices.axes = axes_of(*call.mesh());
  for (const plan::ModuleId id : call.has("ignored") ? watched_ids(call, "ignored") : std::vector<plan::ModuleId>())
    choices.ignored.insert(id);
  if (call.given("bucket_cap_mb"))
    choices.bucket_cap_bytes = static_cast<std::int64_t>(call.number("bucket_cap_mb") * 1024 * 1024);
  choices.find_unused_parameters = call.boolean("find_unused_parameters");
  choices.broadcast_buffers = call.boolean("broadcast_buffers");
  for (const ModuleAt& found : call.modules("modules")) {
    watch(found.module);
    choices.owner = found.path;
    const auto moves_to = accelerator_of(call.value("device_id"), found.module, call.in.session());
    if (moves_to) moves_inputs_to_[id_of(found.module)] = *moves_to;
    planner_.replicate(id_of(found.module), choices);
  }
}

void PlanTrace::fully_shard(StepCall& call) {
  plan::ShardChoices choices;
  const std::vector<plan::Axis> axes = axes_of(*call.mesh());
  choices.shard = axes.back();
  if (axes.size() == 2) choices.replicate = axes.front();
  if (call.has("reshard_after_forward"))
    choices.reshard_after_forward = reshard_of(call.value("reshard_after_forward"));
  const Session& session = call.in.session();
  ShardPolicy policy;
  policy.computes_on = policy.parts_on = session.device;
  if (call.text("offload") != "none") policy.parts_on = stand_in(device::Device{});
  if (const Value types = call.value("mixed_precision"); !types.is_none()) {
    const auto type = [&](const char* key) -> std::optional<DType> {
      const Value* found = types.find(Key(key));
      if (!found || found->is_none()) return std::nullopt;
      return found->as_dtype(key);
    };
    choices.param = policy.param = type("param");
    choices.reduce = type("reduce");
    policy.output = type("output");
    if (const Value* casts = types.find(Key("cast_forward_inputs")))
      policy.casts_inputs = casts->as_bool("cast_forward_inputs");
  }
  const std::vector<ModuleAt> found = call.modules("modules");
  const MeshPtr mesh = call.mesh();
  const MeshPtr gathers = axes.size() == 2 ? std::make_shared<const DeviceMesh>(mesh->slice({axes.back().name})) : mesh;
  for (const ModuleAt& at : found)
    for (const nn::NamedParameter& parameter : nn::named_parameters(at.module))
      meshes_.emplace(id_of(parameter.tensor()), gathers);
  if (call.boolean("together")) return shard_together(call, found, choices, policy);
  for (const ModuleAt& at : found) shard_together(call, {at}, choices, policy);
}

void PlanTrace::shard_together(StepCall& call, const std::vector<ModuleAt>& found, plan::ShardChoices choices,
                               const ShardPolicy& policy) {
  std::vector<plan::ModuleId> ids;
  std::vector<nn::ModulePtr> modules;
  const Value dims = call.value("shard_dim");
  for (const ModuleAt& at : found) {
    choices.owner += str(choices.owner.empty() ? "" : "+", at.path);
    watch(at.module);
    ids.push_back(id_of(at.module));
    modules.push_back(at.module);
    for (const nn::NamedParameter& parameter : nn::named_parameters(at.module)) {
      if (!dims.is(Value::Kind::map)) {
        choices.dims[id_of(parameter.tensor())] = checked_int(dims.as_int("shard_dim"), "shard_dim");
        continue;
      }
      for (const auto& [pattern, dim] : dims.as_map("shard_dim"))
        if (glob_matches(pattern.text, parameter.path)) {
          choices.dims[id_of(parameter.tensor())] = checked_int(dim.as_int("shard_dim"), "shard_dim");
          break;
        }
    }
  }
  for (auto& [id, dim] : choices.dims) {
    const int num_dims = tensors_[static_cast<std::size_t>(id)].num_dims();
    if (dim < 0) dim += num_dims;
    if (dim < 0 || dim >= num_dims)
      throw Unforeseeable(str("a parameter of ", num_dims, " dims is cut along dim ", dim));
  }
  plan::Planner::Ignored ignored;
  for (const std::string& path : call.words("ignored")) {
    try {
      for (const ModuleAt& one : find_modules(path, call.scope)) ignored.modules.insert(id_of(one.module));
    } catch (const UnboundName&) {
      throw;
    } catch (const Error&) {
      for (const TensorAt& one : find_parameters(path, call.scope)) ignored.parameters.insert(id_of(one.tensor()));
    }
  }
  const plan::Planner::Managed managed = planner_.managed_by(ids, ignored);
  const std::map<plan::TensorId, int> dims_of = choices.dims;
  planner_.fully_shard(ids, std::move(choices), ignored);
  cut_parameters(modules, ids, managed, dims_of, call.mesh(), policy);
}

void PlanTrace::cut_parameters(const std::vector<nn::ModulePtr>& modules, const std::vector<plan::ModuleId>& ids,
                               const plan::Planner::Managed& managed, const std::map<plan::TensorId, int>& dims,
                               const MeshPtr& mesh, const ShardPolicy& policy) {
  std::vector<TracedShards::Parameter> parameters;
  for (const plan::TensorId id : managed.parameters) {
    TracedShards::Parameter& parameter = parameters.emplace_back();
    parameter.id = id;
    if (const auto dim = dims.find(id); dim != dims.end()) parameter.dim = dim->second;
  }
  const NoGrad no_grad;
  for (const plan::ModuleId id : managed.modules) {
    const nn::ModulePtr& module = modules_[static_cast<std::size_t>(id)];
    for (std::size_t index = 0; index < module->parameters.size(); ++index) {
      const Tensor& tensor = module->parameters[index].tensor;
      if (!tensor.defined()) continue;
      const auto at = std::find(managed.parameters.begin(), managed.parameters.end(), id_of(tensor));
      if (at != managed.parameters.end())
        parameters[static_cast<std::size_t>(at - managed.parameters.begin())].slots.push_back({module, index});
    }
    // Buffers go to where the group computes.
    for (const nn::BufferSlot& buffer : module->buffers)
      if (buffer.tensor.defined() && is_stand_in(buffer.tensor.device()))
        nn::swap_data(buffer.tensor, raw::to_device(detach(buffer.tensor), policy.computes_on));
  }
  shards_.add(modules, ids, std::move(parameters), mesh, policy);
}

// What the method `send` gives for a part without values.
void PlanTrace::extend_gather(StepCall& call) {
  const nn::ModulePtr through = call.value("through").as_module("through");
  const auto list_of = [](const Dims& sizes) {
    List items;
    for (const std::int64_t size : sizes) items.push_back(Value(size));
    return Value::list(std::move(items));
  };
  const plan::ShardPlan& shards = planner_.shards();
  for (const TensorAt& found : call.parameters("parameters")) {
    const plan::TensorId id = id_of(found.tensor());
    Map site;
    site.emplace_back("name", Value(found.path));
    site.emplace_back("mesh", Value(meshes_.at(id)));
    site.emplace_back("shape", list_of(planner_.facts().tensor(id).sizes));
    site.emplace_back("dim", Value(std::int64_t{shards.dim_of(id)}));
    site.emplace_back("part_shape", list_of(shards.part_sizes(id)));
    site.emplace_back("dtype", Value(shards.compute_type(id)));
    const Tensor part = empty(shards.part_sizes(id), planner_.facts().tensor(id).dtype, call.in.session().device);
    const Value given = call_module(through, "send", {Value(part), Value::map(std::move(site))}, {});
    const Value* tensors = given.is(Value::Kind::map) ? given.find(Key("tensors")) : &given;
    if (!tensors) throw Unforeseeable("what an extension sends is a map without `tensors`");
    std::vector<plan::ShardPlan::Sent> sent;
    const auto add = [&sent](const Tensor& tensor) { sent.push_back({tensor.num_bytes(), tensor.dtype()}); };
    if (tensors->is(Value::Kind::list))
      for (const Value& one : tensors->as_list("what is sent")) add(one.as_tensor("what is sent"));
    else
      add(tensors->as_tensor("what is sent"));
    planner_.shards().set_sent(id, std::move(sent));
  }
}

void PlanTrace::set_flags(StepCall& call) {
  plan::FlagChange flags;
  const auto flag = [&](const char* name) {
    return scenario::spec_of(call.step.verb).index_of(name) ? call.maybe_boolean(name) : std::nullopt;
  };
  flags.requires_gradient_sync = flag("requires_gradient_sync");
  flags.requires_all_reduce = flag("requires_all_reduce");
  flags.is_last_backward = flag("is_last_backward");
  flags.reshard_after_backward = flag("reshard_after_backward");
  if (call.has("reshard_after_forward")) flags.reshard_after_forward = reshard_of(call.value("reshard_after_forward"));
  const bool recurse = call.boolean("recurse");
  for (const plan::ModuleId id : watched_ids(call, "modules")) planner_.set_flags(id, flags, recurse);
}

// Tensor parallelism leaves the model plain here: what it issues is not planned, but groups over it hold its parts.
// Says whether the styles could be read: `plan` is a map of calls.
bool PlanTrace::cut_for_tensor_parallel(StepCall& call) {
  const nn::ModulePtr model = call.module("model").module;
  const MeshPtr mesh = call.mesh();
  const scenario::Expr& styles = call.expr("plan");
  if (styles.kind != scenario::ExprKind::map || mesh->num_axes() != 1) return false;
  const int parts = mesh->num_ranks(), mine = mesh->coordinates().front();
  for (std::size_t i = 0; i + 1 < styles.children.size(); i += 2) {
    const scenario::Expr& style = *styles.children[i + 1];
    if (style.kind != scenario::ExprKind::call || style.children[0]->kind != scenario::ExprKind::name) return false;
    const std::string& name = style.children[0]->name;
    if (name != "colwise" && name != "rowwise") continue;
    const std::string pattern = evaluate(*styles.children[i], call.scope).as_text("a path of `plan`");
    for (const ModuleAt& found : match_modules(model, pattern)) {
      const bool table = found.module->type() == "Embedding";
      if (!table && found.module->type() != "Linear") return false;
      for (const nn::ParameterSlot& slot : found.module->parameters) {
        if (!slot.tensor.defined()) continue;
        const bool whole_bias = name == "rowwise" && slot.name == "bias";
        // Columns of what comes out are rows of a linear's weight, and columns of a table.
        if (!whole_bias) cuts_[id_of(slot.tensor)] = {(name == "colwise") != table ? 0 : 1, parts, mine};
      }
    }
  }
  refresh(model);
  return true;
}

Dims PlanTrace::sizes_of_part(const Tensor& tensor) {
  Dims sizes = planner_.shards().owns(id_of(tensor)) ? global_sizes(tensor) : tensor.sizes();
  if (const auto at = cuts_.find(id_of(tensor)); at != cuts_.end()) {
    const Cut& cut = at->second;
    sizes[cut.dim] = layout::chunk(sizes[cut.dim], cut.parts, cut.mine).length;
  }
  return sizes;
}

void PlanTrace::prefetch(StepCall& call) {
  const plan::ModuleId of = watched_ids(call, "module").front();
  if (call.has("forward")) planner_.shards().set_forward_prefetch(of, watched_ids(call, "forward"));
  if (call.has("backward")) planner_.shards().set_backward_prefetch(of, watched_ids(call, "backward"));
}

Value PlanTrace::build_model(StepCall& call) {
  nn::BuildOptions options;
  options.device = device_named(call.in.session(), call.text("device"));
  options.dtype = call.value("dtype").as_dtype("dtype");
  const NoGrad no_grad;
  Scope building = call.scope;
  building.building = &options;
  nn::ModulePtr module = evaluate(call.expr("build"), building).as_module("build");
  nn::name_parameters(module);
  return Value(std::move(module));
}

// The shape of what a collective of the scenario would give; they are steps themselves, so that nothing is planned.
Value PlanTrace::shape_of_collective(StepCall& call, std::string_view verb) {
  user_collectives_[std::string(verb)] += 1;
  constexpr std::string_view with_result[] = {"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"};
  if (std::find(std::begin(with_result), std::end(with_result), verb) == std::end(with_result)) return Value();
  const MeshPtr mesh = call.mesh();
  if (verb == "gather")
    return Value::list(List(static_cast<std::size_t>(mesh->num_ranks()), Value(call.tensor("tensor"))));
  if (verb == "scatter") return call.list("tensors").empty() ? Value() : call.list("tensors").front();
  const Tensor tensor = detach(call.tensor("tensor"));
  if (verb == "all_to_all") return Value(tensor);
  Dims sizes = tensor.sizes();
  const int dim = normalize_dim(call.integer("dim"), sizes.size(), "dim");
  sizes[dim] = verb == "all_gather" ? checked_multiply(sizes[dim], mesh->num_ranks(), "all_gather")
                                    : sizes[dim] / mesh->num_ranks();
  return Value(empty(sizes, tensor.dtype(), tensor.device()));
}

// Tensors that are really on the meta device get a place.
void PlanTrace::materialize(StepCall& call) {
  const nn::ModulePtr model = call.module("model").module;
  const device::Device to = device_named(call.in.session(), call.text("device"));
  nn::settle(model);
  const auto place = [to](const Tensor& tensor) {
    if (tensor.defined() && tensor.is_meta() && !is_stand_in(tensor.device()))
      nn::swap_data(tensor, empty(tensor.sizes(), tensor.dtype(), to));
  };
  for (const nn::NamedParameter& parameter : nn::named_parameters(model)) place(parameter.tensor());
  for (const nn::NamedBuffer& buffer : nn::named_buffers(model)) place(buffer.tensor());
}

// The window holds what the plan makes within it; bytes of memory and seconds are those of a run alone.
Value PlanTrace::observe(StepCall& call) {
  const std::size_t first = planner_.collectives().size();
  const std::map<std::string, std::int64_t> users = user_collectives_;
  const int attempts = num_attempts_;
  call.in.run_steps(call.step.steps, call.scope);
  auto seen = std::make_shared<Observation>();
  PlannedWindow& window = seen->planned.emplace();
  const std::vector<plan::Collective>& all = planner_.collectives();
  for (std::size_t at = first; at < all.size(); ++at) window.counts[{all[at].family, all[at].operation}] += 1;
  for (const auto& [operation, count] : user_collectives_) {
    const auto before = users.find(operation);
    const std::int64_t more = count - (before == users.end() ? 0 : before->second);
    if (more > 0) window.counts[{"user", operation}] = more;
  }
  window.is_whole = attempts == num_attempts_;
  return Value(std::shared_ptr<const Observation>(std::move(seen)));
}

}  // namespace lockstep::run
