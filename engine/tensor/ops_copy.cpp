// Copies, casts, copies between devices, fills.
#include <cstdint>
#include <vector>

#include "engine/core/error.hpp"
#include "engine/device/stream.hpp"
#include "engine/kernels/elementwise.hpp"
#include "engine/tensor/ops.hpp"
#include "engine/tensor/ops_launch.hpp"

namespace lockstep::raw {

namespace {

// `to`: the target in words.
void require_values(const char* operation, const Tensor& from, const std::string& to) {
  if (from.is_meta() && from.num_elements() > 0)
    throw Error(str(operation, ": ", describe(from), " has no values to copy to ", to),
                "give a source on a device that has memory");
}

// Both tensors are contiguous, of equal type and sizes, on different devices. The source has values.
void copy_across(const Tensor& to, const Tensor& from) {
  if (to.is_meta() || to.num_elements() == 0) return;
  const bool to_host = device::is_host(to.device());
  device::Stream& stream = device::current_stream(to_host ? from.device() : to.device());
  device::Stream& other = device::current_stream(to_host ? to.device() : from.device());
  stream.wait(other.record());
  device::copy_bytes(stream, write(to), read(from));
  other.wait(stream.record());  // later work on either stream runs after the copy
}

}  // namespace

Tensor contiguous(const Tensor& a) {
  require_defined("contiguous", a);
  return a.is_contiguous() ? a : clone(a);
}

Tensor clone(const Tensor& a) {
  require_defined("clone", a);
  const Tensor out = empty_like(a);
  run_kernel("clone", kernels::copy, out, a);
  return out;
}

Tensor reshape(const Tensor& a, const Dims& sizes) {
  require_defined("reshape", a);
  return a.is_contiguous() || is_viewable_as(a, sizes) ? view(a, sizes) : view(clone(a), sizes);
}

Tensor cast(const Tensor& a, DType dtype) {
  require_defined("cast", a);
  if (a.dtype() == dtype) return a;
  const Tensor out = empty(a.sizes(), dtype, a.device());
  run_kernel("cast", kernels::copy, out, a);
  return out;
}

Tensor to_device(const Tensor& a, device::Device device) {
  require_defined("to_device", a);
  if (a.device() == device) return a;
  const Tensor out = empty(a.sizes(), a.dtype(), device);
  if (!device::computes(device)) return out;
  require_values("to_device", a, device::to_text(device));
  copy_across(out, contiguous(a));
  return out;
}

void zero_(const Tensor& to) { fill_(to, 0.0); }

void fill_(const Tensor& to, Number value) {
  require_defined("fill_", to);
  if (to.dtype() == DType::int64 && !value.is_exact()) {  // the kernel takes a double
    const std::vector<std::int64_t> number = {value.integer()};
    run_kernel("fill_", kernels::copy, to, expand(from_values(number, Dims(), DType::int64, to.device()), to.sizes()));
  } else {
    require_representable("fill_", value.value(), to.dtype());
    run_kernel(
        "fill_",
        [number = value.value()](kernels::Execution execution, const kernels::View& out) {
          kernels::fill(execution, out, number);
        },
        to);
  }
  to.bump_version();
}

void copy_(const Tensor& to, const Tensor& from) {
  require_defined("copy_", to);
  require_defined("copy_", from);
  if (!(broadcast_sizes(to.sizes(), from.sizes(), "copy_") == to.sizes()))
    throw Error(str("copy_: ", to_text(from.sizes()), " does not broadcast to ", to_text(to.sizes())),
                "give a source that broadcasts to the sizes of the target");
  require_not_expanded("copy_", to);
  if (to.device() == from.device()) {
    require_no_partial_overlap("copy_", to, from);
    const Tensor source = copy_if_overlapping(from, to);
    run_kernel("copy_", kernels::copy, to, source.sizes() == to.sizes() ? source : expand(source, to.sizes()));
  } else {
    if (!to.is_meta()) require_values("copy_", from, describe(to));
    // The source is cast to the type of the target before the copy. A strided target needs a second copy on its device.
    const Tensor source = contiguous(cast(from, to.dtype()));
    if (to.is_contiguous() && source.sizes() == to.sizes()) {
      copy_across(to, source);
    } else {
      const Tensor there = to_device(source, to.device());
      run_kernel("copy_", kernels::copy, to, there.sizes() == to.sizes() ? there : expand(there, to.sizes()));
    }
  }
  to.bump_version();
}

}  // namespace lockstep::raw
