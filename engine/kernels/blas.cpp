#include <limits>

#include <cblas.h>
#include <dnnl.h>
#include <dnnl_debug.h>
#include <omp.h>

#include "engine/core/error.hpp"
#include "engine/kernels/blas_internal.hpp"

namespace lockstep::kernels {

namespace {

// oneDNN takes as many threads as OpenMP would give the calling thread, and has no number of its own to set. A rank is
// one thread's worth of work, whatever thread calls; a threaded Kokkos keeps its own number.
class OnThisThreadAlone {
 public:
  OnThisThreadAlone() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~OnThisThreadAlone() {
    if (before_ != 1) omp_set_num_threads(before_);
  }
  OnThisThreadAlone(const OnThisThreadAlone&) = delete;
  OnThisThreadAlone& operator=(const OnThisThreadAlone&) = delete;

 private:
  int before_;
};

bool has_avx512() {
  static const bool result = (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
  return result;
}

// Whether OpenBLAS multiplies faster than oneDNN. Without AVX-512, oneDNN reads a left operand that lies by columns in
// place. That costs it up to half of its speed where columns lie a multiple of 1 KiB apart: 1024 x 256 times 256 x 256
// reaches 66 GFLOP/s there, 114 with OpenBLAS. Products that are smaller than the bound are 5 to 20 % faster with
// oneDNN in every lay. Only sizes and lay decide, so that equal products have equal bits.
bool openblas_is_faster(std::int64_t m, std::int64_t n, std::int64_t k, Lay lay_a) {
  constexpr double bound = 1 << 22;
  return lay_a.transposed && static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) > bound &&
         !has_avx512();
}

blasint whole(std::int64_t size) {
  LOCKSTEP_CHECK(size <= std::numeric_limits<blasint>::max(), "a product of ", size, " is past the library's range");
  return static_cast<blasint>(size);
}

CBLAS_TRANSPOSE order_of(Lay lay) { return lay.transposed ? CblasTrans : CblasNoTrans; }

}  // namespace

void product(float* out, std::int64_t leading, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
             Lay lay_a, const float* b, Lay lay_b, bool add_to_out) {
  if (!add_to_out && narrow_product(out, leading, m, n, k, a, lay_a, b, lay_b)) return;
  if (openblas_is_faster(m, n, k, lay_a)) {
    cblas_sgemm(CblasRowMajor, order_of(lay_a), order_of(lay_b), whole(m), whole(n), whole(k), 1.0f, a,
                whole(lay_a.leading), b, whole(lay_b.leading), add_to_out ? 1.0f : 0.0f, out, whole(leading));
    return;
  }
  const OnThisThreadAlone alone;
  const auto status = dnnl_sgemm(lay_a.transposed ? 'T' : 'N', lay_b.transposed ? 'T' : 'N', m, n, k, 1.0f, a,
                                 lay_a.leading, b, lay_b.leading, add_to_out ? 1.0f : 0.0f, out, leading);
  LOCKSTEP_CHECK(status == dnnl_success, "oneDNN refused a product of ", m, " x ", k, " and ", k, " x ", n,
                 " (leading ", lay_a.leading, ", ", lay_b.leading, "): ", dnnl_status2str(status));
}

void product(double* out, std::int64_t leading, std::int64_t m, std::int64_t n, std::int64_t k, const double* a,
             Lay lay_a, const double* b, Lay lay_b, bool add_to_out) {
  cblas_dgemm(CblasRowMajor, order_of(lay_a), order_of(lay_b), whole(m), whole(n), whole(k), 1.0, a,
              whole(lay_a.leading), b, whole(lay_b.leading), add_to_out ? 1.0 : 0.0, out, whole(leading));
}

}  // namespace lockstep::kernels
