#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/tensor/ops.hpp"
#include "engine/tensor/ops_launch.hpp"

namespace lockstep::raw {

void require_defined(const char* operation, const Tensor& a) {
  if (!a.defined())
    throw Error(str(operation, ": an operand is undefined"), "give a defined tensor (a gradient may be missing)");
}

void require_same_device(const char* operation, const Tensor& a, const Tensor& b) {
  require_defined(operation, a);
  require_defined(operation, b);
  if (a.device() == b.device()) return;
  throw Error(str(operation, ": operands on different devices: ", describe(a), " and ", describe(b)),
              str("move one of them, for example with to_device(", device::to_text(a.device()), ")"));
}

void require_floating(const char* operation, const Tensor& a) {
  require_defined(operation, a);
  if (is_floating(a.dtype())) return;
  throw Error(str(operation, ": needs a floating-point tensor, not ", describe(a)), "cast it, for example to float32");
}

void require_not_bool(const char* operation, const Tensor& a) {
  require_defined(operation, a);
  if (a.dtype() != DType::boolean) return;
  throw Error(str(operation, ": is not defined for ", describe(a)), "cast it to a number type");
}

void require_not_expanded(const char* operation, const Tensor& tensor) {
  if (tensor.num_elements() == 0) return;
  for (int dim = 0; dim < tensor.num_dims(); ++dim) {
    if (tensor.strides()[dim] == 0 && tensor.sizes()[dim] > 1)
      throw Error(str(operation, ": cannot write ", describe(tensor), ", whose dim ", dim, " repeats one element"),
                  "clone it first");
  }
}

Tensor copy_if_overlapping(const Tensor& from, const Tensor& to) {
  if (from.storage() != to.storage() || from.num_elements() == 0 || to.num_elements() == 0) return from;
  if (from.offset() == to.offset() && from.sizes() == to.sizes() && from.strides() == to.strides() &&
      from.dtype() == to.dtype())
    return from;
  // In bytes, because the two may have different types.
  const auto range = [](const Tensor& tensor) {
    const auto element = static_cast<std::int64_t>(size_of(tensor.dtype()));
    std::int64_t last = tensor.offset();
    for (int dim = 0; dim < tensor.num_dims(); ++dim)
      last += bounded_product(tensor.sizes()[dim] - 1, tensor.strides()[dim]);
    return std::pair(bounded_product(tensor.offset(), element), bounded_product(last + 1, element));
  };
  const auto [from_begin, from_end] = range(from);
  const auto [to_begin, to_end] = range(to);
  return from_begin < to_end && to_begin < from_end ? clone(from) : from;
}

}  // namespace lockstep::raw
