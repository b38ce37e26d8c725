// The parameters that a call of fully_shard or flat_shard makes a group of, and the checks that a parameter must pass.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/parallel/fully_shard.hpp"
#include "engine/parallel/shard_parameter.hpp"

namespace lockstep::parallel {

struct CollectedParameter {
  std::string name;  // the path below the module of the group
  Tensor tensor;
  std::vector<ParameterSlotRef> slots;
  std::string replicated_as{};  // its path in a replicated module that shares it; empty: none does
};

// Collects the parameters below modules, except those of ignored modules and of modules that fully_shard, flat_shard or
// replicate has been applied to. Each parameter is collected once, with all its slots.
class ParameterCollector {
 public:
  enum class Order { children_first, module_first };
  ParameterCollector(const std::vector<nn::ModulePtr>& ignored, const std::vector<Tensor>& ignored_parameters,
                     Order order);
  void collect(const nn::ModulePtr& root, const std::string& prefix);
  const std::vector<CollectedParameter>& parameters() const { return parameters_; }
  const std::vector<nn::ModulePtr>& modules() const { return modules_; }  // all visited modules

 private:
  void visit(const nn::ModulePtr& module, const std::string& prefix, bool is_root);
  void visit_children(const nn::ModulePtr& module, const std::string& prefix);
  void note_replicated(const nn::ModulePtr& module, const std::string& prefix);
  Order order_;
  std::vector<CollectedParameter> parameters_;
  std::vector<nn::ModulePtr> modules_;
  std::set<const nn::Module*> seen_;
  std::set<const TensorImpl*> ignored_;
  std::map<const TensorImpl*, std::size_t> indices_;
  std::map<const TensorImpl*, std::string> replicated_;  // with their paths
};

// Throws Error for a parameter that another group has sharded, that a replicated module shares, that is a scalar, is
// not contiguous or has a gradient, kept back or not. `owner`: the name of the group. `api`: the caller, for messages.
void check_parameter(const CollectedParameter& parameter, const std::string& owner, std::string_view api);
// The dim that the options ask for, from 0. Throws Error when the parameter has no such dim.
int shard_dim_of(const CollectedParameter& parameter, const FullyShardOptions& options);
// The layout that the parameter will have. Throws Error as shard_dim_of() does, and for a parameter that is distributed
// over a mesh that does not fit (layout::compose).
layout::ShardedLayout sharded_layout_of(const CollectedParameter& parameter, const FullyShardOptions& options,
                                        const ShardMesh& mesh);
// Throws Error for a parameter that is not sharded in its own place and that a group has sharded in another one.
void refuse_sharded_elsewhere(const Tensor& tensor, const std::string& name, const std::string& owner,
                              std::string_view api);
// Notes that a group has sharded the parameter `name`: another group that holds one of the two tensors is an error, as
// to the full one while `holder`, the shards of the group, exists.
void claim(const std::weak_ptr<const void>& holder, const Tensor& full, const Tensor& shard, const std::string& name,
           std::string_view api);

}  // namespace lockstep::parallel
