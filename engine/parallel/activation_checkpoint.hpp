// Activation checkpointing of a module: its forward keeps nothing for backward, which runs it again.
//
// Two forms, which differ in where they stand when other APIs are applied to the same module; the order of applying
// does not matter. Names and paths stay, as no module is put into the tree:
// - composable: inside the hooks of all other APIs, around the user's. Its inputs are what those APIs made of them
//   (cast, moved, gathered for), and recomputing runs none of their hooks.
// - wrapper: around the whole call. Recomputing runs the hooks of the other APIs too.
// The third form is a model that calls nn::checkpoint itself.
//
//   activation_checkpoint(block);                       // before or after fully_shard({block})
//   activation_checkpoint(block, {.form = CheckpointForm::wrapper});
//
// A region once in a region: see engine/autograd/checkpoint.hpp. Each recomputation is noted as an event. A copy of the
// module is not checkpointed. After torch.distributed._composable.checkpoint and checkpoint_wrapper.
#pragma once

#include <string>

#include "engine/autograd/checkpoint.hpp"
#include "engine/nn/module.hpp"

namespace lockstep::parallel {

inline constexpr std::string_view activation_checkpoint_name = "activation_checkpoint";

enum class CheckpointForm { composable, wrapper };

struct ActivationCheckpointOptions {
  CheckpointForm form = CheckpointForm::composable;
  bool preserve_random_state = true;
  DeterminismCheck determinism = DeterminismCheck::metadata;
  std::string name{};  // for events and messages; the module's type unless given
};

// Of forward and of methods registered as such. Throws Error when it was applied to the module, in either form.
void activation_checkpoint(const nn::ModulePtr& module, const ActivationCheckpointOptions& options = {});

}  // namespace lockstep::parallel
