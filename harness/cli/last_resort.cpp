#include "harness/cli/last_resort.hpp"

#include <cstdio>
#include <cstdlib>
#include <exception>

#include <unistd.h>

#include "harness/cli/standard_streams.hpp"
#include "harness/launch/launcher.hpp"
#include "harness/launch/temporary_tree.hpp"

namespace lockstep::cli {

namespace {

[[noreturn]] void end() {
  try {
    const std::exception_ptr thrown = std::current_exception();
    if (thrown) std::rethrow_exception(thrown);
    std::fputs(
        "lockstep: a library failed where it must not, most likely out of memory (end other programs, or raise the "
        "limits on memory: ulimit -v, memory.max)\n",
        stderr);
  } catch (const std::exception& error) {
    complain(error);
  } catch (...) {
    std::abort();
  }
  launch::Pool::end_ranks_of_process();  // a rank that saves would create the folder again
  launch::TemporaryTree::remove_all_of_process();
  ::_exit(3);
}

}  // namespace

void install_last_resort() { std::set_terminate(end); }

}  // namespace lockstep::cli
