// The program. The BLAS reads its environment before main(). If the environment does not ask for one thread and for
// code that fits the processor, main() sets it and executes the program once more.

#include <cstdlib>
#include <exception>

#include <unistd.h>

#include "engine/kernels/backend.hpp"
#include "harness/cli/app.hpp"
#include "harness/cli/interrupts.hpp"
#include "harness/cli/last_resort.hpp"
#include "harness/cli/standard_streams.hpp"

int main(int argc, char** argv) try {
  lockstep::cli::install_last_resort();
  lockstep::cli::prepare_standard_streams();
  lockstep::cli::reset_inherited_signals();
  const auto missing = lockstep::kernels::missing_blas_environment();
  if (!missing.empty() && !std::getenv("LOCKSTEP_RESTARTED")) {
    for (const auto& [name, value] : missing) setenv(name.c_str(), value.c_str(), 1);
    setenv("LOCKSTEP_RESTARTED", "1", 1);
    execv("/proc/self/exe", argv);  // returns only when it fails; `lockstep doctor` then reports the missing variables
  }
  unsetenv("LOCKSTEP_RESTARTED");
  return lockstep::cli::exit_code_after_output(lockstep::cli::run_app(argc, argv));
} catch (const std::exception& error) {
  lockstep::cli::complain(error);
  return 3;
}
