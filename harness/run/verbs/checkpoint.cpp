// activation_checkpoint.
#include "engine/parallel/activation_checkpoint.hpp"
#include "harness/run/observe/observation.hpp"
#include "harness/run/verbs/verbs.hpp"

namespace lockstep::run::verbs {

namespace {

// A name, a list of names, or a map from name to a number n: the first of every n calls.
std::vector<SavedOperation> saved_operations(const Value& value) {
  std::vector<SavedOperation> saved;
  if (value.is(Value::Kind::none)) return saved;
  if (value.is(Value::Kind::text)) return {{value.as_text("save")}};
  if (value.is(Value::Kind::map)) {
    for (const auto& [name, every] : value.as_map("save")) saved.push_back({name.text, every.as_int(name.text)});
    return saved;
  }
  for (const Value& name : value.as_list("save")) saved.push_back({name.as_text("an operation of save")});
  return saved;
}

}  // namespace

Value activation_checkpoint(StepCall& call) {
  parallel::ActivationCheckpointOptions options;
  const std::string form = call.text("form");
  options.form = form == "wrapper" ? parallel::CheckpointForm::wrapper : parallel::CheckpointForm::composable;
  options.preserve_random_state = call.boolean("preserve_random_state");
  options.save = saved_operations(call.value("save"));
  for (const ModuleMatch& found : call.modules("modules")) {
    options.name = found.path;
    parallel::activation_checkpoint(found.module, options);
    note_owner(found.path, {found.module});
  }
  return Value();
}

}  // namespace lockstep::run::verbs
