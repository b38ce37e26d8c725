// The libraries behind the kernels (Kokkos, oneDNN, OpenBLAS): start, end, and the facts that `lockstep doctor`
// reports.
//
// Kokkos starts once per process, after the fork; ranks that are threads of one process share it. The first kernel
// starts it, so initialize() is needed only to choose the moment. finalize() is called at the end of the process, after
// the last kernel.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::kernels {

void initialize();  // idempotent; may be called from several threads at once
// Starts Kokkos, for kernels on a GPU: on the GPU that the calling thread uses. In a build with Cuda, initialize()
// leaves that to the first of these kernels. Idempotent; may be called from several threads at once.
void initialize_device();
void finalize();
bool is_initialized();
std::string backend_name();  // "Kokkos 3.4.1, Serial"

// The number of threads OpenBLAS uses for one product. It must be 1, otherwise ranks compete for cores. OpenBLAS reads
// OPENBLAS_NUM_THREADS before main; initialize() can only request one thread.
int blas_threads();
std::string blas_name();  // versions of both libraries, with the processor each chose its code for
// Generates the code of the float32 products, which takes 30 ms at the first call. A process that forks ranks calls
// this before the fork, so that the ranks share the generated code. It also starts Kokkos if its backend has no threads
// (a fork would lose them). Idempotent.
void prepare_products();
// The (variable, value) pairs that the environment needs for OpenBLAS to use one thread and the code of this processor.
// An OpenBLAS older than the processor falls back to a processor of twenty years ago and is ten times slower. OpenBLAS
// reads the variables before main, so the program must be executed again with them. Empty if nothing is missing.
std::vector<std::pair<std::string, std::string>> missing_blas_environment();

}  // namespace lockstep::kernels
