#include "engine/core/error.hpp"
#include "engine/kernels/elementwise.hpp"
#include "engine/tensor/ops.hpp"
#include "engine/tensor/ops_launch.hpp"

namespace lockstep::raw {

namespace {

using BinaryKernel = void (*)(kernels::Execution, const kernels::View&, const kernels::View&, const kernels::View&);
using NumberKernel = void (*)(kernels::Execution, const kernels::View&, const kernels::View&, double);

// The value in the type and sizes of the target, copied if it overlaps the target.
Tensor value_for(const char* name, const Tensor& to, const Tensor& value) {
  require_same_device(name, to, value);
  require_not_expanded(name, to);
  if (!(broadcast_sizes(to.sizes(), value.sizes(), name) == to.sizes()))
    throw Error(str(name, ": ", to_text(value.sizes()), " does not broadcast to ", to_text(to.sizes())),
                "give a value that broadcasts to the sizes of the target");
  if (is_floating(value.dtype()) && !is_floating(to.dtype()))
    throw Error(str(name, ": a floating-point value into ", describe(to)), "cast the value or the target");
  const Tensor typed = copy_if_overlapping(cast(value, to.dtype()), to);
  return typed.sizes() == to.sizes() ? typed : expand(typed, to.sizes());
}

void update_with(const char* name, BinaryKernel kernel, const Tensor& to, const Tensor& value) {
  run_update(
      name,
      [kernel](kernels::Execution execution, const kernels::View& out, const kernels::View& by) {
        kernel(execution, out, out, by);
      },
      to, value_for(name, to, value));
  to.bump_version();
}

void update_with_number(const char* name, NumberKernel kernel, const Tensor& to, double number) {
  require_floating(name, to);
  require_not_expanded(name, to);
  run_update(
      name,
      [kernel, number](kernels::Execution execution, const kernels::View& out) { kernel(execution, out, out, number); },
      to);
  to.bump_version();
}

}  // namespace

void add_(const Tensor& to, const Tensor& value, double alpha) {
  if (alpha == 1.0) return update_with("add_", kernels::add, to, value);
  run_update(
      "add_",
      [alpha](kernels::Execution execution, const kernels::View& out, const kernels::View& by) {
        kernels::add_scaled(execution, out, out, by, alpha);
      },
      to, value_for("add_", to, value));
  to.bump_version();
}
void sub_(const Tensor& to, const Tensor& value) {
  require_not_bool("sub_", to);
  update_with("sub_", kernels::sub, to, value);
}
void mul_(const Tensor& to, const Tensor& value) { update_with("mul_", kernels::mul, to, value); }
void mul_(const Tensor& to, double value) { update_with_number("mul_", kernels::mul_number, to, value); }
void div_(const Tensor& to, double value) { update_with_number("div_", kernels::div_number, to, value); }

}  // namespace lockstep::raw
