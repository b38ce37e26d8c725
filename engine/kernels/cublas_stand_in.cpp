// In place of cublas.cpp in a build without CUDA, for the stand-in of CUDA: the portable body computes the product, as
// it is described to the library. It refuses a description that cuBLAS refuses.
#include "engine/core/error.hpp"
#include "engine/kernels/cublas_internal.hpp"
#include "engine/kernels/portable_product_internal.hpp"

namespace lockstep::kernels::cublas {

namespace {

// `batches` matrices. The matrix is not written through the view of a const operand.
View matrices(const Product& of, const void* data, std::int64_t rows, std::int64_t columns, const MatrixLayout& layout,
              std::int64_t stride) {
  LOCKSTEP_CHECK(rows > 0 && columns > 0 && layout.leading >= (layout.transposed ? rows : columns),
                 "cuBLAS refuses a matrix of ", rows, " x ", columns, layout.transposed ? ", transposed" : "",
                 ", whose rows are ", layout.leading, " elements apart");
  const Dims strides = layout.transposed ? Dims{stride, 1, layout.leading} : Dims{stride, layout.leading, 1};
  return {const_cast<void*>(data), of.dtype, Dims{of.batches, rows, columns}, strides};
}

}  // namespace

void multiply(device::Execution on, const Product& of) {
  LOCKSTEP_CHECK(of.batches > 0, "a product of ", of.batches, " batches");
  portable_product(on, "lockstep::cublas", matrices(of, of.out, of.m, of.n, {true, false, of.leading}, of.stride_out),
                   matrices(of, of.a, of.m, of.k, of.layout_a, of.stride_a),
                   matrices(of, of.b, of.k, of.n, of.layout_b, of.stride_b), of.adds);
}

}  // namespace lockstep::kernels::cublas
