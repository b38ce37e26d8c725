// Activation checkpointing of a module: its forward keeps no activations, and backward runs it again.
//
// There are two forms. They differ in their place among the hooks of other APIs on the same module; the order of
// applying makes no difference. Both keep names and paths, as they add no module to the tree.
// - composable: inside the hooks of all other APIs and around those of the user. Its inputs are those that the other
//   APIs have cast, moved or unsharded for. A recomputation runs none of their hooks.
// - wrapper: around the whole call. A recomputation runs the hooks of the other APIs, too.
// A model that calls nn::checkpoint itself is the third form.
//
//   activation_checkpoint(block);                       // before or after fully_shard({block})
//   activation_checkpoint(block, {.form = CheckpointForm::wrapper});
//
// Nested regions: see engine/autograd/checkpoint.hpp. Each recomputation is an event (events.hpp). A copy of the module
// has no checkpoint. After torch.distributed._composable.checkpoint and checkpoint_wrapper.
#pragma once

#include <string>
#include <vector>

#include "engine/autograd/checkpoint.hpp"
#include "engine/nn/module.hpp"

namespace lockstep::parallel {

inline constexpr std::string_view activation_checkpoint_name = "activation_checkpoint";

enum class CheckpointForm { composable, wrapper };

struct ActivationCheckpointOptions {
  CheckpointForm form = CheckpointForm::composable;
  bool preserve_random_state = true;
  DeterminismCheck determinism = DeterminismCheck::metadata;
  std::string name{};  // for events and messages; empty: the type of the module
  // The operations whose results a selective checkpoint keeps; empty: none.
  std::vector<SavedOperation> save{};
};

// Checkpoints forward and the methods that are registered as forward methods. Throws Error when a checkpoint of either
// form was applied to the module already, and for operations that cannot be saved (save_operations). The saved
// operations are those of the model: the all-gathers and casts of fully_shard are none. `redistribute` are the
// collectives that tensor_parallel issues in forward.
void activation_checkpoint(const nn::ModulePtr& module, const ActivationCheckpointOptions& options = {});

}  // namespace lockstep::parallel
