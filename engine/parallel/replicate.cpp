#include "engine/parallel/replicate.hpp"

#include <any>
#include <memory>
#include <utility>

#include "engine/core/error.hpp"
#include "engine/parallel/contract.hpp"
#include "engine/parallel/replicate_state.hpp"

namespace lockstep::parallel {

using nn::ModulePtr;

namespace {

// Null when the module is not replicated.
ReplicateStatePtr replicate_state_of(const nn::Module& module) {
  const auto found = module.applied.find(replicate_name);
  return found == module.applied.end() ? nullptr : std::any_cast<ReplicateStatePtr>(found->second.state);
}

}  // namespace

void replicate(const ModulePtr& module, const ReplicateOptions& options) {
  const Application application(module, replicate_name);
  for (const std::string_view other : {fully_shard_name, flat_shard_name})
    if (is_applied(*module, other))
      throw Error(str("Cannot apply `replicate()` on a Module already managed by `", other, "`"),
                  "shard it over a mesh with a replicate axis instead");
  const auto state = std::make_shared<ReplicateState>(module, options);
  application.complete(state->settings(), state->parameter_names(), state);
  module->add_pre_forward([weak = std::weak_ptr(state)](nn::Module&, nn::Inputs& inputs) {
    if (const auto alive = weak.lock()) alive->before_forward(inputs);
  });
  module->add_pre_backward(
      [weak = std::weak_ptr(state)](nn::Module&) {
        if (const auto alive = weak.lock()) alive->before_backward();
      },
      nn::Module::Place::api);
}

int set_requires_gradient_sync(const ModulePtr& module, bool value, bool recurse) {
  int num_changed = 0;
  const auto modules = recurse ? nn::named_modules(module) : std::vector<nn::NamedModule>{{"", module}};
  for (const nn::NamedModule& entry : modules)
    if (const auto state = replicate_state_of(*entry.module)) {
      state->requires_gradient_sync = value;
      ++num_changed;
    }
  return num_changed;
}

void set_before_all_reduce(const ModulePtr& module, std::function<void()> hook) {
  const auto state = replicate_state_of(*module);
  if (!state)
    throw Error(str("set_before_all_reduce: ", module->type(), " is not replicated"), "call replicate() first");
  state->set_before_all_reduce(std::move(hook));
}

}  // namespace lockstep::parallel
