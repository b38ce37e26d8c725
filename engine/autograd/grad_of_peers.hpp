// A leaf without elements is this rank's empty part of a sharded parameter. It has no gradient, but ranks that hold
// elements of the parameter may have one. A note on the leaf says so, until its gradient is set or removed: whatever
// ends the gradients of the peers (zero_grad, for example) runs on all ranks, and so ends the note.
//
// A parallel API may keep gradients of a leaf apart until they are synchronized with the peers. A second note on the
// leaf drops them.
#pragma once

#include <functional>

#include "engine/tensor/tensor.hpp"

namespace lockstep {

void note_grad_of_peers(const Tensor& leaf);
bool has_grad_of_peers(const Tensor& leaf);

// `forget` drops the gradients that are kept back. It replaces that of an earlier note, and must not own the leaf.
void note_kept_back(const Tensor& leaf, std::function<void()> forget);
void forget_kept_back(const Tensor& leaf);  // zero_grad calls it for each parameter

}  // namespace lockstep
