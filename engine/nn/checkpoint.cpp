#include "engine/nn/checkpoint.hpp"

namespace lockstep::nn {

Structure checkpoint(const std::function<Structure(const Inputs&)>& function, const Inputs& inputs,
                     const CheckpointOptions& options) {
  const Structure all = Structure::list({Structure::list(inputs.positional), Structure::map(inputs.named)});
  const std::vector<Tensor> tensors = tensors_of(all);
  // Only the structure is captured. The checkpointed region saves the tensors, so that an outer region can drop them.
  const Structure structure = with_tensors(all, std::vector<Tensor>(tensors.size()));
  Structure result;
  run_checkpointed([&] { result = function(inputs); },
                   [function, structure](const std::vector<Tensor>& saved) {
                     const Structure given = with_tensors(structure, saved);
                     function(Inputs{given.items()[0].items(), given.items()[1].entries()});
                   },
                   tensors, options);
  return result;
}

}  // namespace lockstep::nn
