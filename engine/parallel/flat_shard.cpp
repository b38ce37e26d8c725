// Applies flat_shard to a module: its units, their checks, and what each unit is made of.
#include "engine/parallel/flat_shard.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/parallel/contract.hpp"
#include "engine/parallel/flat_parameter_shards.hpp"
#include "engine/parallel/flat_units.hpp"
#include "engine/parallel/host_tensors.hpp"
#include "engine/parallel/shard_apply.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

using nn::ModulePtr;
using nn::Structure;

std::string_view name_of(FlatStrategy strategy) {
  static constexpr const char* names[] = {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard",
                                          "hybrid_shard_grad_op"};
  return names[static_cast<int>(strategy)];
}

bool is_flat_sharded(const ModulePtr& module) { return is_applied(*module, flat_shard_name); }

namespace {

bool is_hybrid(FlatStrategy strategy) {
  return strategy == FlatStrategy::hybrid_shard || strategy == FlatStrategy::hybrid_shard_grad_op;
}
bool frees_after_forward(FlatStrategy strategy) {
  return strategy == FlatStrategy::full_shard || strategy == FlatStrategy::hybrid_shard ||
         defect_armed(Defect::flat_grad_op_resharded);
}

// An axis of one rank does not shard: its gradients are reduced over the other axis alone.
ShardMesh mesh_of(const FlatShardOptions& options) {
  const DeviceMesh mesh = options.mesh ? *options.mesh : DeviceMesh::world();
  const int wanted = is_hybrid(options.strategy) ? 2 : 1;
  if (mesh.num_axes() != wanted)
    throw Error(str("flat_shard: ", name_of(options.strategy),
                    wanted == 2 ? " requires explicit specification of a mesh of two axes (replicate, shard)"
                                : " expects a mesh of one axis",
                    ", but got ", mesh.shape().text()),
                wanted == 2 ? "give a 2-d mesh, such as names: [replicate, shard]" : "slice the axis to shard over");
  if (options.strategy == FlatStrategy::no_shard) return ShardMesh::replicated(mesh);
  const ShardMesh sharded(mesh);
  if (sharded.num_shards() > 1) return sharded;
  return ShardMesh::replicated(wanted == 1 ? mesh : mesh.slice({mesh.shape().names()[0]}));
}

void check_types(const FlatPrecision& precision) {
  for (const auto& type : {precision.param, precision.reduce, precision.buffer})
    if (type && !is_floating(*type))
      throw Error(str("flat_shard: mixed_precision asks for ", name_of(*type)), "give floating-point types");
}

std::map<std::string, Structure> settings_of(const ModulePtr& unit, const FlatShardOptions& options,
                                             const ShardMesh& mesh) {
  static constexpr const char* prefetches[] = {"before", "after", "none"};
  const auto type = [](const std::optional<DType>& dtype) { return dtype ? Structure(*dtype) : Structure(); };
  // A new member does not compile before it has an entry here.
  const auto& [param, reduce, buffer, cast_inputs, cast_root_inputs, keep_gradients] = options.mixed_precision;
  std::vector<Structure> unit_types(options.unit_types.begin(), options.unit_types.end());
  return {{"mesh", mesh.mesh.shape().text()},
          {"strategy", std::string(name_of(options.strategy))},
          {"unit_types", Structure::list(std::move(unit_types))},
          {"offload", options.offload == Offload::none ? "none" : "cpu"},
          {"use_orig_params", options.original_parameters},
          {"sync_module_states", options.sync_module_states},
          {"ignored", paths_below(unit, options.ignored, options.ignored_parameters)},
          {"backward_prefetch", prefetches[static_cast<int>(options.backward_prefetch)]},
          {"forward_prefetch", options.forward_prefetch},
          {"mixed_precision", Structure::map({{"param", type(param)},
                                              {"reduce", type(reduce)},
                                              {"buffer", type(buffer)},
                                              {"cast_forward_inputs", cast_inputs},
                                              {"cast_root_forward_inputs", cast_root_inputs},
                                              {"keep_low_precision_gradients", keep_gradients}})}};
}

// ---- units ----
struct Unit {
  ModulePtr module;
  std::string name;
  std::vector<CollectedParameter> parameters;
  std::vector<ModulePtr> modules;  // whose buffers belong to the unit
};

class UnitFinder {
 public:
  explicit UnitFinder(const FlatShardOptions& options)
      : options_(options), outside_(options.ignored), ignored_(options.ignored_parameters) {
    // A parameter that an ignored module shares is ignored in the other modules, too.
    for (const ModulePtr& module : options.ignored)
      for (const nn::NamedParameter& parameter : nn::named_parameters(module)) ignored_.push_back(parameter.tensor());
  }

  // The units below the module and the module itself, bottom-up.
  std::vector<Unit> find(const ModulePtr& root) {
    visit(root, "");
    return std::move(units_);
  }

 private:
  void visit(const ModulePtr& module, const std::string& path) {
    if (contains(outside_, module) || (!path.empty() && (is_sharded(*module) || is_applied(*module, replicate_name))))
      return;
    for (const nn::ChildSlot& child : module->children)
      visit(child.module, path.empty() ? child.name : path + "." + child.name);
    const auto& types = options_.unit_types;
    const bool is_unit = std::find(types.begin(), types.end(), module->type()) != types.end() &&
                         !defect_armed(Defect::flat_unit_types_ignored);
    if (!path.empty() && !is_unit) return;
    const bool ignores = !defect_armed(Defect::flat_ignored_sharded);
    ParameterCollector collector(outside_, ignores ? ignored_ : std::vector<Tensor>(),
                                 ParameterCollector::Order::module_first);
    collector.collect(module, "");
    units_.push_back({module, path.empty() ? options_.name : str(options_.name, ".", path), collector.parameters(),
                      collector.modules()});
    if (!path.empty()) outside_.push_back(module);
  }
  static bool contains(const std::vector<ModulePtr>& modules, const ModulePtr& module) {
    return std::find(modules.begin(), modules.end(), module) != modules.end();
  }

  const FlatShardOptions& options_;
  std::vector<ModulePtr> outside_;  // ignored modules, and units
  std::vector<Tensor> ignored_;     // parameters, also those of the ignored modules
  std::vector<Unit> units_;
};

void check_unit(const Unit& unit, const FlatShardOptions& options, const ShardMesh& mesh) {
  if (unit.module->methods().empty())
    throw Error(str("flat_shard does not support containers that do not implement forward: ", outline(*unit.module)),
                "shard its children, or a module that calls them");
  for (const CollectedParameter& parameter : unit.parameters) {
    check_parameter(parameter, unit.name, flat_shard_name);
    const Tensor& first = unit.parameters.front().tensor;
    if (!is_floating(first.dtype()))
      throw Error(str("Cannot flatten integer dtype tensors: `", unit.parameters.front().name, "` of ", unit.name,
                      " is ", name_of(first.dtype())),
                  "ignore it, or make it a buffer");
    if (parameter.tensor.dtype() != first.dtype())
      throw Error(str("Must flatten tensors with uniform dtype but got ", name_of(first.dtype()), " (",
                      unit.parameters.front().name, ") and ", name_of(parameter.tensor.dtype()), " (", parameter.name,
                      ") in ", unit.name),
                  "cast them, or shard the modules apart");
    if (!options.original_parameters && requires_grad(parameter.tensor) != requires_grad(first))
      throw Error(str("Must flatten tensors with uniform `requires_grad` when `use_orig_params=False`: `",
                      unit.parameters.front().name, "` and `", parameter.name, "` of ", unit.name, " differ"),
                  "use the original parameters, or shard the frozen modules apart");
    if (parameter.tensor.is_sharded() && mesh.is_sharded())
      mesh.layout_of(str("flat_shard: `", parameter.name, "` of ", unit.name), parameter.tensor, 0);
  }
}

// A parameter is part of one flat parameter only.
void check_shared(const std::vector<Unit>& units) {
  std::map<const TensorImpl*, std::string> owners;
  for (const Unit& unit : units)
    for (const CollectedParameter& parameter : unit.parameters) {
      const std::string name = str("`", parameter.name, "` of ", unit.name);
      const auto [known, is_new] = owners.emplace(&parameter.tensor.impl(), name);
      if (!is_new)
        throw Error(
            str("flat_shard: ", name, " is the same parameter as ", known->second, ", which is in another unit"),
            "make one unit of the modules that share it");
    }
}

// ---- values before sharding ----
void materialize_unit(const Unit& unit, device::Device device) {
  for (const ModulePtr& module : unit.modules) {
    const auto is_on_meta = [](const auto& slot) { return slot.tensor.defined() && slot.tensor.is_meta(); };
    if (std::none_of(module->parameters.begin(), module->parameters.end(), is_on_meta) &&
        std::none_of(module->buffers.begin(), module->buffers.end(), is_on_meta))
      continue;
    const NoGrad no_grad;
    for (const nn::ParameterSlot& slot : module->parameters)
      if (is_on_meta(slot)) nn::swap_data(slot.tensor, empty(slot.tensor.sizes(), slot.tensor.dtype(), device));
    for (const nn::BufferSlot& slot : module->buffers)
      if (is_on_meta(slot)) nn::swap_data(slot.tensor, zeros(slot.tensor.sizes(), slot.tensor.dtype(), device));
    if (!defect_armed(Defect::flat_meta_not_drawn)) nn::redraw(module);
  }
}

// All ranks get the parameters and buffers of the first one: along the replicate axis, then along the shard axis.
void sync_states(const std::vector<Unit>& units, const ShardMesh& mesh, const std::string& owner) {
  std::vector<Tensor> values;
  for (const Unit& unit : units) {
    if (!defect_armed(Defect::flat_states_not_synced))
      for (const CollectedParameter& parameter : unit.parameters)
        values.push_back(local_tensor(detach(parameter.tensor)));
    for (const ModulePtr& module : unit.modules)
      for (const nn::BufferSlot& buffer : module->buffers)
        if (!defect_armed(Defect::flat_buffers_not_synced) && buffer.tensor.defined() && !buffer.tensor.is_meta())
          values.push_back(local_tensor(detach(buffer.tensor)));
  }
  if (values.empty()) return;
  const NoGrad no_grad;
  comm::Call call;
  call.family = comm::Family::start_up;
  call.owner = owner;
  for (comm::ProcessGroup* group : {mesh.replicate_group(), mesh.is_sharded() ? &mesh.shard_group() : nullptr}) {
    if (!group) continue;
    const std::vector<Tensor> first = broadcast_together(*group, values, call);
    if (group->rank() != 0)
      for (std::size_t i = 0; i < values.size(); ++i) raw::copy_(values[i], first[i]);
  }
}

// ---- making a unit ----
GroupSettings group_settings(const Unit& unit, const FlatShardOptions& options, const ShardMesh& mesh,
                             device::Device device) {
  const bool frees = mesh.is_sharded() && frees_after_forward(options.strategy);
  const FlatPrecision& precision = options.mixed_precision;
  GroupSettings settings{mesh,   ReshardAfterForward::of(frees),           options.offload, {}, device, unit.name,
                         !frees, frees ? options.max_gathers_in_flight : 0};
  settings.mixed_precision.param = precision.param;
  settings.mixed_precision.reduce = precision.reduce;
  settings.module = unit.module;
  return settings;
}

StateSettings state_settings(const Unit& unit, const FlatShardOptions& options, device::Device device) {
  StateSettings settings;
  settings.precision.param = options.mixed_precision.param;
  settings.precision.cast_forward_inputs = options.mixed_precision.cast_forward_inputs;
  settings.casts_root_inputs = options.mixed_precision.cast_root_forward_inputs;
  settings.buffer_type = options.mixed_precision.buffer;
  for (const nn::ModulePtr& module : unit.modules)
    for (std::size_t slot = 0; slot < module->buffers.size(); ++slot) {
      const Tensor& tensor = module->buffers[slot].tensor;
      settings.buffers.push_back({module, slot, tensor.defined() ? std::optional(tensor.dtype()) : std::nullopt});
    }
  settings.backward_prefetch = options.backward_prefetch;
  settings.forward_prefetch = options.forward_prefetch;
  settings.device = device;
  settings.owner = unit.name;
  settings.api = flat_shard_name;
  settings.module = unit.module;
  return settings;
}

void make_unit(const Unit& unit, const FlatShardOptions& options, const ShardMesh& mesh, device::Device device,
               const Application& application) {
  std::shared_ptr<ShardGroup> group;
  std::vector<std::string> names;
  if (!unit.parameters.empty()) {
    const FlatSettings flat{options.original_parameters, options.mixed_precision.keep_low_precision_gradients};
    const auto shards = std::make_shared<FlatParameterShards>(group_settings(unit, options, mesh, device), flat,
                                                              unit.module, unit.parameters);
    register_flat_unit(shards, unit.module);
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      const CollectedParameter& one = unit.parameters[i];
      names.push_back(one.name);
      claim(shards, one.tensor, one.slots.front().get().tensor, str(unit.name, ".", one.name), flat_shard_name);
    }
    group = std::make_shared<ShardGroup>(shards);
    add_settling({unit.module}, group);
  }
  const auto state =
      std::make_shared<ShardState>(std::vector<ModulePtr>{unit.module}, state_settings(unit, options, device), group);
  application.complete(settings_of(unit.module, options, mesh), names, state,
                       options.original_parameters ? Application::Names::kept : Application::Names::replaced);
  unit.module->copy_refusal = "FSDP does not support deepcopy. Please use state dict for serialization.";
  add_hooks(unit.module, state);
}

}  // namespace

std::vector<FlatUnit> flat_shard(const ModulePtr& module, const FlatShardOptions& given) {
  FlatShardOptions options = given;
  if (options.name.empty()) options.name = module->type();
  check_types(options.mixed_precision);
  if (is_flat_sharded(module)) Application(module, flat_shard_name);  // throws
  check_unmanaged(*module, flat_shard_name);
  const ShardMesh mesh = mesh_of(options);
  const std::vector<Unit> units = UnitFinder(options).find(module);
  std::vector<Application> applications;
  for (const Unit& unit : units) {
    check_unit(unit, options, mesh);
    applications.emplace_back(unit.module, flat_shard_name);
  }

  check_shared(units);

  // ---- no check fails from here on ----
  device::Device device = options.device.value_or(device::Device{});
  if (!options.device)
    for (const Unit& unit : units)
      for (const CollectedParameter& parameter : unit.parameters)
        if (!parameter.tensor.is_meta()) device = parameter.tensor.device();
  mesh.mesh.prepare(device);
  for (const Unit& unit : units) materialize_unit(unit, device);
  if (options.device)
    for (const Unit& unit : units) move_to_device(unit.parameters, unit.modules, *options.device);
  if (options.sync_module_states) sync_states(units, mesh, options.name);
  for (std::size_t i = 0; i < units.size(); ++i) make_unit(units[i], options, mesh, device, applications[i]);
  std::vector<FlatUnit> made;
  made.reserve(units.size());
  for (const Unit& unit : units) made.push_back({unit.name, unit.module});
  return made;
}

}  // namespace lockstep::parallel
