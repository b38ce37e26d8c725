// Applying fully_shard, and what is done to sharded modules by hand.
#include "engine/parallel/fully_shard.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/parallel/contract.hpp"
#include "engine/parallel/shard_state.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

namespace {

using nn::ModulePtr;
using nn::Value;

// ---- which parameters ----
struct Found {
  std::string name;
  Tensor tensor;
  std::vector<ParameterSlotRef> slots;
};

// Which whole tensors became parts of which group: a parameter that two groups hold would come untied.
struct Claims {
  explicit Claims(RankContext&) {}
  std::vector<std::pair<std::weak_ptr<TensorImpl>, std::string>> entries;
  const std::string* owner_of(const Tensor& tensor) const {
    for (const auto& [claimed, owner] : entries)
      if (claimed.lock() == tensor.impl_ptr()) return &owner;
    return nullptr;
  }
  void add(const Tensor& tensor, std::string owner) {
    std::erase_if(entries, [](const auto& entry) { return entry.first.expired(); });
    entries.emplace_back(tensor.impl_ptr(), std::move(owner));
  }
};
Claims& claims() { return RankContext::current().service<Claims>(); }

// The groups of this rank that are alive.
struct Groups {
  explicit Groups(RankContext&) {}
  std::vector<std::weak_ptr<ShardGroup>> entries;
  void add(const std::shared_ptr<ShardGroup>& group) {
    std::erase_if(entries, [](const auto& entry) { return entry.expired(); });
    entries.push_back(group);
  }
};
Groups& groups() { return RankContext::current().service<Groups>(); }

// The parameters below some modules that nobody else manages, children before a module's own, each once.
class Collector {
 public:
  explicit Collector(const FullyShardOptions& options) {
    for (const ModulePtr& module : options.ignored) seen_.insert(module.get());
    for (const Tensor& tensor : options.ignored_parameters) ignored_.insert(&tensor.impl());
  }
  void collect(const ModulePtr& root, const std::string& prefix) { visit(root, prefix, true); }
  std::vector<Found> found;
  std::vector<ModulePtr> owners;  // modules with parameters or buffers of their own

 private:
  void visit(const ModulePtr& module, const std::string& prefix, bool is_root) {
    if (!seen_.insert(module.get()).second) return;
    if (!is_root && (is_applied(*module, fully_shard_name) || is_applied(*module, replicate_name))) return;
    for (const nn::ChildSlot& child : module->children) visit(child.module, prefix + child.name + ".", false);
    owners.push_back(module);
    for (std::size_t slot = 0; slot < module->parameters.size(); ++slot) {
      const nn::ParameterSlot& at = module->parameters[slot];
      if (!at.tensor.defined() || ignored_.contains(&at.tensor.impl())) continue;
      const auto known = places_.find(&at.tensor.impl());
      if (known != places_.end()) {
        found[known->second].slots.push_back({module, slot});
        continue;
      }
      places_[&at.tensor.impl()] = found.size();
      found.push_back({prefix + at.name, at.tensor, {{module, slot}}});
    }
  }
  std::set<const nn::Module*> seen_;
  std::set<const TensorImpl*> ignored_;
  std::map<const TensorImpl*, std::size_t> places_;
};

void check_parameter(const Found& found, const std::string& owner) {
  if (const std::string* other = claims().owner_of(found.tensor))
    throw Error(str("fully_shard: `", found.name, "` of ", owner, " is the same parameter as `", *other,
                    "`, which another group has sharded"),
                "shard the modules that share it together, in one group");
  if (found.tensor.is_sharded())
    throw Error(str("fully_shard: `", found.name, "` of ", owner, " is sharded already, as ",
                    found.tensor.impl().layout->text()),
                "a parameter belongs to one group");
  if (found.tensor.num_dims() == 0)
    throw Error(str("fully_shard doesn't support scalar parameters. Change ", found.name,
                    " to a 1D tensor with numel equal to 1."),
                "give it one dim");
  if (!found.tensor.is_contiguous())
    throw Error(str("FSDP does not support non-contiguous parameters: `", found.name, "` of ", owner, " has sizes ",
                    to_text(found.tensor.sizes()), " and strides ", to_text(found.tensor.strides())),
                "register a contiguous copy of it");
  if (grad(found.tensor).defined())
    throw Error(str("fully_shard: `", found.name, "` of ", owner, " has a gradient, which would be lost"),
                "clear the gradients before sharding");
}

// ---- options ----
DeviceMesh mesh_of(const FullyShardOptions& options) {
  DeviceMesh mesh = options.mesh ? *options.mesh : DeviceMesh::world();
  if (mesh.num_axes() != 1 && mesh.num_axes() != 2)
    throw Error(str("fully_shard expects a 1D or 2D DeviceMesh but got ", mesh.num_axes(), "D, ", mesh.shape().text()),
                "slice the axis to shard over, or a replicate and a shard axis");
  // Without names of their own the axes are called by their numbers.
  if (const auto& names = mesh.shape().names(); names.size() == 2 && names[0] == "0" && names[1] == "1")
    throw Error(str("fully_shard: Please init the 2D mesh for HSDP with mesh_dim_names specified; the axes of ",
                    mesh.shape().text(), " have none"),
                "name the axes, the one that replicates first, such as `names: [replicate, shard]`");
  return mesh;
}

ReshardAfterForward normalized(ReshardAfterForward how, int num_shards) {
  if (how.kind != ReshardAfterForward::Kind::among) return how;
  if (how.ranks < 1 || num_shards % how.ranks != 0)
    throw Error(
        str("If passing reshard_after_forward as an int, it should be a factor of ", num_shards, ", not ", how.ranks),
        "give a number that divides the ranks of the shard axis, or true or false");
  if (how.ranks == 1) return ReshardAfterForward::of(false);
  if (how.ranks == num_shards) return ReshardAfterForward::of(true);
  return how;
}

void check_types(const MixedPrecision& precision) {
  for (const auto& type : {precision.param, precision.reduce, precision.output})
    if (type && !is_floating(*type))
      throw Error(str("fully_shard: mixed_precision asks for ", name_of(*type)), "give floating-point types");
}

Value to_value(const ReshardAfterForward& how) {
  using Kind = ReshardAfterForward::Kind;
  if (how.kind == Kind::among) return how.ranks;
  return how.kind != Kind::no;
}

std::map<std::string, Value> settings_of(const FullyShardOptions& options, const DeviceMesh& mesh,
                                         const ReshardAfterForward& reshard) {
  static constexpr const char* offloads[] = {"none", "cpu", "cpu_pinned"};
  const auto type = [](const std::optional<DType>& dtype) { return dtype ? Value(*dtype) : Value(); };
  const MixedPrecision& precision = options.mixed_precision;
  return {{"mesh", mesh.shape().text()},
          {"reshard_after_forward", to_value(reshard)},
          {"offload", offloads[static_cast<int>(options.offload)]},
          {"mixed_precision", Value::map({{"param", type(precision.param)},
                                          {"reduce", type(precision.reduce)},
                                          {"output", type(precision.output)},
                                          {"cast_forward_inputs", precision.cast_forward_inputs}})}};
}

// Parameters and buffers to where the group computes, as inputs will be.
void move_to_device(const Collector& collector, device::Device device) {
  const NoGrad no_grad;
  const auto move = [device](const Tensor& tensor, device::Purpose purpose) {
    if (!tensor.defined() || tensor.is_meta() || tensor.device() == device) return;
    const device::PurposeScope scope(purpose);
    nn::swap_data(tensor, raw::to_device(detach(tensor), device));
  };
  for (const Found& found : collector.found) move(found.tensor, device::Purpose::parameter);
  for (const ModulePtr& owner : collector.owners)
    for (const nn::BufferSlot& buffer : owner->buffers) move(buffer.tensor, device::Purpose::other);
}

std::string default_name(const std::vector<ModulePtr>& modules) {
  std::string name;
  for (const ModulePtr& module : modules) name += str(name.empty() ? "" : "+", module->type());
  return name;
}

void add_hooks(const ModulePtr& module, const ShardStatePtr& state) {
  module->add_pre_forward([weak = std::weak_ptr(state)](nn::Module&, nn::Inputs& inputs) {
    if (const auto alive = weak.lock()) alive->pre_forward(inputs);
  });
  module->add_post_forward([weak = std::weak_ptr(state)](nn::Module& of, const nn::Inputs&, Value& outputs) {
    if (const auto alive = weak.lock()) alive->post_forward(of, outputs);
  });
}

// Before the state of a module is read or replaced, its slots show the parts.
void add_settling(const ModulePtr& module, const std::shared_ptr<ShardGroup>& group) {
  module->settle = [before = std::move(module->settle), weak = std::weak_ptr(group)] {
    if (before) before();
    if (const auto alive = weak.lock()) alive->reshard();
  };
}

}  // namespace

void fully_shard(const std::vector<ModulePtr>& modules, const FullyShardOptions& given) {
  if (modules.empty()) throw Error("fully_shard: no modules are given", "give one, or several for one group");
  FullyShardOptions options = given;
  if (options.name.empty()) options.name = default_name(modules);
  std::vector<Application> applications;
  for (const ModulePtr& module : modules) {
    applications.emplace_back(module, fully_shard_name);
    if (is_applied(*module, replicate_name))
      throw Error("Cannot apply `fully_shard()` on a Module already managed by `replicate`",
                  "shard it over a mesh with a replicate axis instead");
    if (module->methods().empty())
      throw Error(str("fully_shard does not support containers that do not implement forward: ", outline(*module)),
                  "shard its children, or a module that calls them");
  }
  check_types(options.mixed_precision);
  const DeviceMesh mesh = mesh_of(options);
  const ShardMesh over(mesh);
  const ReshardAfterForward reshard = normalized(options.reshard_after_forward, over.num_shards());

  Collector collector(options);
  for (std::size_t i = 0; i < modules.size(); ++i)
    collector.collect(modules[i], modules.size() == 1 ? "" : str(i, "."));
  std::vector<int> dims;
  for (const Found& found : collector.found) {
    check_parameter(found, options.name);
    const int dim = options.shard_dim ? options.shard_dim(found.name, found.tensor) : 0;
    const int num_dims = found.tensor.num_dims();
    if (dim < -num_dims || dim >= num_dims)
      throw Error(str("Shard dim ", dim, " is invalid for ", num_dims, "D tensor `", found.name, "` of ", options.name),
                  "shard a dim that the parameter has");
    dims.push_back(dim < 0 ? dim + num_dims : dim);
  }
  const device::Device device = options.device            ? *options.device
                                : collector.found.empty() ? device::Device{}
                                                          : collector.found[0].tensor.device();
  if (options.device) move_to_device(collector, device);

  // ---- from here on nothing is refused ----
  const bool offload = options.offload != Offload::none && device.kind != device::Kind::cpu;
  std::vector<ShardParameter> parameters;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < collector.found.size(); ++i) {
    Found& found = collector.found[i];
    claims().add(found.tensor, str(options.name, ".", found.name));
    names.push_back(found.name);
    parameters.emplace_back(found.name, found.slots, dims[i], over, offload, options.offload == Offload::cpu_pinned);
  }
  std::shared_ptr<ShardGroup> group;
  if (!parameters.empty()) {
    GroupSettings settings{over, reshard, options.offload, options.mixed_precision, device, options.name};
    group = std::make_shared<ShardGroup>(std::move(settings), std::move(parameters));
    groups().add(group);
    std::set<nn::Module*> settled;
    for (const ModulePtr& module : modules)
      if (settled.insert(module.get()).second) add_settling(module, group);
    for (const ShardParameter& parameter : group->parameters())
      for (const ParameterSlotRef& slot : parameter.slots())
        if (const auto owner = slot.owner.lock(); owner && settled.insert(owner.get()).second)
          add_settling(owner, group);
  }
  const auto state = std::make_shared<ShardState>(modules, options, device, group);
  for (std::size_t i = 0; i < modules.size(); ++i) {
    applications[i].complete(settings_of(options, mesh, reshard), names, state);
    modules[i]->copy_refusal = "FSDP does not support deepcopy. Please use state dict for serialization.";
    add_hooks(modules[i], state);
  }
}

bool is_fully_sharded(const ModulePtr& module) { return shard_state_of(*module) != nullptr; }

namespace {

ShardStatePtr require_state(const nn::Module& module, const char* what) {
  ShardStatePtr state = shard_state_of(module);
  if (!state)
    throw Error(str(what, ": fully_shard was not applied to ", module.type(), " (Expects FSDPModule but got ",
                    module.type(), ")"),
                "apply it first, or name its module");
  return state;
}

// The states of a module, and of those below when asked, each once.
std::vector<ShardStatePtr> states_of(const ModulePtr& module, bool recurse) {
  std::vector<ShardStatePtr> states;
  const auto modules = recurse ? nn::named_modules(module) : std::vector<nn::NamedModule>{{"", module}};
  for (const nn::NamedModule& entry : modules)
    if (const ShardStatePtr state = shard_state_of(*entry.module);
        state && std::find(states.begin(), states.end(), state) == states.end())
      states.push_back(state);
  return states;
}

}  // namespace

// ---- by hand ----
void UnshardHandle::wait() {
  const auto module = std::exchange(module_, {}).lock();
  if (!module) return;
  if (const auto& group = require_state(*module, "unshard")->group()) group->finish_unshard();
}

UnshardHandle unshard(const ModulePtr& module, bool async) {
  const ShardStatePtr state = require_state(*module, "unshard");
  if (state->group()) state->group()->begin_unshard(true);
  UnshardHandle handle;
  handle.module_ = module;
  if (!async) handle.wait();
  return handle;
}

void reshard(const ModulePtr& module) {
  if (const auto& group = require_state(*module, "reshard")->group()) group->reshard();
}

// ---- flags ----
int set_flags(const ModulePtr& module, const ShardFlags& flags, bool recurse) {
  const std::vector<ShardStatePtr> states = states_of(module, recurse);
  for (const ShardStatePtr& state : states) {
    if (flags.is_last_backward) state->set_is_last_backward(*flags.is_last_backward);
    const auto& group = state->group();
    if (!group) continue;
    if (flags.requires_gradient_sync) {
      group->requires_gradient_sync = *flags.requires_gradient_sync;
      group->requires_all_reduce = *flags.requires_gradient_sync;
    }
    if (flags.requires_all_reduce) group->requires_all_reduce = *flags.requires_all_reduce;
    if (flags.reshard_after_backward) group->reshard_after_backward = *flags.reshard_after_backward;
    if (flags.reshard_after_forward)
      group->set_reshard_after_forward(normalized(*flags.reshard_after_forward, group->settings().mesh.num_shards()));
    if (flags.reduce_divide_factor) {
      if (!(*flags.reduce_divide_factor > 0) || !std::isfinite(*flags.reduce_divide_factor))
        throw Error(str("set_flags: reduce_divide_factor is ", *flags.reduce_divide_factor),
                    "it must be above 0 and finite");
      group->divide_factor = flags.reduce_divide_factor;
    }
  }
  return static_cast<int>(states.size());
}

namespace {
std::vector<std::weak_ptr<ShardState>> states_of(const std::vector<ModulePtr>& modules, const char* what) {
  std::vector<std::weak_ptr<ShardState>> states;
  states.reserve(modules.size());
  for (const ModulePtr& module : modules) states.push_back(require_state(*module, what));
  return states;
}
}  // namespace

void set_forward_prefetch(const ModulePtr& module, const std::vector<ModulePtr>& next) {
  require_state(*module, "prefetch")->forward_prefetch = states_of(next, "prefetch");
}
void set_backward_prefetch(const ModulePtr& module, const std::vector<ModulePtr>& next) {
  require_state(*module, "prefetch")->backward_prefetch = states_of(next, "prefetch");
}

void register_forward_method(const ModulePtr& module, const std::string& method) {
  const std::vector<std::string> known = module->methods();
  if (std::find(known.begin(), known.end(), method) == known.end())
    throw Error(str("register_forward_method: ", module->type(), " does not have a method ", method),
                "register one that it has");
  module->register_forward_method(method);
}

void set_post_optim_event(const ModulePtr& root, device::Event event) {
  require_state(*root, "set_post_optim_event")->context->post_optim_event = std::move(event);
}

void extend_gather(const ModulePtr& owner, std::size_t slot, GatherExtension extension) {
  const auto shared = std::make_shared<const GatherExtension>(std::move(extension));
  for (const auto& entry : groups().entries) {
    const auto group = entry.lock();
    if (!group) continue;
    for (ShardParameter& parameter : group->parameters())
      for (const ParameterSlotRef& at : parameter.slots())
        if (at.slot == slot && at.owner.lock() == owner) {
          parameter.extension = shared;
          return;
        }
  }
  LOCKSTEP_CHECK(slot < owner->parameters.size(), owner->type(), " has no parameter ", slot);
  throw Error(
      str("extend_gather: no group of fully_shard holds `", owner->parameters[slot].name, "` of ", owner->type()),
      "apply fully_shard first");
}

void add_shard_hook(const ModulePtr& module, ShardPoint point, std::function<void()> hook) {
  const auto& group = require_state(*module, "add_shard_hook")->group();
  if (!group)
    throw Error(str("add_shard_hook: the group of ", module->type(), " has no parameters, and makes no collectives"),
                "hook a module whose group has some");
  switch (point) {
    case ShardPoint::before_all_gather:
      return group->before_all_gather.push_back(std::move(hook));
    case ShardPoint::before_reduce_scatter:
      return group->before_reduce_scatter.push_back(std::move(hook));
    case ShardPoint::before_all_reduce:
      return group->before_all_reduce.push_back(std::move(hook));
  }
}

}  // namespace lockstep::parallel
