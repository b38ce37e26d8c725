// In place of cublas.cpp in a build without CUDA.
#include "engine/core/error.hpp"
#include "engine/kernels/cublas_internal.hpp"

namespace lockstep::kernels::cublas {

bool is_built() { return false; }
void multiply(device::Execution, const Product&) { throw UnsupportedError("this build has no cuBLAS"); }

}  // namespace lockstep::kernels::cublas
