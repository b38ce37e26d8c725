#include "engine/autograd/node.hpp"
#include "engine/autograd/ops_gradients.hpp"
#include "engine/autograd/ops_on_sharded.hpp"

namespace lockstep::ops {

namespace {

// Throws the errors of record_in_place before the memory is written.
void require_writable(const char* name, const Tensor& to, const std::vector<Tensor>& inputs) {
  if (!to.defined() || !recording(inputs)) return;
  const GradState* state = grad_state(to);
  if (state && ((state->requires_grad && !state->node) || state->is_view)) record_in_place(name, to, inputs, {}, {});
}

}  // namespace

void add_(const Tensor& to, const Tensor& value, double alpha) {
  if (any_sharded(to, value)) [[unlikely]]
    require_in_place("add_", to, value, Keeps::sums);
  require_writable("add_", to, {to, value});
  raw::add_(to, value, alpha);
  record_in_place("add_", to, {to, value}, {}, [alpha](const Backward& at) -> Gradients {
    Gradients grads(2);
    if (at.needs(0)) grads[0] = at.grad();
    if (at.needs(1)) grads[1] = fit(at, 1, alpha == 1.0 ? at.grad() : raw::mul(at.grad(), alpha));
    return grads;
  });
}

void sub_(const Tensor& to, const Tensor& value) {
  if (any_sharded(to, value)) [[unlikely]]
    require_in_place("sub_", to, value, Keeps::sums);
  require_writable("sub_", to, {to, value});
  raw::sub_(to, value);
  record_in_place("sub_", to, {to, value}, {}, [](const Backward& at) -> Gradients {
    return {at.needs(0) ? at.grad() : Tensor(), at.needs(1) ? raw::neg(fit(at, 1, at.grad())) : Tensor()};
  });
}

void mul_(const Tensor& to, const Tensor& value) {
  if (any_sharded(to, value)) [[unlikely]]
    require_in_place("mul_", to, value, Keeps::nothing);
  require_writable("mul_", to, {to, value});
  // A copy of the old contents is saved, and a copy of a value that shares the written memory.
  const bool records = recording({to, value});
  const Tensor before = records && requires_grad(value) ? raw::clone(to) : Tensor();
  Tensor factor = records && requires_grad(to) ? value : Tensor();
  if (factor.defined() && factor.storage() == to.storage()) factor = raw::clone(factor);
  raw::mul_(to, value);
  record_in_place("mul_", to, {to, value}, {before, factor}, [](const Backward& at) -> Gradients {
    return {at.needs(0) ? fit(at, 0, raw::mul(at.grad(), at.saved(1))) : Tensor(),
            at.needs(1) ? fit(at, 1, raw::mul(at.grad(), at.saved(0))) : Tensor()};
  });
}

void mul_(const Tensor& to, double value) {
  if (is_sharded(to)) [[unlikely]]
    require_in_place("mul_", to, Keeps::sums);
  require_writable("mul_", to, {to});
  raw::mul_(to, value);
  record_in_place("mul_", to, {to}, {},
                  [value](const Backward& at) -> Gradients { return {raw::mul(at.grad(), value)}; });
}

void copy_(const Tensor& to, const Tensor& from) {
  if (any_sharded(to, from)) [[unlikely]]
    require_in_place("copy_", to, from, Keeps::all);
  require_writable("copy_", to, {to, from});
  raw::copy_(to, from);
  record_in_place("copy_", to, {to, from}, {}, [](const Backward& at) -> Gradients {
    // The result does not depend on the old contents.
    return {Tensor(), at.needs(1) ? raw::to_device(fit(at, 1, at.grad()), at.device(1)) : Tensor()};
  });
}

void zero_(const Tensor& to) {
  if (is_sharded(to)) [[unlikely]]
    require_in_place("zero_", to, Keeps::all);
  require_writable("zero_", to, {to});
  raw::zero_(to);
  record_in_place("zero_", to, {to}, {}, [](const Backward&) -> Gradients { return {Tensor()}; });
}

}  // namespace lockstep::ops
