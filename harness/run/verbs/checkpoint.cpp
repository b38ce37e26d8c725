// activation_checkpoint.
#include <charconv>
#include <string_view>

#include "engine/parallel/activation_checkpoint.hpp"
#include "harness/run/observe/observation.hpp"
#include "harness/run/verbs/verbs.hpp"

namespace lockstep::run::verbs {

namespace {

// "linear", or "linear/2": the first of every two calls.
SavedOperation saved_operation(const std::string& text) {
  const std::size_t cut = text.find('/');
  if (cut == std::string::npos) return {text};
  const std::string_view number = std::string_view(text).substr(cut + 1);
  std::int64_t every = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), every);
  if (error != std::errc() || end != number.data() + number.size())
    throw Error(str("`", text, "` of `save`: `", number, "` is no number of calls"), "give it as `linear/2`");
  return {text.substr(0, cut), every};
}

}  // namespace

Value activation_checkpoint(StepCall& call) {
  parallel::ActivationCheckpointOptions options;
  const std::string form = call.text("form");
  options.form = form == "wrapper" ? parallel::CheckpointForm::wrapper : parallel::CheckpointForm::composable;
  options.preserve_random_state = call.boolean("preserve_random_state");
  const bool compares = call.text("determinism_check") == "default";
  options.determinism = compares ? DeterminismCheck::metadata : DeterminismCheck::none;
  for (const std::string& text : call.words("save")) options.save.push_back(saved_operation(text));
  for (const ModuleMatch& found : call.modules("modules")) {
    options.name = found.path;
    parallel::activation_checkpoint(found.module, options);
    note_owner(found.path, {found.module});
  }
  return Value();
}

}  // namespace lockstep::run::verbs
