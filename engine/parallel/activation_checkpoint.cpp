#include "engine/parallel/activation_checkpoint.hpp"

#include <memory>

#include "engine/nn/checkpoint.hpp"
#include "engine/parallel/contract.hpp"
#include "engine/parallel/events.hpp"

namespace lockstep::parallel {

void activation_checkpoint(const nn::ModulePtr& module, const ActivationCheckpointOptions& options) {
  const Application application(module, activation_checkpoint_name);
  CheckpointOptions region;
  region.preserve_random_state = options.preserve_random_state;
  region.determinism = options.determinism;
  region.name = options.name.empty() ? module->type() : options.name;
  nn::Structure::Map saved;
  for (const SavedOperation& operation : options.save)
    saved.emplace_back(operation.name, nn::Structure(operation.every));
  if (!options.save.empty()) region.policy = save_operations(options.save);
  region.before_recomputing = [name = region.name, of = std::weak_ptr<nn::Module>(module)] {
    note_event(EventKind::recompute, name, of);
  };
  const bool composable = options.form == CheckpointForm::composable;
  module->set_wrapper(composable ? nn::Module::WrapperPosition::inside_apis : nn::Module::WrapperPosition::outside_apis,
                      [region](const nn::Inputs& inputs, const std::function<nn::Structure(const nn::Inputs&)>& inner) {
                        return nn::checkpoint(inner, inputs, region);
                      });
  application.complete({{"form", composable ? "composable" : "wrapper"},
                        {"preserve_random_state", options.preserve_random_state},
                        {"determinism_check", options.determinism == DeterminismCheck::metadata ? "default" : "none"},
                        {"save", nn::Structure::map(std::move(saved))}},
                       {}, {});
}

}  // namespace lockstep::parallel
