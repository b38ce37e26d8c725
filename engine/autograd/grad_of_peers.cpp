#include "engine/autograd/grad_of_peers.hpp"

#include <utility>

#include "engine/autograd/node.hpp"

namespace lockstep {

void note_grad_of_peers(const Tensor& leaf) { make_grad_state(leaf).has_grad_of_peers = true; }

bool has_grad_of_peers(const Tensor& leaf) {
  const GradState* state = grad_state(leaf);
  return state && state->has_grad_of_peers;
}

void note_kept_back(const Tensor& leaf, std::function<void()> forget) {
  make_grad_state(leaf).forget_kept_back = std::move(forget);
}

void forget_kept_back(const Tensor& leaf) {
  GradState* state = grad_state(leaf);
  if (!state) return;
  state->kept_back = Tensor();
  if (const auto forget = std::exchange(state->forget_kept_back, nullptr)) forget();
}

}  // namespace lockstep
