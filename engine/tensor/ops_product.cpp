// matmul and linear. The 16-bit types are computed in float32 and rounded once. float32 is computed in float64 if the
// rank has set exact products.
#include <algorithm>

#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/kernels/gemm.hpp"
#include "engine/tensor/ops.hpp"
#include "engine/tensor/ops_launch.hpp"
#include "engine/tensor/ops_network.hpp"

namespace lockstep::raw {

namespace {

// The type in which products of a type are computed.
DType product_type(DType dtype) {
  if (size_of(dtype) == 2) dtype = DType::float32;
  return dtype == DType::float32 && are_float32_products_exact() ? DType::float64 : dtype;
}

// `a` itself if the BLAS accepts its strides (a dim of the matrix has stride 1), else a contiguous copy.
Tensor product_operand(const Tensor& a) { return kernels::is_product_operand(view_of(a)) ? a : contiguous(a); }

void require_product_types(const char* name, const Tensor& a, const Tensor& b) {
  require_same_device(name, a, b);
  require_floating(name, a);
  require_floating(name, b);
  if (a.dtype() != b.dtype())
    throw Error(str(name, ": operands of different types: ", describe(a), " and ", describe(b)),
                "cast one of them; products do not promote types");
}

[[noreturn]] void refuse_sizes(const char* name, const Tensor& a, const Tensor& b, const char* remedy) {
  throw Error(str(name, ": inner sizes do not match: ", to_text(a.sizes()), " x ", to_text(b.sizes())), remedy);
}

// A service of the rank.
struct ProductPrecision {
  explicit ProductPrecision(RankContext&) {}
  bool exact = false;
};

}  // namespace

void set_float32_products_exact(bool exact) { RankContext::current().service<ProductPrecision>().exact = exact; }
bool are_float32_products_exact() {
  RankContext* const context = RankContext::current_or_null();
  return context && context->has_service<ProductPrecision>() && context->service<ProductPrecision>().exact;
}

void matmul_into(const Tensor& out, const Tensor& a, const Tensor& b) {
  require_product_types("matmul", a, b);
  LOCKSTEP_CHECK(
      a.num_dims() >= 2 && a.num_dims() == b.num_dims() && out.num_dims() == a.num_dims() && a.size(-1) == b.size(-2),
      "matmul into ", describe(out), ": ", describe(a), " x ", describe(b));
  if (out.num_elements() == 0) return;
  if (product_type(a.dtype()) != a.dtype()) return copy_(out, matmul(a, b));
  run_kernel("matmul", kernels::matmul, out, product_operand(a), product_operand(b));
}

Tensor matmul(const Tensor& a, const Tensor& b) {
  require_product_types("matmul", a, b);
  if (a.num_dims() == 0 || b.num_dims() == 0)
    refuse_sizes("matmul", a, b, "a scalar has no inner dim: multiply with mul");
  if (const DType wide = product_type(a.dtype()); wide != a.dtype())
    return cast(matmul(cast(a, wide), cast(b, wide)), a.dtype());
  // A vector is a matrix of one row or one column; that dim is missing in the result.
  const bool row = a.num_dims() == 1, column = b.num_dims() == 1;
  Tensor x = row ? unsqueeze(a, 0) : a;
  Tensor y = column ? unsqueeze(b, 1) : b;
  if (x.size(-1) != y.size(-2)) refuse_sizes("matmul", a, b, "transpose one of the operands");
  const std::int64_t m = x.size(-2), k = x.size(-1), n = y.size(-1);

  Dims batch_x, batch_y;
  for (int dim = 0; dim < x.num_dims() - 2; ++dim) batch_x.push_back(x.sizes()[dim]);
  for (int dim = 0; dim < y.num_dims() - 2; ++dim) batch_y.push_back(y.sizes()[dim]);
  const Dims batch = broadcast_sizes(batch_x, batch_y, "matmul");
  Dims out_sizes = batch;
  if (!row) out_sizes.push_back(m);
  if (!column) out_sizes.push_back(n);
  const Tensor out = empty(out_sizes, a.dtype(), a.device());
  if (out.num_elements() == 0) return out;

  Dims full = batch;
  full.push_back(m);
  full.push_back(n);
  Tensor result = view(out, full);
  if (batch_y.empty() && !batch_x.empty()) {
    // The batches share the right operand, so they are additional rows of one product.
    x = contiguous(x);
    const std::int64_t rows = bounded_product(num_elements(batch_x), m);
    x = view(x, Dims{rows, k});
    result = view(out, Dims{rows, n});
  } else {
    x = product_operand(x);
    y = product_operand(y);
    Dims sizes_x = batch, sizes_y = batch;
    for (std::int64_t size : {m, k}) sizes_x.push_back(size);
    for (std::int64_t size : {k, n}) sizes_y.push_back(size);
    if (!(x.sizes() == sizes_x)) x = expand(x, sizes_x);
    if (!(y.sizes() == sizes_y)) y = expand(y, sizes_y);
  }
  run_kernel("matmul", kernels::matmul, result, product_operand(x), product_operand(y));
  return out;
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor* bias) {
  require_product_types("linear", x, weight);
  if (weight.num_dims() != 2 || x.num_dims() == 0 || x.size(-1) != weight.size(1))
    refuse_sizes("linear", x, weight, "give x (..., in) and a weight (out, in)");
  if (bias) {
    require_product_types("linear", x, *bias);
    if (bias->num_dims() != 1 || bias->size(0) != weight.size(0))
      throw Error(str("linear: bias ", to_text(bias->sizes()), " for a weight of ", to_text(weight.sizes())),
                  str("give a bias (", weight.size(0), ")"));
  }
  if (const DType wide = product_type(x.dtype()); wide != x.dtype()) {
    const Tensor wide_bias = bias ? cast(*bias, wide) : Tensor();
    return cast(linear(cast(x, wide), cast(weight, wide), bias ? &wide_bias : nullptr), x.dtype());
  }
  Dims out_sizes = x.sizes();
  out_sizes[out_sizes.size() - 1] = weight.size(0);
  const Tensor out = empty(out_sizes, x.dtype(), x.device());
  if (out.num_elements() == 0) return out;
  const std::int64_t rows = out.num_elements() / weight.size(0);
  const Tensor flat = product_operand(x.num_dims() == 2 ? x : view(contiguous(x), Dims{rows, x.size(-1)}));
  const Tensor flat_out = view(out, Dims{rows, weight.size(0)});
  const Tensor w = product_operand(weight);
  if (bias) {
    run_kernel(
        "linear",
        [](kernels::Execution execution, const kernels::View& to, const kernels::View& from, const kernels::View& by,
           const kernels::View& plus) { kernels::linear(execution, to, from, by, &plus); },
        flat_out, flat, w, *bias);
  } else {
    run_kernel(
        "linear",
        [](kernels::Execution execution, const kernels::View& to, const kernels::View& from, const kernels::View& by) {
          kernels::linear(execution, to, from, by, nullptr);
        },
        flat_out, flat, w);
  }
  return out;
}

}  // namespace lockstep::raw
