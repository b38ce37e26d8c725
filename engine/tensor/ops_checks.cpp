#include <algorithm>
#include <cmath>
#include <utility>

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

namespace {

// The first dim that repeats one element, or -1.
int expanded_dim(const Tensor& tensor) {
  if (tensor.num_elements() == 0) return -1;
  for (int dim = 0; dim < tensor.num_dims(); ++dim)
    if (tensor.strides()[dim] == 0 && tensor.sizes()[dim] > 1) return dim;
  return -1;
}

}  // namespace

void require_not_expanded(const char* operation, const Tensor& tensor) {
  const int dim = expanded_dim(tensor);
  if (dim >= 0)
    throw Error(str(operation, ": cannot write ", describe(tensor), ", whose dim ", dim, " repeats one element"),
                "clone it first");
}

void require_representable(const char* operation, double number, DType dtype) {
  bool fits = true;
  switch (dtype) {
    case DType::int64:
      fits = number >= -0x1p63 && number < 0x1p63;
      break;
    case DType::int32:
      fits = number > -0x1p31 - 1 && number < 0x1p31;
      break;
    case DType::float32:
    case DType::bfloat16:
    case DType::float16: {
      const double largest = dtype == DType::float32 ? 0x1.fffffep127 : dtype == DType::float16 ? 65504 : 0x1.fep127;
      fits = !std::isfinite(number) || std::fabs(number) <= largest;
      break;
    }
    default:
      break;
  }
  if (!fits)
    throw Error(str(operation, ": the number ", number, " does not fit ", name_of(dtype)),
                "give a smaller number, or another type");
}

Dims dims_in_memory_order(const Tensor& tensor) {
  Dims order;
  for (int dim = 0; dim < tensor.num_dims(); ++dim) order.push_back(dim);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return tensor.strides()[static_cast<int>(a)] > tensor.strides()[static_cast<int>(b)];
  });
  return order;
}

Tensor factor_in(const Tensor& factor, DType dtype) {
  const bool stays_wide = is_floating(dtype) && size_of(dtype) == 2 && factor.num_elements() == 1;
  return cast(factor, stays_wide && factor.dtype() != dtype ? DType::float32 : dtype);
}

namespace {

// The bytes from the first element to the last, which may have gaps. In bytes, because two tensors of one storage may
// have different types.
std::pair<std::int64_t, std::int64_t> range_of(const Tensor& tensor) {
  const auto element = static_cast<std::int64_t>(size_of(tensor.dtype()));
  std::int64_t last = tensor.offset();
  for (int dim = 0; dim < tensor.num_dims(); ++dim)
    last += bounded_product(tensor.sizes()[dim] - 1, tensor.strides()[dim]);
  return {bounded_product(tensor.offset(), element), bounded_product(last + 1, element)};
}

// `from` broadcasts to `to`, so that both or only `to` may have no elements.
bool ranges_overlap(const Tensor& from, const Tensor& to) {
  if (from.storage() != to.storage() || to.num_elements() == 0) return false;
  const auto [from_begin, from_end] = range_of(from);
  const auto [to_begin, to_end] = range_of(to);
  return from_begin < to_end && to_begin < from_end;
}

bool has_no_gaps(const Tensor& tensor) {
  const auto [begin, end] = range_of(tensor);
  return expanded_dim(tensor) < 0 && end - begin == tensor.num_bytes();
}

}  // namespace

void require_no_partial_overlap(const char* operation, const Tensor& to, const Tensor& from) {
  if (from.same_as(to) || !ranges_overlap(from, to) || !has_no_gaps(from) || !has_no_gaps(to)) return;
  if (from.offset() == to.offset() && from.strides() == to.strides() && range_of(from) == range_of(to)) return;
  throw Error(str(operation, ": ", describe(from), " shares some elements with ", describe(to), ", which is written"),
              "clone() the operand");
}

Tensor copy_if_overlapping(const Tensor& from, const Tensor& to) {
  const bool is_same = from.offset() == to.offset() && from.sizes() == to.sizes() && from.strides() == to.strides() &&
                       from.dtype() == to.dtype();
  return !is_same && ranges_overlap(from, to) ? clone(from) : from;
}

}  // namespace lockstep::raw
