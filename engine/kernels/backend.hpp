// The libraries behind the kernels: starting and ending them, and what `doctor` wants to know of them.
//
// Kokkos is started in the rank, after the fork; ranks that are threads of one process share it. A kernel starts it
// when nobody has, so only who wants to choose the moment calls initialize(). finalize() is for the end of the process,
// after its last kernel.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::kernels {

void initialize();  // again: nothing happens; from several threads at once: one does it
void finalize();
bool is_initialized();
std::string backend_name();  // "Kokkos 3.4.1, Serial"

// How many threads the BLAS would use for one product: 1, or ranks fight over cores. The library reads
// OPENBLAS_NUM_THREADS before main; initialize() can only ask it to use one.
int blas_threads();
std::string blas_name();  // with the processor it chose its code for
// The library of float32 products writes its code at the first call, which takes 30 ms: a process that forks ranks
// calls this before, and they share what was written; so they do Kokkos where its backend has no threads, which a fork
// would lose. Again: nothing happens.
void prepare_products();
// What the environment lacks, as (variable, value), for the BLAS to run on one thread and with code for this processor:
// an OpenBLAS that is older than the processor takes it for one of twenty years ago and is ten times slower. It reads
// them before main: set these and execute the program again. Empty when all is well.
std::vector<std::pair<std::string, std::string>> missing_blas_environment();

// Multiplies on several threads at once and compares each product, bit for bit, with the same product made alone. Gives
// the number of wrong ones: 0, or the BLAS found must not be used by ranks that are threads.
std::int64_t num_wrong_products(int num_threads = 8, int products_per_thread = 200);

}  // namespace lockstep::kernels
