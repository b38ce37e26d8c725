// The command line: options to commands, errors to exit codes.
#pragma once

namespace lockstep::cli {

// The whole program; never throws. Exit codes: 0 all as expected; 1 an unexpected result; 2 usage or scenario error; 3
// an error of the harness itself; 4 nothing was executed; 77 everything skipped for a reason of the machine; 124 the
// whole run's time-out; 130 interrupted.
int run_app(int argc, char** argv);

}  // namespace lockstep::cli
