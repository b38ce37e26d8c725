#include "harness/cli/last_resort.hpp"

#include <cstdlib>
#include <exception>

#include <unistd.h>

#include "harness/cli/standard_streams.hpp"
#include "harness/launch/run_folder.hpp"

namespace lockstep::cli {

namespace {

[[noreturn]] void end() {
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    complain(error);
    launch::RunFolder::remove_of_this_process();
    ::_exit(3);
  } catch (...) {
    std::abort();
  }
  std::abort();
}

}  // namespace

void install_last_resort() { std::set_terminate(end); }

}  // namespace lockstep::cli
