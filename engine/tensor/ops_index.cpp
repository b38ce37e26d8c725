// index_select, index_add_, cat.
#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/kernels/elementwise.hpp"
#include "engine/kernels/index.hpp"
#include "engine/tensor/ops.hpp"
#include "engine/tensor/ops_launch.hpp"
#include "engine/tensor/ops_shards.hpp"

namespace lockstep::raw {

namespace {

// Normalizes the dim; throws Error for a scalar.
int dim_of(const char* name, const Tensor& a, int dim) {
  if (a.num_dims() == 0)
    throw Error(str(name, ": ", describe(a), " is a scalar and has no dim ", dim), "give it a dim with unsqueeze");
  return normalize_dim(dim, a.num_dims(), name);
}

Tensor checked_index(const char* name, const Tensor& a, const Tensor& index) {
  require_same_device(name, a, index);
  if (index.num_dims() > 1 || (index.dtype() != DType::int64 && index.dtype() != DType::int32))
    throw Error(str(name, ": the index is ", describe(index)), "give int64 of one dim");
  return contiguous(cast(index, DType::int64));
}

Tensor select_slices(const Tensor& a, int dim, const Tensor& index, kernels::Missing missing) {
  const Tensor at = checked_index("index_select", a, index);
  const int on = dim_of("index_select", a, dim);
  Dims sizes = a.sizes();
  sizes[on] = at.num_elements();
  const Tensor out = empty(sizes, a.dtype(), a.device());
  run_kernel(
      "index_select",
      [on, missing](kernels::Execution execution, const kernels::View& to, const kernels::View& from,
                    const kernels::View& rows) { kernels::index_select(execution, to, from, on, rows, missing); },
      out, contiguous(a), at);
  return out;
}

void add_slices(const Tensor& to, int dim, const Tensor& index, const Tensor& value, kernels::Missing missing) {
  const Tensor at = checked_index("index_add_", to, index);
  require_same_device("index_add_", to, value);
  const int on = dim_of("index_add_", to, dim);
  Dims sizes = to.sizes();
  sizes[on] = at.num_elements();
  if (!(value.sizes() == sizes))
    throw Error(str("index_add_: the value is ", to_text(value.sizes()), ", not ", to_text(sizes)),
                "give one row of the value per index");
  require_not_expanded("index_add_", to);
  if (value.num_elements() == 0) return to.bump_version();
  const bool rounds = is_floating(to.dtype()) && size_of(to.dtype()) == 2;
  if (rounds || !to.is_contiguous()) {
    // 16-bit sums are rounded once, after all rows of an index have been added.
    const Tensor sums = rounds ? cast(to, DType::float32) : clone(to);
    add_slices(sums, on, at, value, missing);
    return copy_(to, sums);
  }
  run_update(
      "index_add_",
      [on, missing](kernels::Execution execution, const kernels::View& out, const kernels::View& rows,
                    const kernels::View& from) { kernels::index_add(execution, out, on, rows, from, missing); },
      to, at, copy_if_overlapping(contiguous(cast(value, to.dtype())), to));
  to.bump_version();
}

}  // namespace

Tensor index_select(const Tensor& a, int dim, const Tensor& index) {
  return select_slices(a, dim, index, kernels::Missing::refused);
}
void index_add_(const Tensor& to, int dim, const Tensor& index, const Tensor& value) {
  add_slices(to, dim, index, value, kernels::Missing::refused);
}

void add_selected_(const Tensor& to, int dim, const Tensor& index, const Tensor& value) {
  add_slices(to, dim, index, value, kernels::Missing::impossible);
}

Tensor select_held(const Tensor& a, int dim, const Tensor& positions) {
  return select_slices(a, dim, positions, kernels::Missing::zeros);
}
void add_held_(const Tensor& to, int dim, const Tensor& positions, const Tensor& value) {
  add_slices(to, dim, positions, value, kernels::Missing::zeros);
}

Tensor positions_in(const char* operation, const Tensor& indices, std::int64_t size,
                    const std::vector<layout::Chunk>& held, std::optional<std::int64_t> ignored) {
  if (indices.dtype() != DType::int64 && indices.dtype() != DType::int32)
    throw Error(str(operation, ": the indices are ", describe(indices)), "give int64");
  const Tensor from = contiguous(cast(indices, DType::int64)), out = empty(from.sizes(), DType::int64, from.device());
  run_kernel(
      operation,
      [size, held, operation, ignored](kernels::Execution execution, const kernels::View& to,
                                       const kernels::View& index) {
        kernels::positions_in(execution, to, index, size, held, operation, ignored);
      },
      out, from);
  return out;
}

Tensor cat(const std::vector<Tensor>& tensors, int dim) {
  if (tensors.empty()) throw Error("cat: no tensors given", "give at least one");
  const Tensor& first = tensors.front();
  require_defined("cat", first);
  const int on = dim_of("cat", first, dim);
  DType dtype = first.dtype();
  Dims sizes = first.sizes();
  sizes[on] = 0;
  for (const Tensor& tensor : tensors) {
    require_same_device("cat", first, tensor);
    dtype = promote(dtype, tensor.dtype());
    Dims expected = first.sizes();
    bool fits = tensor.num_dims() == first.num_dims();
    if (fits) expected[on] = tensor.sizes()[on];
    if (!fits || !(tensor.sizes() == expected))
      throw Error(str("cat: ", to_text(tensor.sizes()), " does not match ", to_text(first.sizes()), " along dim ", on),
                  "give sizes that differ along that dim only");
    sizes[on] = checked_add(sizes[on], tensor.sizes()[on], "cat");
  }
  const Tensor out = empty(sizes, dtype, first.device());
  std::int64_t at = 0;
  for (const Tensor& tensor : tensors) {
    const std::int64_t size = tensor.sizes()[on];
    run_kernel("cat", kernels::copy, slice(out, on, at, at + size), tensor);
    at += size;
  }
  return out;
}

}  // namespace lockstep::raw
