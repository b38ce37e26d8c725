#include "engine/autograd/grad_of_peers.hpp"

#include <utility>

#include "engine/autograd/node.hpp"

namespace lockstep {

void note_grad_of_peers(const Tensor& leaf) { make_grad_state(leaf).has_grad_of_peers = true; }

bool has_grad_of_peers(const Tensor& leaf) {
  const GradState* state = grad_state(leaf);
  return state && state->has_grad_of_peers;
}

void keep_back(const Tensor& leaf, KeptBack gradients) { make_grad_state(leaf).kept_back = std::move(gradients); }

Tensor kept_back_grad(const Tensor& leaf) {
  const GradState* state = grad_state(leaf);
  return state ? state->kept_back.sum : Tensor();
}

void forget_kept_back(const Tensor& leaf) {
  GradState* state = grad_state(leaf);
  if (!state) return;
  if (const KeptBack dropped = std::exchange(state->kept_back, {}); dropped.forget) dropped.forget();
}

}  // namespace lockstep
