#include "engine/autograd/grad_of_peers.hpp"

#include "engine/autograd/node.hpp"

namespace lockstep {

void note_grad_of_peers(const Tensor& leaf) { make_grad_state(leaf).has_grad_of_peers = true; }

bool has_grad_of_peers(const Tensor& leaf) {
  const GradState* state = grad_state(leaf);
  return state && state->has_grad_of_peers;
}

}  // namespace lockstep
