#include "engine/nn/checkpoint.hpp"

namespace lockstep::nn {

Value checkpoint(const std::function<Value(const Inputs&)>& function, const Inputs& inputs,
                 const CheckpointOptions& options) {
  const Value all = Value::list({Value::list(inputs.positional), Value::map(inputs.named)});
  const std::vector<Tensor> tensors = tensors_of(all);
  // The structure alone is kept: the region keeps the tensors, as an outer region wants them kept.
  const Value structure = with_tensors(all, std::vector<Tensor>(tensors.size()));
  Value result;
  run_checkpointed([&] { result = function(inputs); },
                   [function, structure](const std::vector<Tensor>& again) {
                     const Value given = with_tensors(structure, again);
                     function(Inputs{given.items()[0].items(), given.items()[1].entries()});
                   },
                   tensors, options);
  return result;
}

}  // namespace lockstep::nn
