// A leaf without elements is this rank's empty part of a sharded parameter. It has no gradient, but ranks that hold
// elements of the parameter may have one. A note on the leaf says so, until its gradient is set or removed: whatever
// ends the gradients of the peers (zero_grad, for example) runs on all ranks, and so ends the note.
#pragma once

#include "engine/tensor/tensor.hpp"

namespace lockstep {

void note_grad_of_peers(const Tensor& leaf);
bool has_grad_of_peers(const Tensor& leaf);

}  // namespace lockstep
