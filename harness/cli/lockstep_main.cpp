// The program. The BLAS reads its number of threads before main, so when the environment does not say one thread, it is
// set and the program starts itself anew, once.

#include <cstdlib>
#include <string_view>

#include <unistd.h>

#include "harness/cli/app.hpp"

int main(int argc, char** argv) {
  const char* threads = std::getenv("OPENBLAS_NUM_THREADS");
  if ((!threads || std::string_view(threads) != "1") && !std::getenv("LOCKSTEP_RESTARTED")) {
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    setenv("LOCKSTEP_RESTARTED", "1", 1);
    execv("/proc/self/exe", argv);  // only gives back when it failed; then the ranks ask the BLAS for one thread
  }
  unsetenv("LOCKSTEP_RESTARTED");
  return lockstep::cli::run_app(argc, argv);
}
