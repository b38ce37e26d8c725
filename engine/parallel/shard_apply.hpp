// What fully_shard and flat_shard do alike when they are applied to modules.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "engine/parallel/shard_collect.hpp"
#include "engine/parallel/shard_state.hpp"

namespace lockstep::parallel {

// Throws Error when another API of data parallelism manages the module. `api`: the caller.
void check_unmanaged(const nn::Module& module, std::string_view api);
// Moves parameters and buffers to the device where the group computes.
void move_to_device(const std::vector<CollectedParameter>& parameters, const std::vector<nn::ModulePtr>& modules,
                    device::Device device);
// Calls of the module run the hooks of the state.
void add_hooks(const nn::ModulePtr& module, const ShardStatePtr& state);
// Code that reads or replaces the state of these modules, or of those that own the parameters of the group, reshards
// the group first, so that the slots hold the trained tensors.
void add_settling(const std::vector<nn::ModulePtr>& modules, const std::shared_ptr<ShardGroup>& group);

}  // namespace lockstep::parallel
