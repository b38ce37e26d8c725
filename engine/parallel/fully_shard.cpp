// Applies fully_shard to modules; the functions for sharded modules are in fully_shard_controls.cpp.
#include "engine/parallel/fully_shard.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/core/error.hpp"
#include "engine/parallel/contract.hpp"
#include "engine/parallel/parameter_shards.hpp"
#include "engine/parallel/shard_apply.hpp"
#include "engine/parallel/shard_state.hpp"

namespace lockstep::parallel {

using nn::ModulePtr;
using nn::Structure;

namespace {

// ---- options ----
DeviceMesh mesh_of(const FullyShardOptions& options) {
  DeviceMesh mesh = options.mesh ? *options.mesh : DeviceMesh::world();
  if (mesh.num_axes() != 1 && mesh.num_axes() != 2)
    throw Error(str("fully_shard expects a 1D or 2D DeviceMesh but got ", mesh.num_axes(), "D, ", mesh.shape().text()),
                "slice the axis to shard over, or a replicate and a shard axis");
  // Axes that were given no names are named by their numbers.
  if (const auto& names = mesh.shape().names(); names.size() == 2 && names[0] == "0" && names[1] == "1")
    throw Error(str("fully_shard: Please init the 2D mesh for HSDP with mesh_dim_names specified; the axes of ",
                    mesh.shape().text(), " have none"),
                "name the axes, the one that replicates first, such as `names: [replicate, shard]`");
  return mesh;
}

void check_types(const MixedPrecision& precision) {
  for (const auto& type : {precision.param, precision.reduce, precision.output})
    if (type && !is_floating(*type))
      throw Error(str("fully_shard: mixed_precision asks for ", name_of(*type)), "give floating-point types");
}

Structure to_value(const ReshardAfterForward& how) {
  using Kind = ReshardAfterForward::Kind;
  if (how.kind == Kind::among) return how.ranks;
  return how.kind != Kind::no;
}

// Those of a group, without `ignored`, which differs between its modules.
std::map<std::string, Structure> settings_of(const FullyShardOptions& options, const DeviceMesh& mesh,
                                             const ReshardAfterForward& reshard, bool together,
                                             const std::vector<std::string>& names, const std::vector<int>& dims) {
  static constexpr const char* offloads[] = {"none", "cpu", "cpu_pinned"};
  const auto type = [](const std::optional<DType>& dtype) { return dtype ? Structure(*dtype) : Structure(); };
  // A new member does not compile before it has an entry here.
  const auto& [param, reduce, output, cast_forward_inputs] = options.mixed_precision;
  Structure::Map dim_of;
  for (std::size_t i = 0; i < dims.size(); ++i) dim_of.emplace_back(names[i], Structure(std::int64_t{dims[i]}));
  return {{"mesh", mesh.shape().text()},
          {"together", together},
          {"reshard_after_forward", to_value(reshard)},
          {"offload", offloads[static_cast<int>(options.offload)]},
          {"shard_dim", Structure::map(std::move(dim_of))},
          {"mixed_precision", Structure::map({{"param", type(param)},
                                              {"reduce", type(reduce)},
                                              {"output", type(output)},
                                              {"cast_forward_inputs", cast_forward_inputs}})}};
}

std::string default_name(const std::vector<ModulePtr>& modules) {
  std::string name;
  for (const ModulePtr& module : modules) name += str(name.empty() ? "" : "+", module->type());
  return name;
}

StateSettings settings_of_state(const std::vector<ModulePtr>& modules, const FullyShardOptions& options,
                                device::Device device) {
  StateSettings settings;
  settings.precision = options.mixed_precision;
  settings.device = device;
  settings.owner = options.name;
  settings.module = modules.front();
  return settings;
}

// The modules that are below no other one of the list, each once.
std::vector<ModulePtr> outermost_of(const std::vector<ModulePtr>& modules) {
  std::vector<ModulePtr> outermost;
  for (const ModulePtr& module : modules) {
    const auto is_above = [&module](const ModulePtr& other) {
      const std::vector<nn::NamedModule> below = nn::named_modules(other);
      return other != module && std::any_of(below.begin(), below.end(),
                                            [&module](const nn::NamedModule& one) { return one.module == module; });
    };
    if (std::find(outermost.begin(), outermost.end(), module) == outermost.end() &&
        std::none_of(modules.begin(), modules.end(), is_above))
      outermost.push_back(module);
  }
  return outermost;
}

// A parameter that an ignored module shares is ignored in the other modules, too.
ParameterCollector collected(const std::vector<ModulePtr>& modules, const FullyShardOptions& options) {
  std::vector<Tensor> ignored = options.ignored_parameters;
  for (const ModulePtr& module : options.ignored)
    for (const nn::NamedParameter& parameter : nn::named_parameters(module)) ignored.push_back(parameter.tensor());
  ParameterCollector collector(options.ignored, ignored, ParameterCollector::Order::children_first);
  for (std::size_t i = 0; i < modules.size(); ++i)
    collector.collect(modules[i], modules.size() == 1 ? "" : str(i, "."));
  return collector;
}

// Throws Error when fully_shard cannot be applied to one of the modules.
std::vector<Application> applications_to(const std::vector<ModulePtr>& modules) {
  std::vector<Application> applications;
  for (const ModulePtr& module : modules) {
    applications.emplace_back(module, fully_shard_name);
    check_unmanaged(*module, fully_shard_name);
    if (module->methods().empty())
      throw Error(str("fully_shard does not support containers that do not implement forward: ", outline(*module)),
                  "shard its children, or a module that calls them");
  }
  return applications;
}

// The group of the collected parameters, whose slots hold sharded tensors from now on; null without parameters.
std::shared_ptr<ShardGroup> make_group(const std::vector<ModulePtr>& modules, const ParameterCollector& collector,
                                       const std::vector<int>& dims, const FullyShardOptions& options,
                                       GroupSettings settings) {
  if (collector.parameters().empty()) return nullptr;
  settings.module = modules.front();
  std::vector<ShardParameter> parameters;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const CollectedParameter& one = collector.parameters()[i];
    parameters.emplace_back(one.name, one.slots, dims[i], settings);
  }
  const auto shards = std::make_shared<PerParameterShards>(std::move(settings), std::move(parameters));
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const CollectedParameter& one = collector.parameters()[i];
    claim(shards, one.tensor, shards->trained(i), str(options.name, ".", one.name), fully_shard_name);
  }
  register_shards(shards);
  auto group = std::make_shared<ShardGroup>(shards);
  add_settling(modules, group);
  return group;
}

}  // namespace

std::vector<std::string> parameters_to_shard(const std::vector<ModulePtr>& modules, const FullyShardOptions& options) {
  const ParameterCollector collector = collected(outermost_of(modules), options);
  std::vector<std::string> names;
  for (const CollectedParameter& parameter : collector.parameters()) names.push_back(parameter.name);
  return names;
}

void fully_shard(const std::vector<ModulePtr>& given_modules, const FullyShardOptions& given) {
  if (given_modules.empty()) throw Error("fully_shard: no modules are given", "give one, or several for one group");
  const std::vector<ModulePtr> modules = outermost_of(given_modules);
  FullyShardOptions options = given;
  if (options.name.empty()) options.name = default_name(modules);
  const std::vector<Application> applications = applications_to(modules);
  check_types(options.mixed_precision);
  const DeviceMesh mesh = mesh_of(options);
  const ShardMesh shard_mesh(mesh);
  const ReshardAfterForward reshard = normalized(options.reshard_after_forward, shard_mesh.num_shards());

  const ParameterCollector collector = collected(modules, options);
  std::vector<int> dims;
  std::vector<std::string> names;
  for (const CollectedParameter& parameter : collector.parameters()) {
    check_parameter(parameter, options.name, fully_shard_name);
    dims.push_back(shard_dim_of(parameter, options));
    sharded_layout_of(parameter, options, shard_mesh);
    names.push_back(parameter.name);
  }
  const device::Device device = options.device                   ? *options.device
                                : collector.parameters().empty() ? device::Device{}
                                                                 : collector.parameters()[0].tensor.device();
  if (options.device) move_to_device(collector.parameters(), collector.modules(), device);

  // ---- no check fails from here on ----
  mesh.prepare(device);
  const std::shared_ptr<ShardGroup> group =
      make_group(modules, collector, dims, options,
                 {shard_mesh, reshard, options.offload, options.mixed_precision, device, options.name});
  const auto state = std::make_shared<ShardState>(modules, settings_of_state(modules, options, device), group);
  const std::map<std::string, Structure> settings =
      settings_of(options, mesh, reshard, modules.size() > 1, names, dims);
  for (std::size_t i = 0; i < modules.size(); ++i) {
    std::map<std::string, Structure> own = settings;
    own["ignored"] = paths_below(modules[i], options.ignored, options.ignored_parameters);
    applications[i].complete(std::move(own), names, state);
    modules[i]->copy_refusal = "FSDP does not support deepcopy. Please use state dict for serialization.";
    add_hooks(modules[i], state);
  }
}

}  // namespace lockstep::parallel
