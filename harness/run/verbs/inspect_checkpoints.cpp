// verify_checkpoint, diff_checkpoints, export_checkpoint.
#include <filesystem>

#include "engine/state/inspect.hpp"
#include "harness/run/live_run.hpp"
#include "harness/run/rank_budget.hpp"
#include "harness/run/verbs/folders.hpp"

namespace lockstep::run::verbs {

namespace {

state::CheckpointFolder folder_of(StepCall& call, const char* argument) {
  const std::string shown = call.text(argument);
  return {resolve_path(shown, folders_of(call), false), shown};
}

}  // namespace

Value verify_checkpoint(StepCall& call) {
  const state::Verification found = state::verify_checkpoint(folder_of(call, "folder"));
  Map result;
  result.emplace_back("problems", Value::texts(found.problems));
  result.emplace_back("tensors", Value(found.num_tensors));
  result.emplace_back("chunks", Value(found.num_chunks));
  result.emplace_back("bytes", Value(static_cast<std::int64_t>(found.bytes)));
  return Value::map(std::move(result));
}

Value diff_checkpoints(StepCall& call) {
  return Value::texts(state::diff_checkpoints(folder_of(call, "first"), folder_of(call, "second")));
}

Value export_checkpoint(StepCall& call) {
  const std::string shown = call.text("file");
  if (!shown.ends_with(".safetensors"))
    throw Error(str("`", shown, "` does not end in .safetensors"), "give the file that ending");
  const std::string file = resolve_path(shown, folders_of(call), true);
  state::export_checkpoint(folder_of(call, "folder"), file, shown, [&](std::uint64_t bytes) {
    call.live().budget().write(file, shown, static_cast<std::size_t>(bytes));
    std::filesystem::create_directories(std::filesystem::path(file).parent_path());
  });
  return Value();
}

}  // namespace lockstep::run::verbs
