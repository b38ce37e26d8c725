#include <limits>

#include <cblas.h>
#include <dnnl.h>
#include <dnnl_debug.h>
#include <omp.h>

#include "engine/core/error.hpp"
#include "engine/kernels/blas_internal.hpp"

namespace lockstep::kernels {

namespace {

// oneDNN uses as many threads as OpenMP gives the calling thread and has no setting for it. A product must run on the
// calling thread alone, because ranks share the cores. The setting of a threaded Kokkos is restored at the end.
class SingleThreadScope {
 public:
  SingleThreadScope() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~SingleThreadScope() {
    if (before_ != 1) omp_set_num_threads(before_);
  }
  SingleThreadScope(const SingleThreadScope&) = delete;
  SingleThreadScope& operator=(const SingleThreadScope&) = delete;

 private:
  int before_;
};

bool has_avx512() {
  static const bool result = (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
  return result;
}

// Whether OpenBLAS multiplies faster than oneDNN. Without AVX-512, oneDNN reads a column-major left operand in place.
// This halves its speed when the column stride is a multiple of 1 KiB: 1024 x 256 times 256 x 256 reaches 66 GFLOP/s,
// against 114 GFLOP/s with OpenBLAS. Products below the bound are 5 to 20 % faster with oneDNN in every layout. The
// choice depends on sizes and layout only, so equal products have equal bits.
bool openblas_is_faster(std::int64_t m, std::int64_t n, std::int64_t k, MatrixLayout layout_a) {
  constexpr double bound = 1 << 22;
  return layout_a.transposed && static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) > bound &&
         !has_avx512();
}

blasint blas_int(std::int64_t size) {
  LOCKSTEP_CHECK(size <= std::numeric_limits<blasint>::max(), "a product of ", size, " is past the library's range");
  return static_cast<blasint>(size);
}

CBLAS_TRANSPOSE order_of(MatrixLayout lay) { return lay.transposed ? CblasTrans : CblasNoTrans; }

}  // namespace

void product(float* out, std::int64_t leading, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
             MatrixLayout layout_a, const float* b, MatrixLayout layout_b, bool add_to_out) {
  if (!add_to_out && narrow_product(out, leading, m, n, k, a, layout_a, b, layout_b)) return;
  if (openblas_is_faster(m, n, k, layout_a)) {
    cblas_sgemm(CblasRowMajor, order_of(layout_a), order_of(layout_b), blas_int(m), blas_int(n), blas_int(k), 1.0f, a,
                blas_int(layout_a.leading), b, blas_int(layout_b.leading), add_to_out ? 1.0f : 0.0f, out,
                blas_int(leading));
    return;
  }
  const SingleThreadScope alone;
  const auto status = dnnl_sgemm(layout_a.transposed ? 'T' : 'N', layout_b.transposed ? 'T' : 'N', m, n, k, 1.0f, a,
                                 layout_a.leading, b, layout_b.leading, add_to_out ? 1.0f : 0.0f, out, leading);
  LOCKSTEP_CHECK(status == dnnl_success, "oneDNN refused a product of ", m, " x ", k, " and ", k, " x ", n,
                 " (leading ", layout_a.leading, ", ", layout_b.leading, "): ", dnnl_status2str(status));
}

void product(double* out, std::int64_t leading, std::int64_t m, std::int64_t n, std::int64_t k, const double* a,
             MatrixLayout layout_a, const double* b, MatrixLayout layout_b, bool add_to_out) {
  cblas_dgemm(CblasRowMajor, order_of(layout_a), order_of(layout_b), blas_int(m), blas_int(n), blas_int(k), 1.0, a,
              blas_int(layout_a.leading), b, blas_int(layout_b.leading), add_to_out ? 1.0 : 0.0, out,
              blas_int(leading));
}

}  // namespace lockstep::kernels
