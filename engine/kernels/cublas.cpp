#include <array>
#include <map>
#include <mutex>
#include <string>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"
#include "engine/kernels/cublas_internal.hpp"
#include "engine/kernels/kokkos_launch_internal.hpp"

namespace lockstep::kernels::cublas {

namespace {

void check(const char* call, cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw ResourceError(str(call, ": ", cublasLtGetStatusName(status), ": ", cublasLtGetStatusString(status)),
                      "see the documentation of cuBLAS for this status");
}

// Destroys what a function of cuBLAS created.
template <class Handle, cublasStatus_t (*destroy)(Handle)>
struct Owned {
  Handle handle = nullptr;
  Owned() = default;
  ~Owned() {
    if (handle != nullptr) destroy(handle);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
};

template <class Value>
void set(cublasLtMatmulDesc_t of, cublasLtMatmulDescAttributes_t attribute, Value value) {
  check("cublasLtMatmulDescSetAttribute", cublasLtMatmulDescSetAttribute(of, attribute, &value, sizeof value));
}
template <class Value>
void set(cublasLtMatrixLayout_t of, cublasLtMatrixLayoutAttribute_t attribute, Value value) {
  check("cublasLtMatrixLayoutSetAttribute", cublasLtMatrixLayoutSetAttribute(of, attribute, &value, sizeof value));
}
template <class Value>
void set(cublasLtMatmulPreference_t of, cublasLtMatmulPreferenceAttributes_t attribute, Value value) {
  check("cublasLtMatmulPreferenceSetAttribute",
        cublasLtMatmulPreferenceSetAttribute(of, attribute, &value, sizeof value));
}

// A matrix of cuBLAS, whose columns are contiguous.
struct Matrix : Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy> {
  Matrix(cudaDataType_t type, std::int64_t rows, std::int64_t columns, std::int64_t leading, const Product& of,
         std::int64_t stride) {
    check("cublasLtMatrixLayoutCreate", cublasLtMatrixLayoutCreate(&handle, type, static_cast<std::uint64_t>(rows),
                                                                   static_cast<std::uint64_t>(columns), leading));
    set(handle, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(of.batches));
    set(handle, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
  }
};

struct Algorithm {
  cublasLtMatmulAlgo_t algorithm{};
  std::size_t workspace_bytes = 0;
};

// The transposed product, out' = b' x a': row-major matrices are the library's transposed.
class Plan {
 public:
  explicit Plan(const Product& of)
      : type_(of.dtype == DType::float32 ? CUDA_R_32F : CUDA_R_64F),
        b_(matrix(of.layout_b, of.k, of.n, of, of.stride_b)),
        a_(matrix(of.layout_a, of.m, of.k, of, of.stride_a)),
        out_(type_, of.n, of.m, of.leading, of, of.stride_out) {
    check("cublasLtMatmulDescCreate",
          cublasLtMatmulDescCreate(
              &of_.handle, of.dtype == DType::float32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_64F_PEDANTIC,
              type_));
    set(of_.handle, CUBLASLT_MATMUL_DESC_TRANSA, of.layout_b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(of_.handle, CUBLASLT_MATMUL_DESC_TRANSB, of.layout_a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  }

  // An algorithm may split the inner dim, if it adds the parts in a fixed order: in a workspace, and not in the result.
  Algorithm choose(cublasLtHandle_t library, std::size_t element) const {
    Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> wanted;
    check("cublasLtMatmulPreferenceCreate", cublasLtMatmulPreferenceCreate(&wanted.handle));
    set(wanted.handle, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::size_t{32} << 20);
    set(wanted.handle, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    for (const cublasLtMatmulPreferenceAttributes_t operand :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      set(wanted.handle, operand, static_cast<std::uint32_t>(element));
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    check("cublasLtMatmulAlgoGetHeuristic",
          cublasLtMatmulAlgoGetHeuristic(library, of_.handle, b_.handle, a_.handle, out_.handle, out_.handle,
                                         wanted.handle, 1, &found, &count));
    if (count == 0)
      throw ResourceError("cublasLtMatmulAlgoGetHeuristic: no algorithm", "report the sizes of the product");
    return {found.algo, found.workspaceSize};
  }

  void run(cublasLtHandle_t library, const Algorithm& algorithm, const Product& of, device::Execution on) const {
    void* const workspace = algorithm.workspace_bytes == 0 ? nullptr : scratch_on(on, algorithm.workspace_bytes);
    const double one = 1.0, old = of.adds ? 1.0 : 0.0;
    const float narrow_one = 1.0F, narrow_old = of.adds ? 1.0F : 0.0F;
    const bool wide = of.dtype != DType::float32;
    check("cublasLtMatmul",
          cublasLtMatmul(library, of_.handle, wide ? static_cast<const void*>(&one) : &narrow_one, of.b, b_.handle,
                         of.a, a_.handle, wide ? static_cast<const void*>(&old) : &narrow_old, of.out, out_.handle,
                         of.out, out_.handle, &algorithm.algorithm, workspace, algorithm.workspace_bytes,
                         static_cast<cudaStream_t>(on.stream)));
  }

 private:
  // A matrix (rows, columns) in row-major order is (columns, rows) to the library.
  Matrix matrix(const MatrixLayout& layout, std::int64_t rows, std::int64_t columns, const Product& of,
                std::int64_t stride) const {
    return layout.transposed ? Matrix(type_, rows, columns, layout.leading, of, stride)
                             : Matrix(type_, columns, rows, layout.leading, of, stride);
  }

  cudaDataType_t type_;
  Matrix b_, a_, out_;
  Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> of_;
};

// The library's state of a GPU. It lives until the process ends.
struct Library {
  cublasLtHandle_t handle = nullptr;
  // By everything that the choice may depend on.
  using Key = std::array<std::int64_t, 14>;
  std::map<Key, Algorithm> algorithms;
};

Library::Key key_of(const Product& of) {
  return {static_cast<std::int64_t>(of.dtype),
          of.m,
          of.n,
          of.k,
          of.leading,
          of.layout_a.transposed,
          of.layout_a.leading,
          of.layout_b.transposed,
          of.layout_b.leading,
          of.batches,
          of.stride_out,
          of.stride_a,
          of.stride_b,
          of.adds};
}

// The library of the calling thread's GPU, and the algorithm for a product.
struct Chosen {
  cublasLtHandle_t library;
  Algorithm algorithm;
};
Chosen chosen_for(const Plan& plan, const Product& of) {
  static std::mutex mutex;
  static std::map<int, Library> libraries;
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess)
    throw ResourceError(str("cudaGetDevice: ", cudaGetErrorString(error)), "see the documentation of CUDA");
  const std::lock_guard lock(mutex);
  Library& library = libraries[device];
  if (library.handle == nullptr) check("cublasLtCreate", cublasLtCreate(&library.handle));
  const Library::Key key = key_of(of);
  auto found = library.algorithms.find(key);
  if (found == library.algorithms.end())
    found = library.algorithms.emplace(key, plan.choose(library.handle, size_of(of.dtype))).first;
  return {library.handle, found->second};
}

}  // namespace

void multiply(device::Execution on, const Product& product) {
  LOCKSTEP_CHECK(product.dtype == DType::float32 || product.dtype == DType::float64, "a product of ",
                 name_of(product.dtype));
  const Plan plan(product);
  const Chosen chosen = chosen_for(plan, product);
  plan.run(chosen.library, chosen.algorithm, product, on);
}

}  // namespace lockstep::kernels::cublas
