#include "engine/kernels/gemm.hpp"

#include <cstddef>

#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/kernels/backend.hpp"
#include "engine/kernels/blas_internal.hpp"
#include "engine/kernels/cublas_internal.hpp"
#include "engine/kernels/elementwise.hpp"
#include "engine/kernels/portable_product_internal.hpp"

namespace lockstep::kernels {

namespace {

MatrixLayout layout_of(std::int64_t rows, std::int64_t columns, std::int64_t row_stride, std::int64_t column_stride) {
  // The stride along a dim of size 1 is never used. The libraries still require it to be at least the other size.
  if (rows == 1 && (column_stride == 1 || columns == 1)) return {true, false, columns};
  if (columns == 1 && row_stride == 1) return {true, false, 1};
  if (column_stride == 1 && row_stride >= columns) return {true, false, row_stride};
  if (columns == 1 && row_stride >= 1) return {true, false, row_stride};
  if (row_stride == 1 && column_stride >= rows) return {true, true, column_stride};
  if (rows == 1 && column_stride >= 1) return {true, true, column_stride};
  return {};
}

MatrixLayout layout_of(const View& matrix) {
  const int n = matrix.sizes.size();
  return layout_of(matrix.sizes[n - 2], matrix.sizes[n - 1], matrix.strides[n - 2], matrix.strides[n - 1]);
}

struct Layouts {
  MatrixLayout a, b;
  std::int64_t leading;  // of the result
};

Layouts layouts_of(const View& out, const View& a, const View& b) {
  const MatrixLayout layout_a = layout_of(a), layout_b = layout_of(b), layout_out = layout_of(out);
  LOCKSTEP_CHECK(layout_out.supported && !layout_out.transposed, "matmul to strides ", to_text(out.strides));
  LOCKSTEP_CHECK(layout_a.supported && layout_b.supported, "matmul of ", to_text(a.sizes), " with strides ",
                 to_text(a.strides), " and ", to_text(b.sizes), " with strides ", to_text(b.strides));
  return {layout_a, layout_b, layout_out.leading};
}

template <class T>
void matmul_of(const View& out, const View& a, const View& b) {
  const int num_dims = out.sizes.size();
  const std::int64_t m = out.sizes[num_dims - 2], n = out.sizes[num_dims - 1], k = a.sizes[num_dims - 1];
  const Layouts layouts = layouts_of(out, a, b);
  std::int64_t batches = 1;
  for (int dim = 0; dim < num_dims - 2; ++dim) batches = bounded_product(batches, out.sizes[dim]);
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    std::int64_t rest = batch, at_a = 0, at_b = 0, at_out = 0;
    for (int dim = num_dims - 3; dim >= 0; --dim) {
      const std::int64_t at = rest % out.sizes[dim];
      rest /= out.sizes[dim];
      at_a += element_offset(at, a.strides[dim]);
      at_b += element_offset(at, b.strides[dim]);
      at_out += element_offset(at, out.strides[dim]);
    }
    product(static_cast<T*>(out.data) + at_out, layouts.leading, m, n, k, static_cast<const T*>(a.data) + at_a,
            layouts.a, static_cast<const T*>(b.data) + at_b, layouts.b, false);
  }
}

template <class F>
void dispatch_product(DType dtype, F&& f) {
  if (dtype == DType::float32) return f.template operator()<float>();
  LOCKSTEP_CHECK(dtype == DType::float64, "a product of ", name_of(dtype));
  f.template operator()<double>();
}

// By the library of the GPU.
void library_product(Execution on, const View& out, const View& a, const View& b, bool adds) {
  const int num_dims = out.sizes.size();
  cublas::Product product;
  product.dtype = out.dtype;
  product.m = out.sizes[num_dims - 2];
  product.n = out.sizes[num_dims - 1];
  product.k = a.sizes[num_dims - 1];
  product.adds = adds;
  const Layouts layouts = layouts_of(out, a, b);
  product.layout_a = layouts.a;
  product.layout_b = layouts.b;
  product.leading = layouts.leading;
  // The last of the leading dims is one call.
  const int last = num_dims - 3;
  if (last >= 0) {
    product.batches = out.sizes[last];
    product.stride_out = out.strides[last];
    product.stride_a = a.strides[last];
    product.stride_b = b.strides[last];
  }
  std::int64_t num_calls = 1;
  for (int dim = 0; dim < last; ++dim) num_calls = bounded_product(num_calls, out.sizes[dim]);
  const auto element = static_cast<std::int64_t>(size_of(out.dtype));
  for (std::int64_t call = 0; call < num_calls; ++call) {
    std::int64_t rest = call, at_a = 0, at_b = 0, at_out = 0;
    for (int dim = last - 1; dim >= 0; --dim) {
      const std::int64_t at = rest % out.sizes[dim];
      rest /= out.sizes[dim];
      at_a += element_offset(at, a.strides[dim]);
      at_b += element_offset(at, b.strides[dim]);
      at_out += element_offset(at, out.strides[dim]);
    }
    product.out = static_cast<std::byte*>(out.data) + bounded_product(at_out, element);
    product.a = static_cast<const std::byte*>(a.data) + bounded_product(at_a, element);
    product.b = static_cast<const std::byte*>(b.data) + bounded_product(at_b, element);
    cublas::multiply(on, product);
  }
}

}  // namespace

bool is_product_operand(const View& matrix) { return layout_of(matrix).supported; }

void matmul(Execution on, const View& out, const View& a, const View& b) {
  if (num_elements(out) == 0) return;
  if (a.sizes.back() == 0) return fill(on, out, 0.0);
  if (on.space == Space::cuda) return library_product(on, out, a, b, false);
  if (on.space != Space::host) return portable_product(on, "lockstep::matmul", out, a, b, false);
  initialize();
  dispatch_product(out.dtype, [&]<class T>() { matmul_of<T>(out, a, b); });
}

void linear(Execution on, const View& out, const View& x, const View& weight, const View* bias) {
  if (num_elements(out) == 0) return;
  if (bias) {
    View rows = *bias;
    rows.sizes = out.sizes;
    rows.strides = Dims{0, bias->strides[0]};
    copy(on, out, rows);
  } else if (x.sizes[1] == 0) {
    fill(on, out, 0.0);
  }
  if (x.sizes[1] == 0) return;
  if (on.space != Space::host) {
    const View transposed{weight.data, weight.dtype, Dims{weight.sizes[1], weight.sizes[0]},
                          Dims{weight.strides[1], weight.strides[0]}};
    if (on.space == Space::cuda) return library_product(on, out, x, transposed, bias != nullptr);
    return portable_product(on, "lockstep::linear", out, x, transposed, bias != nullptr);
  }
  initialize();
  dispatch_product(out.dtype, [&]<class T>() {
    const MatrixLayout layout_x = layout_of(x);
    const MatrixLayout layout_w = layout_of(weight.sizes[1], weight.sizes[0], weight.strides[1], weight.strides[0]);
    LOCKSTEP_CHECK(layout_x.supported && layout_w.supported, "linear of strides ", to_text(x.strides), " and ",
                   to_text(weight.strides));
    product(static_cast<T*>(out.data), out.sizes[1], out.sizes[0], out.sizes[1], x.sizes[1],
            static_cast<const T*>(x.data), layout_x, static_cast<const T*>(weight.data), layout_w, bias != nullptr);
  });
}

}  // namespace lockstep::kernels
