#include "engine/parallel/shard_collect.hpp"

#include <algorithm>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/grad_of_peers.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/parallel/contract.hpp"

namespace lockstep::parallel {

namespace {

// The tensors that groups of this rank have sharded, and the sharded ones that they have made of them.
struct Claim {
  std::weak_ptr<TensorImpl> tensor;
  std::string name;      // of the parameter, with its group
  std::string_view api;  // that sharded it
  bool is_shard = false;
  std::weak_ptr<const void> holder;  // the shards of the group

  // Another module may take a parameter when the group is gone. A sharded tensor stays one.
  bool is_over() const { return tensor.expired() || (!is_shard && holder.expired()); }
};
struct Claims {
  explicit Claims(RankContext&) {}
  std::vector<Claim> entries;
  const Claim* find(const Tensor& tensor) const {
    for (const Claim& entry : entries)
      if (entry.tensor.lock() == tensor.impl_ptr() && !entry.is_over()) return &entry;
    return nullptr;
  }
};
Claims& claims() { return RankContext::current().service<Claims>(); }

}  // namespace

ParameterCollector::ParameterCollector(const std::vector<nn::ModulePtr>& ignored,
                                       const std::vector<Tensor>& ignored_parameters, Order order)
    : order_(order) {
  for (const nn::ModulePtr& module : ignored) seen_.insert(module.get());
  for (const Tensor& tensor : ignored_parameters) ignored_.insert(&tensor.impl());
}

void ParameterCollector::collect(const nn::ModulePtr& root, const std::string& prefix) {
  visit(root, prefix, true);
  for (CollectedParameter& parameter : parameters_)
    if (const auto at = replicated_.find(&parameter.tensor.impl()); at != replicated_.end())
      parameter.replicated_as = at->second;
}

void ParameterCollector::visit_children(const nn::ModulePtr& module, const std::string& prefix) {
  for (const nn::ChildSlot& child : module->children) visit(child.module, prefix + child.name + ".", false);
}

void ParameterCollector::visit(const nn::ModulePtr& module, const std::string& prefix, bool is_root) {
  if (!seen_.insert(module.get()).second) return;
  if (!is_root && is_applied(*module, replicate_name)) return note_replicated(module, prefix);
  if (!is_root && is_sharded(*module)) return;
  if (order_ == Order::children_first) visit_children(module, prefix);
  modules_.push_back(module);
  for (std::size_t slot = 0; slot < module->parameters.size(); ++slot) {
    const nn::ParameterSlot& at = module->parameters[slot];
    if (!at.tensor.defined() || ignored_.contains(&at.tensor.impl())) continue;
    const auto known = indices_.find(&at.tensor.impl());
    if (known != indices_.end()) {
      parameters_[known->second].slots.push_back({module, slot});
      continue;
    }
    indices_[&at.tensor.impl()] = parameters_.size();
    parameters_.push_back({prefix + at.name, at.tensor, {{module, slot}}});
  }
  if (order_ == Order::module_first) visit_children(module, prefix);
}

void ParameterCollector::note_replicated(const nn::ModulePtr& module, const std::string& prefix) {
  const std::vector<std::string>& managed = module->applied.find(replicate_name)->second.parameter_names;
  for (const nn::NamedParameter& parameter : nn::named_parameters(module, false))
    if (std::find(managed.begin(), managed.end(), parameter.path) != managed.end())
      replicated_.emplace(&parameter.tensor().impl(), prefix + parameter.path);
}

void check_parameter(const CollectedParameter& parameter, const std::string& owner, std::string_view api) {
  if (!parameter.replicated_as.empty())
    throw Error(str(api, ": `", parameter.name, "` of ", owner, " is the same parameter as `", parameter.replicated_as,
                    "`, which replicate manages"),
                "a parameter belongs to one of the two: manage the modules that share it alike");
  for (const ParameterSlotRef& ref : parameter.slots) {
    const Tensor& managed = ref.get().sharded;
    const Claim* holder = managed.defined() && !managed.same_as(parameter.tensor) ? claims().find(managed) : nullptr;
    if (holder && holder->is_shard)
      throw Error(str(api, ": `", parameter.name, "` of ", owner, " has taken the place of `", holder->name,
                      "`, which ", holder->api, " manages there"),
                  "a parameter belongs to one group: assign a tensor that is sharded as that one");
  }
  const Claim* other = claims().find(parameter.tensor);
  if (other && other->is_shard)
    throw Error(str(api, ": `", parameter.name, "` of ", owner, " is sharded already: ", other->api, " has made it `",
                    other->name, "`, ", describe_sharded(parameter.tensor)),
                "a parameter belongs to one group");
  if (other)
    throw Error(str(api, ": `", parameter.name, "` of ", owner, " is the same parameter as `", other->name,
                    "`, which another group has sharded"),
                "shard the modules that share it together, in one group");
  if (parameter.tensor.num_dims() == 0)
    throw Error(str(api, " doesn't support scalar parameters. Change ", parameter.name,
                    " to a 1D tensor with numel equal to 1."),
                "give it one dim");
  if (!parameter.tensor.is_contiguous())
    throw Error(str("FSDP does not support non-contiguous parameters: `", parameter.name, "` of ", owner, " has sizes ",
                    to_text(parameter.tensor.sizes()), " and strides ", to_text(parameter.tensor.strides())),
                "register a contiguous copy of it");
  if (grad(parameter.tensor).defined() || kept_back_grad(parameter.tensor).defined())
    throw Error(str(api, ": `", parameter.name, "` of ", owner, " has a gradient, which would be lost"),
                "clear the gradients before sharding");
}

int shard_dim_of(const CollectedParameter& parameter, const FullyShardOptions& options) {
  const int dim = options.shard_dim ? options.shard_dim(parameter.name, parameter.tensor) : 0;
  const int num_dims = parameter.tensor.num_dims();
  if (dim < -num_dims || dim >= num_dims)
    throw Error(
        str("Shard dim ", dim, " is invalid for ", num_dims, "D tensor `", parameter.name, "` of ", options.name),
        "shard a dim that the parameter has");
  return dim < 0 ? dim + num_dims : dim;
}

layout::ShardedLayout sharded_layout_of(const CollectedParameter& parameter, const FullyShardOptions& options,
                                        const ShardMesh& mesh) {
  return mesh.layout_of(str("fully_shard: `", parameter.name, "` of ", options.name), parameter.tensor,
                        shard_dim_of(parameter, options));
}

void refuse_sharded_elsewhere(const Tensor& tensor, const std::string& name, const std::string& owner,
                              std::string_view api) {
  const Claim* holder = claims().find(tensor);
  if (!holder || holder->is_shard) return;
  throw Error(str(api, ": `", name, "` of ", owner, " is the same parameter as `", holder->name, "`, which ",
                  holder->api, " has sharded"),
              "a parameter belongs to one of the two: manage the modules that share it alike");
}

void claim(const std::weak_ptr<const void>& holder, const Tensor& full, const Tensor& shard, const std::string& name,
           std::string_view api) {
  std::vector<Claim>& entries = claims().entries;
  std::erase_if(entries, [](const Claim& entry) { return entry.is_over(); });
  entries.push_back({full.impl_ptr(), name, api, false, holder});
  entries.push_back({shard.impl_ptr(), name, api, true, holder});
}

}  // namespace lockstep::parallel
