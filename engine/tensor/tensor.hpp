// A tensor: sizes, strides and an offset over a storage. `Tensor` is a handle: copies of it refer to the same tensor,
// which same_as() tests. Views are new tensors over the same storage.
//
// A tensor with a layout is a sharded tensor. Its storage holds the local shard and all sizes here are the LOCAL ones;
// the layout holds the global sizes. engine/mesh/sharded.hpp makes sharded tensors.
//
// Operations without gradients are in ops.hpp (namespace lockstep::raw), differentiable ones in engine/autograd/ops.hpp
// (namespace lockstep::ops).
//
//   Tensor t = empty({2, 3}, DType::float32, device);
//   Tensor row = select(t, 0, 1);            // a view of 3 elements
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/shape.hpp"
#include "engine/core/types.hpp"
#include "engine/device/capabilities.hpp"
#include "engine/device/stream.hpp"
#include "engine/tensor/number.hpp"
#include "engine/tensor/storage.hpp"

namespace lockstep {

namespace layout {
struct ShardedLayout;
}
using LayoutPtr = std::shared_ptr<const layout::ShardedLayout>;  // null: a plain tensor

// The base of the state that engine/autograd attaches to a tensor.
struct AutogradMeta {
  virtual ~AutogradMeta() = default;
};

class Tensor;

struct TensorImpl {
  TensorImpl() = default;

  StoragePtr storage;
  Dims sizes;
  Dims strides;             // in elements
  std::int64_t offset = 0;  // in elements
  DType dtype = DType::float32;
  std::string name;  // the fully qualified name of a parameter; else empty
  std::unique_ptr<AutogradMeta> autograd;
  // Only make_sharded (engine/mesh/sharded.hpp) and sharded_like give a tensor a layout. It never changes afterwards.
  const LayoutPtr layout;

 private:
  friend Tensor make_sharded(const Tensor& local, LayoutPtr layout);
  friend Tensor sharded_like(const Tensor& local, const Tensor& tensor);
  // The same view of the same storage, with a layout and without gradient history.
  TensorImpl(const TensorImpl& local, LayoutPtr its_layout)
      : storage(local.storage),
        sizes(local.sizes),
        strides(local.strides),
        offset(local.offset),
        dtype(local.dtype),
        layout(std::move(its_layout)) {}
};

class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(std::shared_ptr<TensorImpl> impl) : impl_(std::move(impl)) {}
  bool defined() const { return impl_ != nullptr; }
  bool same_as(const Tensor& other) const { return impl_ == other.impl_; }
  TensorImpl& impl() const { return *impl_; }
  const std::shared_ptr<TensorImpl>& impl_ptr() const { return impl_; }

  const Dims& sizes() const { return impl_->sizes; }
  const Dims& strides() const { return impl_->strides; }
  std::int64_t offset() const { return impl_->offset; }
  int num_dims() const { return impl_->sizes.size(); }
  std::int64_t size(int dim) const { return impl_->sizes[normalize_dim(dim, num_dims(), "size")]; }
  std::int64_t num_elements() const { return lockstep::num_elements(impl_->sizes); }
  std::int64_t num_bytes() const {
    return bounded_product(num_elements(), static_cast<std::int64_t>(size_of(dtype())));
  }
  DType dtype() const { return impl_->dtype; }
  device::Device device() const { return impl_->storage->device(); }
  const StoragePtr& storage() const { return impl_->storage; }
  bool is_meta() const { return !device::computes(device()); }
  bool is_contiguous() const { return lockstep::is_contiguous(impl_->sizes, impl_->strides); }
  const LayoutPtr& layout() const { return impl_->layout; }
  bool is_sharded() const { return layout() != nullptr; }
  const std::string& name() const { return impl_->name; }
  void set_name(std::string name) const { impl_->name = std::move(name); }
  void bump_version() const { impl_->storage->bump_version(); }

 private:
  std::shared_ptr<TensorImpl> impl_;
};

// The smallest range of bytes that holds all elements, as an operand of a launch. write() of a tensor with gaps between
// its elements is an update, because the bytes in the gaps are kept. Throws Error when the memory is released or meta.
device::Access read(const Tensor& tensor);
device::Access write(const Tensor& tensor);
device::Access update(const Tensor& tensor);

// ---- factories ----
// Contiguous tensors of any type, filled on the current stream of the device; their memory has the purpose of the
// current PurposeScope. Throws Error for sizes whose bytes exceed max_tensor_bytes, for a device that is not available,
// and when the memory limit is reached.
Tensor empty(const Dims& sizes, DType dtype, device::Device device);
// On cpu, in memory that copies to and from `user` may use asynchronously (device::allocate_pinned).
Tensor empty_pinned(const Dims& sizes, DType dtype, device::Device user);
Tensor empty_like(const Tensor& like);  // contiguous, without a layout
Tensor zeros_like(const Tensor& like);  // contiguous, with the layout of `like`
Tensor full(const Dims& sizes, Number value, DType dtype, device::Device device);  // int64 holds integers exactly
Tensor zeros(const Dims& sizes, DType dtype, device::Device device);
Tensor ones(const Dims& sizes, DType dtype, device::Device device);
// start, start + step, ... up to and without `end`. Throws Error for a step that does not lead from start to end.
Tensor arange(double start, double end, double step, DType dtype, device::Device device);
// `values` in row-major order, converted to dtype. Throws Error when their number is not that of the elements.
Tensor from_values(const std::vector<double>& values, const Dims& sizes, DType dtype, device::Device device);
Tensor from_values(const std::vector<std::int64_t>& values, const Dims& sizes, DType dtype, device::Device device);
// Random numbers: drawn on the host by the generator of the current rank in memory order, then copied to the device. On
// meta nothing is drawn. rand (from 0 to 1), randn, uniform_ and normal_ need a floating type; the last two refuse an
// expanded tensor. randint draws from low to high - 1. randperm is a permutation of 0 .. count - 1, int64.
Tensor rand(const Dims& sizes, DType dtype, device::Device device);
Tensor randn(const Dims& sizes, DType dtype, device::Device device);
Tensor randint(std::int64_t low, std::int64_t high, const Dims& sizes, DType dtype, device::Device device);
Tensor randperm(std::int64_t count, device::Device device);
void uniform_(const Tensor& tensor, double low, double high);
void normal_(const Tensor& tensor, double mean, double std);

// ---- views ----
// New tensors over the same storage, of any type, without a layout; no data moves. Negative dims count from the end.
// Each throws Error that names the operation, the sizes and a remedy.
Tensor view(const Tensor& tensor, const Dims& sizes);  // as many elements; one size may be -1; Error if it needs a copy
// Whether view() is possible without a copy. Throws Error when the number of elements differs.
bool is_viewable_as(const Tensor& tensor, const Dims& sizes);
Tensor transpose(const Tensor& tensor, int dim0, int dim1);
Tensor permute(const Tensor& tensor, const Dims& order);  // dim i of the result is dim order[i]
Tensor slice(const Tensor& tensor, int dim, std::int64_t begin, std::int64_t end);  // clamped as in Python
Tensor select(const Tensor& tensor, int dim, std::int64_t index);                   // removes the dim
Tensor expand(const Tensor& tensor, const Dims& sizes);  // repeats dims of size 1, adds dims in front
Tensor squeeze(const Tensor& tensor, int dim);           // removes the dim if its size is 1
Tensor unsqueeze(const Tensor& tensor, int dim);
// Throws Error when an element would be outside the storage.
Tensor as_strided(const Tensor& tensor, const Dims& sizes, const Dims& strides, std::int64_t offset);
Tensor alias(const Tensor& tensor);  // the same view and layout as a new tensor, without gradient history

// ---- layouts ----
// Operations without gradients (ops.hpp) compute on local shards and return tensors without a layout. These functions
// convert between a sharded tensor and its local shard.
// The local shard as a plain tensor over the same storage, without gradient history. `tensor` itself when it is plain.
Tensor local_tensor(const Tensor& tensor);
// A tensor over the storage of `local` with the layout of `tensor`, without gradient history. `local` must have the
// local sizes of `tensor`. `local` itself when `tensor` is plain.
//
//   sharded_like(raw::mul(local_tensor(gradient), 0.5), gradient)
Tensor sharded_like(const Tensor& local, const Tensor& tensor);

// ---- reading on the host ----
// Waits for the current stream. The elements are in row-major order. Throws Error for a meta tensor.
double item(const Tensor& tensor);  // throws Error unless the tensor has one element
std::vector<double> to_doubles(const Tensor& tensor);
// The same without rounding, for an integer or bool tensor.
std::int64_t integer_item(const Tensor& tensor);
std::vector<std::int64_t> to_integers(const Tensor& tensor);
std::vector<std::byte> to_bytes(const Tensor& tensor);

std::string describe(const Tensor& tensor);  // "float32 (2, 3) on sim:0"

}  // namespace lockstep
