// A tensor: sizes, strides and an offset over a storage. A handle: copies share it; two handles are the same tensor
// when same_as() says so. Views share the storage. A tensor may carry a layout (it is then a sharded tensor and the
// storage is the local shard); all sizes here are then the LOCAL ones, and the layout knows the global ones.
//
// Operations without gradients are in ops.hpp (namespace lockstep::raw); differentiable ones in engine/autograd/ops.hpp
// (namespace lockstep::ops).
//
//   Tensor t = empty({2, 3}, DType::float32, device);
//   Tensor row = select(t, 0, 1);            // a view
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/shape.hpp"
#include "engine/core/types.hpp"
#include "engine/device/stream.hpp"
#include "engine/tensor/storage.hpp"

namespace lockstep {

namespace layout {
struct ShardedLayout;
}
using LayoutPtr = std::shared_ptr<const layout::ShardedLayout>;  // null: a plain tensor

// What engine/autograd hangs on a tensor.
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
  std::string name;  // of a parameter, fully qualified; else empty
  std::unique_ptr<AutogradMeta> autograd;
  // A tensor gets its layout where it is made, by make_sharded (engine/mesh/sharded.hpp) or sharded_like, and keeps it.
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
  bool is_meta() const { return device().kind == device::Kind::meta; }
  bool is_contiguous() const { return lockstep::is_contiguous(impl_->sizes, impl_->strides); }
  const LayoutPtr& layout() const { return impl_->layout; }
  bool is_sharded() const { return layout() != nullptr; }
  const std::string& name() const { return impl_->name; }
  void set_name(std::string name) const { impl_->name = std::move(name); }
  void bump_version() const { impl_->storage->bump_version(); }

 private:
  std::shared_ptr<TensorImpl> impl_;
};

// The smallest range of bytes that holds all elements, as a launch wants it.
device::Access read(const Tensor& tensor);
device::Access write(const Tensor& tensor);
device::Access update(const Tensor& tensor);

// Factories: contiguous, on the current stream. The purpose is the current PurposeScope's.
Tensor empty(const Dims& sizes, DType dtype, device::Device device, bool pinned = false);
Tensor empty_like(const Tensor& like);  // contiguous, without a layout
Tensor zeros_like(const Tensor& like);  // contiguous, with the layout of `like`
Tensor full(const Dims& sizes, double value, DType dtype, device::Device device);
Tensor zeros(const Dims& sizes, DType dtype, device::Device device);
Tensor ones(const Dims& sizes, DType dtype, device::Device device);
Tensor arange(double start, double end, double step, DType dtype, device::Device device);
// From host values, converted to dtype.
Tensor from_values(const std::vector<double>& values, const Dims& sizes, DType dtype, device::Device device);
Tensor from_values(const std::vector<std::int64_t>& values, const Dims& sizes, DType dtype, device::Device device);
// Random: drawn on the host by the current rank's generator, in memory order, then copied.
Tensor rand(const Dims& sizes, DType dtype, device::Device device);
Tensor randn(const Dims& sizes, DType dtype, device::Device device);
Tensor randint(std::int64_t low, std::int64_t high, const Dims& sizes, DType dtype, device::Device device);
Tensor randperm(std::int64_t count, device::Device device);  // int64
void uniform_(const Tensor& tensor, double low, double high);
void normal_(const Tensor& tensor, double mean, double std);

// Views: no data moves. Errors name the operation, the sizes and what would work.
Tensor view(const Tensor& tensor, const Dims& sizes);  // one size may be -1; the tensor must be viewable so
// Whether view() can do it without moving data; throws Error when the sizes do not hold the tensor's elements at all.
bool is_viewable_as(const Tensor& tensor, const Dims& sizes);
Tensor transpose(const Tensor& tensor, int dim0, int dim1);
Tensor permute(const Tensor& tensor, const Dims& order);
Tensor slice(const Tensor& tensor, int dim, std::int64_t begin, std::int64_t end);  // clamped as Python's
Tensor select(const Tensor& tensor, int dim, std::int64_t index);
Tensor expand(const Tensor& tensor, const Dims& sizes);
Tensor squeeze(const Tensor& tensor, int dim);
Tensor unsqueeze(const Tensor& tensor, int dim);
Tensor as_strided(const Tensor& tensor, const Dims& sizes, const Dims& strides, std::int64_t offset);
Tensor alias(const Tensor& tensor);  // the same view and layout as a new tensor, without gradient history

// ---- layouts ----
// Operations on local shards (ops.hpp) know no layouts; these two lead from a sharded tensor to its local shard and back.
// The local shard: a plain view of the same storage, without gradient history. A plain tensor is returned itself.
Tensor local_tensor(const Tensor& tensor);
// `local`, which has the local sizes of `tensor`, as a tensor with the layout of `tensor`: shares the storage of
// `local`, has no gradient history. `local` itself when `tensor` is plain.
//
//   sharded_like(raw::mul(local_tensor(gradient), 0.5), gradient)
Tensor sharded_like(const Tensor& local, const Tensor& tensor);

// To the host: waits for the current stream. Contiguous copies.
double item(const Tensor& tensor);  // one element; throws Error otherwise
std::vector<double> to_doubles(const Tensor& tensor);
std::vector<std::byte> to_bytes(const Tensor& tensor);
std::string describe(const Tensor& tensor);  // "float32 (2, 3) on sim:0"

}  // namespace lockstep
