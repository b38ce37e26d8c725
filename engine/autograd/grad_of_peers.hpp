// A leaf without elements is this rank's empty part of a sharded parameter. It has no gradient, but ranks that hold
// elements of the parameter may have one. A note on the leaf says so, until its gradient is set or removed: whatever
// ends the gradients of the peers (zero_grad, for example) runs on all ranks, and so ends the note.
//
// A parallel API may keep gradients of a leaf apart from grad(leaf) until they are synchronized with the peers. They
// end with the gradient: zero_grad and set_grad without a value drop them.
#pragma once

#include <functional>

#include "engine/tensor/tensor.hpp"

namespace lockstep {

void note_grad_of_peers(const Tensor& leaf);
bool has_grad_of_peers(const Tensor& leaf);

// Where the gradients that are kept back lie: in `sum`, a plain tensor, or with the parallel API, which `forget` tells
// to drop them. `forget` must not own the leaf.
struct KeptBack {
  Tensor sum;
  std::function<void()> forget;
};
// Replaces an earlier KeptBack without a call of its `forget`.
void keep_back(const Tensor& leaf, KeptBack gradients);
Tensor kept_back_grad(const Tensor& leaf);  // KeptBack::sum; undefined when there is none
void forget_kept_back(const Tensor& leaf);

}  // namespace lockstep
