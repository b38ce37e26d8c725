#include <cmath>

#include "engine/core/error.hpp"
#include "engine/kernels/elementwise.hpp"
#include "engine/tensor/ops.hpp"
#include "engine/tensor/ops_launch.hpp"

namespace lockstep::raw {

namespace {

using BinaryKernel = void (*)(kernels::Execution, const kernels::View&, const kernels::View&, const kernels::View&);
using NumberKernel = void (*)(kernels::Execution, const kernels::View&, const kernels::View&, double);

void require_castable(const char* name, const Tensor& to, const Tensor& value) {
  if (is_floating(value.dtype()) && !is_floating(to.dtype()))
    throw Error(str(name, ": a floating-point value into ", describe(to)), "cast the value or the target");
  if (to.dtype() == DType::boolean && value.dtype() != DType::boolean)
    throw Error(str(name, ": an integer value into ", describe(to)), "cast the value or the target");
}

// The value in the type that the kernel reads and in the sizes of the target, copied if it overlaps the target.
enum class Use { term, factor };
Tensor value_for(const char* name, const Tensor& to, const Tensor& value, Use use) {
  require_same_device(name, to, value);
  require_not_expanded(name, to);
  if (!(broadcast_sizes(to.sizes(), value.sizes(), name) == to.sizes()))
    throw Error(str(name, ": ", to_text(value.sizes()), " does not broadcast to ", to_text(to.sizes())),
                "give a value that broadcasts to the sizes of the target");
  require_castable(name, to, value);
  require_no_partial_overlap(name, to, value);
  const Tensor typed =
      copy_if_overlapping(use == Use::factor ? factor_in(value, to.dtype()) : cast(value, to.dtype()), to);
  return typed.sizes() == to.sizes() ? typed : expand(typed, to.sizes());
}

using Binary = Tensor (*)(const Tensor&, const Tensor&);

// A value of a wider type: computed in that type, and rounded once. Scalars have the type of the target.
bool is_wider(const Tensor& to, const Tensor& value) {
  return value.num_dims() > 0 && is_floating(to.dtype()) && is_floating(value.dtype()) &&
         promote(to.dtype(), value.dtype()) != to.dtype();
}

void update_with(const char* name, BinaryKernel kernel, Binary wide, const Tensor& to, const Tensor& value, Use use) {
  const Tensor by = value_for(name, to, value, use);
  if (is_wider(to, value)) {
    copy_(to, wide(to, value));
  } else {
    run_update(
        name,
        [kernel](kernels::Execution execution, const kernels::View& out, const kernels::View& a) {
          kernel(execution, out, out, a);
        },
        to, by);
  }
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
  if (alpha == 1.0) return update_with("add_", kernels::add, add, to, value, Use::term);
  if (!is_floating(to.dtype()) && std::trunc(alpha) != alpha)
    throw Error(str("add_: alpha ", alpha, " for ", describe(to)), "give an integer, or cast the target");
  const Tensor by = value_for("add_", to, value, Use::term);
  if (is_wider(to, value)) {
    const DType wide = promote(to.dtype(), value.dtype());
    const Tensor sum = to.dtype() == wide ? clone(to) : cast(to, wide);
    add_(sum, cast(value, wide), alpha);
    return copy_(to, sum);
  }
  run_update(
      "add_",
      [alpha](kernels::Execution execution, const kernels::View& out, const kernels::View& term) {
        kernels::add_scaled(execution, out, out, term, alpha);
      },
      to, by);
  to.bump_version();
}
void add_(const Tensor& to, double value) { update_with_number("add_", kernels::add_number, to, value); }
void sub_(const Tensor& to, const Tensor& value) {
  require_not_bool("sub_", to);
  require_not_bool("sub_", value);
  update_with("sub_", kernels::sub, sub, to, value, Use::term);
}
void sub_(const Tensor& to, double value) { add_(to, -value); }
void mul_(const Tensor& to, const Tensor& value) { update_with("mul_", kernels::mul, mul, to, value, Use::factor); }
void mul_(const Tensor& to, double value) { update_with_number("mul_", kernels::mul_number, to, value); }
void div_(const Tensor& to, const Tensor& value) {
  require_floating("div_", to);
  update_with("div_", kernels::div, div, to, value, Use::factor);
}
void div_(const Tensor& to, double value) { update_with_number("div_", kernels::div_number, to, value); }

void relu_(const Tensor& to) {
  require_not_bool("relu_", to);
  require_not_expanded("relu_", to);
  run_update(
      "relu_", [](kernels::Execution execution, const kernels::View& out) { kernels::relu(execution, out, out); }, to);
  to.bump_version();
}

}  // namespace lockstep::raw
