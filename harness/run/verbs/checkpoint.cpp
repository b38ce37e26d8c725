// activation_checkpoint.
#include "engine/parallel/activation_checkpoint.hpp"
#include "harness/run/observe/observation.hpp"
#include "harness/run/verbs/verbs.hpp"

namespace lockstep::run::verbs {

Value activation_checkpoint(StepCall& call) {
  parallel::ActivationCheckpointOptions options;
  const std::string form = call.text("form");
  options.form = form == "wrapper" ? parallel::CheckpointForm::wrapper : parallel::CheckpointForm::composable;
  options.preserve_random_state = call.boolean("preserve_random_state");
  for (const ModuleMatch& found : call.modules("modules")) {
    options.name = found.path;
    parallel::activation_checkpoint(found.module, options);
    note_owner(found.path, {found.module});
  }
  return Value();
}

}  // namespace lockstep::run::verbs
