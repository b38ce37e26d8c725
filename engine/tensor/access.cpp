// The byte ranges of tensors as operands of launches.
#include "engine/core/error.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep {

namespace {

struct Extent {
  std::int64_t begin = 0;  // in elements of the storage
  std::int64_t end = 0;
};

Extent extent_of(const Tensor& tensor) {
  Extent extent{tensor.offset(), tensor.offset() + 1};
  for (int dim = 0; dim < tensor.num_dims(); ++dim) {
    if (tensor.sizes()[dim] == 0) return {tensor.offset(), tensor.offset()};
    extent.end += bounded_product(tensor.sizes()[dim] - 1, tensor.strides()[dim]);
  }
  return extent;
}

device::Access access_of(const Tensor& tensor, device::Mode mode) {
  const Extent extent = extent_of(tensor);
  if (extent.begin == extent.end) return {nullptr, 0, 0, mode};
  const auto element = static_cast<std::int64_t>(size_of(tensor.dtype()));
  // The bytes between the elements belong to other tensors and are kept, so this is not a plain write.
  if (mode == device::Mode::write && extent.end - extent.begin != tensor.num_elements()) mode = device::Mode::update;
  return {&tensor.storage()->memory(), static_cast<std::size_t>(bounded_product(extent.begin, element)),
          static_cast<std::size_t>(bounded_product(extent.end - extent.begin, element)), mode};
}

}  // namespace

device::Access read(const Tensor& tensor) { return access_of(tensor, device::Mode::read); }
device::Access write(const Tensor& tensor) { return access_of(tensor, device::Mode::write); }
device::Access update(const Tensor& tensor) { return access_of(tensor, device::Mode::update); }

}  // namespace lockstep
